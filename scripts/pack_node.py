"""Build the package for Node.js of this platform: one file for ``npm install``, which needs no compiler.

It holds bindings/node, its addon, and the libraries that our wheel has: the core, the kernels and those of ExecuTorch.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hybridge.runtime.binding import bundle
from hybridge.runtime.binding import library as core
from hybridge.runtime.kernels import compiling
from hybridge.runtime.version import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bindings" / "node"
ADDON = "hybridge.node"
PLATFORMS = {"Linux": "linux", "Darwin": "darwin"}
PROCESSORS = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
"""Words of Python's and of Node.js's."""
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


class PackError(Exception):
    """A step failed; the message says which, and what to do."""


def run(*command: object, folder: Path | None = None) -> str:
    """Run a command; return what it prints. Raises PackError."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise PackError(f"{command[0]} failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout


def tool(name: str, how: str = "install Node.js, with npm") -> Path:
    """Return the path of a program. Raises PackError without it, with the words of how to get it."""
    if (found := shutil.which(name)) is None:
        raise PackError(f"there is no {name} here: {how}.")
    return Path(found)


def headers() -> Path:
    """Return the folder of Node.js's headers, which come with it. Raises PackError without them."""
    folder = tool("node").resolve().parents[1] / "include" / "node"
    if not (folder / "node_api.h").is_file():
        raise PackError(
            f"{folder / 'node_api.h'} is missing: install the headers of Node.js (libnode-dev), or Node.js from its archive."
        )
    return folder


def compile_addon(addon: Path) -> None:
    """Compile the addon, source by source, so that a compiler's cache helps. Raises PackError."""
    compiler = compiling.compiler()
    if compiler is None:
        raise PackError(f"{compiling.missing_tool()}.")
    includes = (f"-I{core.SOURCES}", f"-isystem{headers()}")
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for source in sorted((PACKAGE / "src").glob("*.cpp")):
            objects.append(Path(folder, source.stem).with_suffix(".o"))
            run(compiler, *FLAGS, *includes, "-c", source, "-o", objects[-1])
        # Node.js has the functions of Node-API.
        link = ("-shared", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared", "-s")
        run(compiler, *link, *objects, "-ldl", "-pthread", "-o", addon)


def pack(out: Path) -> Path:
    """Write the package into the folder ``out``; return its file. Raises PackError."""
    if (version := json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))["version"]) != __version__:
        raise PackError(f"bindings/node/package.json is of version {version}, and hybridge is {__version__}: write that there.")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder, "hybridge")
        shutil.copytree(PACKAGE, stage, ignore=shutil.ignore_patterns("src", "native", "node_modules"))
        for path in bundle.licences():
            shutil.copy(path, stage)
        native = stage / "native" / f"{PLATFORMS[platform.system()]}-{PROCESSORS[platform.machine()]}"
        native.mkdir(parents=True)
        compile_addon(native / ADDON)
        for path in bundle.libraries():
            shutil.copy(path, native)
        return out / run(tool("npm"), "pack", "--silent", "--pack-destination", out.resolve(), folder=stage).strip()


def pack_command(
    name: str,
    description: str | None,
    pack: Callable[[Path], Path],
    words: Sequence[str] | None = None,
    files: str = "file goes",
) -> int:
    """Run a command that packs into the folder of its option; return its exit code. files: what goes there, for the help."""
    parser = argparse.ArgumentParser(prog=name, description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("dist"), metavar="FOLDER", help=f"where the {files}; dist by default"
    )
    try:
        print(pack(parser.parse_args(words).out))
    except PackError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(pack_command("scripts/pack-node", __doc__, pack))
