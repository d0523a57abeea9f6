"""Make what a release has for this platform, try it where nothing else is, and write checksums and a list of what is in it.

The folder gets the wheel and the source distribution, the bundle for C and C++, hybridge-cli, the package for Node.js, the jar,
licences, an SBOM (CycloneDX 1.6) and SHA256SUMS. docs/releasing.md says what is made elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import cross_cli
import pack_jar
import pack_node
from campaigns.page_libraries import LIBRARIES
from pack_node import PackError, run, tool

from hybridge.errors import HybridgeError
from hybridge.runtime.binding import bundle
from hybridge.runtime.files import sync_tree
from hybridge.runtime.pinned import EXECUTORCH
from hybridge.runtime.version import __version__

ROOT = Path(__file__).parents[1]
PLATFORM = f"{platform.system().lower()}-{platform.machine()}"
CLI = f"hybridge-cli-{__version__}-{PLATFORM}"


def make_sources(out: Path) -> None:
    """Build the source distribution. Its bytes depend on zlib, so one platform makes it for all."""
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", out, ROOT)


def make_python(out: Path) -> None:
    """Build the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, ROOT)


def make_bundle(out: Path) -> None:
    """Pack what ``hybridge bundle`` writes."""
    name = f"hybridge-{__version__}-{PLATFORM}"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(bundle.write(Path(folder, name)), name)


def make_cli(out: Path) -> None:
    """Build hybridge-cli."""
    build = Path.home() / ".cache/hybridge/cross-cli" / f"{platform.machine()}-linux"
    with tempfile.TemporaryDirectory() as folder:
        made = cross_cli.build(cross_cli.target_of(f"{platform.machine()}-linux"), build, Path(folder))
        shutil.copy(made, out / CLI)


def make_npm(out: Path) -> None:
    """Pack the package for Node.js under a name with its platform."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(made := pack_node.pack(Path(folder)), out / f"{made.stem}-npm-{PLATFORM}.tgz")


def make_jar(out: Path) -> None:
    """Pack the jar and its POM."""
    pack_jar.pack(out)


PARTS: Mapping[str, Callable[[Path], None]] = {
    "sources": make_sources, "python": make_python, "bundle": make_bundle, "cli": make_cli, "npm": make_npm, "jar": make_jar,
}  # fmt: skip
"""The parts of a release by the names of ``--without``, with what makes them."""


def alone(root: Path, *command: object) -> str:
    """Run a command whose file system is ``root``. Raises PackError."""
    (root / "proc").mkdir()
    return run("unshare", "--map-root-user", "--fork", "--pid", "--mount-proc=/proc", f"--root={root}", *command)


def try_out(out: Path, parts: Sequence[str]) -> None:
    """Run each part from its file alone; each says its version. Raises PackError."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if "cli" in parts:
            (scratch / "root").mkdir()
            shutil.copy(out / CLI, scratch / "root/hybridge-cli")
            expect_version("hybridge-cli", alone(scratch / "root", "/hybridge-cli", "--version"))
        if "bundle" in parts:
            run("tar", "-xzf", out / f"hybridge-{__version__}-{PLATFORM}.tar.gz", folder=scratch)
            place = scratch / f"hybridge-{__version__}-{PLATFORM}"
            os.environ["PKG_CONFIG_PATH"] = str(place / "lib/pkgconfig")
            (source := scratch / "version.c").write_text(
                "#include <hybridge/hybridge.h>\n#include <stdio.h>\n"
                "int main(void) { return hybridge_threads() == 0 || puts(hybridge_version()) < 0; }\n"
            )
            run("cc", source, "-o", scratch / "version", *run("pkg-config", "--cflags", "--libs", "hybridge").split())
            expect_version("the bundle", run(scratch / "version"))
        if "npm" in parts:
            (app := scratch / "app").mkdir()
            package = next(out.glob("*-npm-*.tgz")).resolve()
            run(tool("npm"), "install", "--offline", "--no-audit", "--no-fund", package, folder=app)
            said = "require('hybridge').setThreads(1).then(() => console.log(require('hybridge/package.json').version))"
            expect_version("the package for Node.js", run(tool("node"), "-e", said, folder=app))
        if "jar" in parts:
            standard = pack_jar.compiler_libraries() / "kotlin-stdlib.jar"
            program = ROOT / "tests/apps/Copies.java"
            expect_version("the jar", run(tool("java"), "-Xcheck:jni", "-cp", standard, program, next(out.glob("*.jar"))))


def expect_version(name: str, said: str) -> None:
    """Raise PackError unless a part said this version."""
    if __version__ not in said:
        raise PackError(f"{name} is not of version {__version__}; it says: {said.strip()[-500:]}")
    print(f"tried: {name}", file=sys.stderr)


def components() -> Iterator[Mapping[str, object]]:
    """Yield what a release has of others, or asks for: as CycloneDX has it."""
    yield component("executorch", EXECUTORCH, "BSD-3-Clause", "pypi")
    headings = re.findall(r"={50,}\n(.+)\n={50,}", (ROOT / "THIRD_PARTY_LICENSES").read_text(encoding="utf-8"))
    for name in (found[1] for each in headings if (found := re.match(r"([\w-]+), in libexecutorch", each))):
        yield component(name, f"of ExecuTorch {EXECUTORCH}", None)
    table = (ROOT / "runtime/native/third_party/README.md").read_text(encoding="utf-8")
    for name, version in re.findall(r"(?m)^\| \[(\w+)\]\(\S+\) \| (\S+) \|", table):
        yield component(name, version, None)
    for library in LIBRARIES:
        yield component(library.name, library.version, None, "npm")
    page = (ROOT / "docs/licenses.md").read_text(encoding="utf-8").split("\n## ")[1]
    lock = dict(re.findall(r"(?m)^([\w.-]+)==([^\s\\]+)", (ROOT / "requirements.lock").read_text(encoding="utf-8")))
    for name, licence in re.findall(r"(?m)^\| ([\w.-]+) \| (.+) \|$", page):
        if name != "Name":
            yield component(name, lock[name.lower().replace("_", "-")], licence, "pypi")


def component(name: str, version: str, licence: str | None, registry: str | None = None) -> Mapping[str, object]:
    """Return a library. Without a licence here, its text is in THIRD_PARTY_LICENSES."""
    found: dict[str, object] = {"type": "library", "name": name, "version": version}
    found["licenses"] = [{"license": {"name": licence or "see THIRD_PARTY_LICENSES"}}]
    if registry:
        found["purl"] = f"pkg:{registry}/{name.lower().replace('@', '%40')}@{version}"
    return found


def write_lists(out: Path) -> None:
    """Write the licences, the SBOM and the checksums of all files."""
    for path in bundle.licences():
        shutil.copy(path, out)
    about = {"type": "library", "name": "hybridge", "version": __version__, "licenses": [{"license": {"id": "Apache-2.0"}}]}
    sbom = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": about},
        "components": list(components()),
    }  # fmt: skip
    (out / f"hybridge-{__version__}-{PLATFORM}.cdx.json").write_text(json.dumps(sbom, indent=1) + "\n", encoding="utf-8")
    files = sorted(path for path in out.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / f"SHA256SUMS-{PLATFORM}").write_text("".join(sums), encoding="ascii")


def release(out: Path, parts: Sequence[str], catalogue: Path | None) -> None:
    """Write the folder ``out``, which must be new. Raises PackError and what the parts raise; then nothing is left of it."""
    if out.exists():
        raise PackError(f"{out} exists: name a new folder, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        folder = Path(name, "release")
        folder.mkdir()
        for part in parts:
            print(f"making: {part}", file=sys.stderr)
            PARTS[part](folder)
        if catalogue is not None:
            shutil.copy(catalogue, folder)
        try_out(folder, parts)
        write_lists(folder)
        sync_tree(folder)
        folder.rename(out)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("dist/release"), metavar="FOLDER", help="dist/release by default"
    )
    parser.add_argument("--without", nargs="*", choices=sorted(PARTS), default=[], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--catalogue", type=Path, metavar="WHEEL", help="what scripts/catalogue made, to be released too")
    options = parser.parse_args(words)
    try:
        release(options.out, [part for part in PARTS if part not in options.without], options.catalogue)
    except (PackError, cross_cli.BuildError, HybridgeError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    for path in sorted(options.out.iterdir()):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
