"""The Debian root: made by debootstrap beside where it is to be, and moved there when it is whole."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from campaigns.on_aarch64.emulation import Emulation
from campaigns.on_aarch64.journal import Journal

SUITE = "bookworm"  # whose Python is 3.11
PACKAGES = ("python3", "g++", "make")


def mirror() -> str | None:
    """Return the mirror of Debian that this machine's apt uses for the suite; None for debootstrap's own default."""
    if not shutil.which("apt-get"):
        return None
    words = ["apt-get", "indextargets", "--format", "$(SITE)", "Origin: Debian", "Label: Debian", f"Codename: {SUITE}"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return listed[0] if listed else None


def make(root: Path, journal: Journal, chosen: str | None) -> None:
    """Make the root of the suite's smallest system, Python and g++, from the ``chosen`` mirror. Raises StepError."""
    partial = root.with_name(f"{root.name}.partial")
    for path in (partial, root):
        if path.exists():
            shutil.rmtree(path)  # nothing is mounted there: mounts are in namespaces that have ended
    options = ["--foreign", "--arch=arm64", "--variant=minbase", "--force-check-gpg", f"--include={','.join(PACKAGES)}"]
    source = chosen or mirror()
    journal.run(["debootstrap", *options, SUITE, partial, *([source] if source else [])])
    (partial / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True, exist_ok=True)
    (partial / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")  # a root that fails is made again
    with Emulation(partial, journal) as emulation:
        # debootstrap's word for a place where no device can be made; the first stage has made them.
        emulation.run(["/debootstrap/debootstrap", "--second-stage"], environment={"container": "lxc"})
    partial.rename(root)
