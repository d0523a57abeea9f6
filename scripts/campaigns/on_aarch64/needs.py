"""What this machine must have before anything is made."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

PACKAGES = {
    "debootstrap": "debootstrap",
    "gpgv": "gpgv",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "chroot": "coreutils",
    "g++": "g++",
}
"""Commands, and Debian's packages that have them."""


def refuse(text: str) -> NoReturn:
    """End with exit code 2."""
    print(f"scripts/trust on-aarch64: {text}", file=sys.stderr)
    raise SystemExit(2)


def emulator() -> str:
    """Return qemu's path; Debian 13 has it without the suffix, and static as well. Exits with 2 where there is none."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    return found or refuse("there is no qemu-aarch64-static here; install Debian's package qemu-user-static.")


def check(cpus: Sequence[str]) -> None:
    """Exit with 2, saying what to do, where something is missing or a processor is unknown to qemu."""
    if platform.machine() == "aarch64":
        refuse("this machine is ARM64 itself; scripts/test runs the tests on it, and scripts/demo the rest.")
    if os.geteuid() != 0:
        refuse("a Debian root can only be made by root; run it with sudo.")
    if missing := [name for name in PACKAGES if not shutil.which(name)]:
        packages = dict.fromkeys(PACKAGES[name] for name in missing)
        refuse(f"there is no {' and no '.join(missing)} here; install Debian's package {' and '.join(packages)}.")
    known = processors()
    if unknown := [cpu for cpu in cpus if cpu.split(",")[0] not in known]:
        refuse(f"qemu has no processor {unknown[0]!r}; choose of: {', '.join(known)}.")


def processors() -> list[str]:
    """Return what qemu knows. It ends with 1 behind the list."""
    listed = subprocess.run([emulator(), "-cpu", "help"], capture_output=True, text=True, check=False).stdout
    return listed.partition(":")[2].split() or refuse("qemu does not list its processors; install qemu-user-static again.")
