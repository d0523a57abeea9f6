"""Build hybridge-cli, one file that runs artifacts on Linux or Android without Python.

ExecuTorch's wheel has shared libraries and no static ones. So hybridge-cli is linked to them, and the file carries it together
with them, the C and C++ libraries and their loader; runtime/native/cli/onefile/launch.c starts it from memory. For another
processor, ExecuTorch's wheel for that one is downloaded by pip.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridge.runtime import pinned
from hybridge.runtime.binding.library import SOURCES
from hybridge.runtime.files import file_target, partial_path, take_place

NAME = "hybridge-cli"
LOADER = "ld-linux"
"""Beginning of the loader's name among a program's libraries."""
PAGE = 4096
SMALL = "-ffunction-sections -fdata-sections"
"""Options of the compiler by which the linker leaves out unused functions."""
LAUNCHER = (
    *("-static", "-nostdlib", "-ffreestanding", "-fbuiltin", "-fno-stack-protector", "-fno-pie", "-no-pie", "-O2", "-s", "-w"),
    *(*SMALL.split(), "-Wl,--gc-sections"),
)
COMPRESSED = "libstdc++"
"""Beginning of the name of the library that is carried compressed: a file of 25 MB, and few milliseconds at the start."""


class BuildError(Exception):
    """A step failed; the message says which, and what to do."""


@dataclass(frozen=True)
class Target:
    """A processor. prefix: what its compiler's and binutils' names begin with."""

    machine: str
    prefix: str

    @property
    def tools(self) -> Mapping[str, str]:
        """Return its compilers and its binutils by their usual names."""
        return {name: self.prefix + name for name in ("gcc", "g++", "strip", "readelf")}


def target_of(name: str) -> Target:
    """Return the target ``MACHINE-linux``. Raises BuildError if its compiler is missing."""
    machine = name.removesuffix("-linux")
    target = Target(machine, "" if machine == platform.machine() else f"{machine}-linux-gnu-")
    for tool in target.tools.values():
        if shutil.which(tool) is None:
            package = f"g++-{machine}-linux-gnu".replace("_", "-") if target.prefix else "g++"
            raise BuildError(f"there is no {tool} here; install Debian's package {package}, or your system's like it.")
    return target


def build(target: Target, folder: Path, output: Path) -> Path:
    """Compile hybridge-cli in ``folder`` and write it into ``output`` as one file. Raises BuildError."""
    folder.mkdir(parents=True, exist_ok=True)
    executorch = executorch_for(target, folder)
    cmake = Path(sys.executable).with_name("cmake")
    configure = [
        f"-DCMAKE_PREFIX_PATH={executorch}", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_FLAGS={SMALL}",
        f"-DCMAKE_C_FLAGS={SMALL}", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--gc-sections",
        f"-DCMAKE_C_COMPILER={target.tools['gcc']}", f"-DCMAKE_CXX_COMPILER={target.tools['g++']}",
    ]  # fmt: skip
    if target.prefix:
        configure += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={target.machine}"]
    # CMake keeps nothing of a folder that was of other sources: a checkout has one of its own.
    build = folder / f"build-{hashlib.sha256(str(SOURCES.resolve()).encode()).hexdigest()[:16]}"
    say(f"compiling for {target.machine}, which takes some minutes")
    run(cmake, "-S", SOURCES, "-B", build, *configure)
    run(cmake, "--build", build, "--target", "hybridge_cli", "--parallel", os.cpu_count() or 1)
    output.mkdir(parents=True, exist_ok=True)
    return bundle(target, build / NAME, [executorch / "lib"], output / NAME)


def executorch_for(target: Target, folder: Path) -> Path:
    """Return the folder of ExecuTorch's package for the target: the installed one, or pip's download in ``folder``."""
    if not target.prefix:
        return pinned.executorch()
    unpacked = folder / f"executorch-{pinned.EXECUTORCH}"
    if not unpacked.exists():
        say(f"downloading ExecuTorch {pinned.EXECUTORCH} for {target.machine}")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            run(
                sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--only-binary=:all:", "--python-version", "3.11", "--platform", f"manylinux_2_28_{target.machine}", "--dest",
                scratch, f"executorch=={pinned.EXECUTORCH}",
            )  # fmt: skip
            with zipfile.ZipFile(next(Path(scratch).glob("executorch-*.whl"))) as wheel:
                wheel.extractall(Path(scratch) / "unpacked")
            (Path(scratch) / "unpacked").rename(unpacked)
    return unpacked / "executorch"


def bundle(target: Target, program: Path, folders: Sequence[Path], output: Path) -> Path:
    """Write one file that starts ``program`` with all libraries that it needs; those of ``folders`` before the compiler's.

    Raises BuildError.
    """
    libraries = libraries_of(target, program, folders)
    loaders = [name for name in libraries if name.startswith(LOADER)]
    if len(loaders) != 1:
        raise BuildError(f"{program} needs {' and '.join(loaders) or 'no loader'}; hybridge-cli is for systems with glibc's.")
    files = {LOADER: libraries.pop(loaders[0]), NAME: program, **libraries}
    with tempfile.TemporaryDirectory() as scratch:
        stripped = {name: Path(scratch) / f"{i}" for i, name in enumerate(files)}
        for name, path in files.items():
            run(target.tools["strip"], "-o", stripped[name], path)
        sizes = {name: path.stat().st_size for name, path in stripped.items() if name.startswith(COMPRESSED)}
        for name in sizes:
            deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
            stripped[name].write_bytes(deflate.compress(stripped[name].read_bytes()) + deflate.flush())
        assembly = Path(scratch) / "carried.S"
        assembly.write_text(carried(stripped, sizes), encoding="ascii")
        place = file_target(output)
        partial = partial_path(place)
        run(target.tools["gcc"], *LAUNCHER, SOURCES / "cli/onefile/launch.c", assembly, "-o", partial)
        take_place(partial, place)
    return output


def libraries_of(target: Target, program: Path, folders: Sequence[Path]) -> dict[str, Path]:
    """Return the libraries that a program needs by name, and those that they need. Raises BuildError for a missing one."""
    found: dict[str, Path] = {}
    left = needed(target, program)
    while left:
        name = left.pop(0)
        if name in found:
            continue
        paths = [folder / name for folder in folders if (folder / name).exists()]
        path = paths[0] if paths else Path(run(target.tools["gcc"], f"-print-file-name={name}").strip())
        if not path.is_absolute():  # the compiler answers with the name alone
            raise BuildError(f"{name} is missing, which {program} needs; install the C++ library for {target.machine}.")
        found[name] = path
        left += needed(target, path)
    return found


def needed(target: Target, path: Path) -> list[str]:
    """Return the names of the libraries that a program or library is linked to."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run(target.tools["readelf"], "--dynamic", "--wide", path))


def carried(files: Mapping[str, Path], sizes: Mapping[str, int]) -> str:
    """Return the table of files that launch.c reads, in assembly: the bytes of each, and where they are.

    sizes: of those that are compressed.
    """
    content, table = [".section .rodata"], ['.section .data.rel.ro, "aw"', ".balign 8", ".globl carried", "carried:"]
    for i, (name, path) in enumerate(files.items()):
        content += [f'name{i}: .asciz "{name}"', f".balign {PAGE}", f'begin{i}: .incbin "{path}"', f"end{i}:"]
        table += [f".quad name{i}, begin{i}, end{i}, {sizes.get(name, 0)}"]
    return "\n".join([*content, *table, ".quad 0, 0, 0, 0", '.section .note.GNU-stack, "", %progbits', ""])


def run(*words: object) -> str:
    """Return what a command prints. Raises BuildError, with the end of what it said, if it fails."""
    done = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise BuildError(f"this ended with {done.returncode}: {' '.join(map(str, words))}\n{said}")
    return done.stdout


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Build it, and print its path and size."""
    here = f"{platform.machine()}-linux"
    parser = argparse.ArgumentParser("scripts/cross-cli", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--target", choices=["x86_64-linux", "aarch64-linux"], default=here,
        help="processor that it is for, of Android too; this one's if left out. Another needs Debian's g++-aarch64-linux-gnu",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write hybridge-cli into")
    parser.add_argument(
        "--build", type=Path, default=Path.home() / ".cache/hybridge/cross-cli", help="folder to compile in; %(default)s"
    )
    options = parser.parse_args()
    try:
        made = build(target_of(options.target), options.build.resolve() / options.target, options.output)
    except BuildError as error:
        print(f"scripts/cross-cli: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB, for {options.target}")


if __name__ == "__main__":
    main()
