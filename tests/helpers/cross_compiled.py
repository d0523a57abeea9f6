"""The kernels compiled for another processor, or for an older one, and run under an emulator."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from hybridge.runtime.kernels import compiling, library

STUB, PROGRAM = Path(__file__).parents[1] / "cross", "kernels"
DTYPES = {torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.bool: 11}
# Exceptions, type information and locked statics would need the C++ library: see stub_runtime.h.
FLAGS = [
    *(flag for flag in library.FLAGS if flag not in ("-march=native", "-shared", "-fPIC", "-fvisibility=hidden", "-O3")),
    *("-O1", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-include", str(STUB / "stub_runtime.h")),
    f"-I{library.FOLDER}",
]
CALLED = ["activation", "linear", "packed_linear", "permute"]  # the files of the kernels that the tests call

Argument = Tensor | int | float | bool | str | Sequence[int] | None


def zig(language: str) -> list[str]:
    """Clang of the ``ziglang`` wheel, for 64-bit ARM; it brings the C library's source."""
    return [sys.executable, "-m", "ziglang", language, "-target", "aarch64-linux-musl"]


@dataclass(frozen=True)
class Target:
    """How to compile ``sources`` for one processor, and how to link and run what came of it."""

    compiler: Sequence[str]
    linker: Sequence[str]
    flags: Sequence[str]
    sources: Sequence[Path]
    runner: Sequence[str] = ()


def arm(cpu: str, emulated: str, sources: Sequence[Path]) -> Target:
    runner = [emulator() or "", "-cpu", emulated]
    return Target(zig("c++"), zig("cc"), [f"-mcpu={cpu}"], sources, runner)


def x86(architecture: str, sources: Sequence[Path]) -> Target:
    compiler = [compiling.compiler() or "g++"]
    return Target(compiler, compiler, [f"-march={architecture}"], sources)


def sources(*names: str) -> list[Path]:
    """The kernels' files of these names; all without any."""
    return [path for path in library.sources() if not names or path.stem in names]


def emulator() -> str | None:
    return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def has_zig() -> bool:
    return find_spec("ziglang") is not None


def cross_compile(target: Target) -> Path:
    """The program of the target's kernels; from the user's cache if it is there."""
    files = [STUB / "main.cpp", *target.sources]
    headers = [STUB / "stub_runtime.h", *sorted(library.FOLDER.glob("*.h"))]
    key = compiling.key([*files, *headers], target.compiler[0], [*target.compiler, *FLAGS, *target.flags, *map(str, files)])
    program = compiling.cache_folder("cross") / key / PROGRAM
    if not program.exists():
        with compiling.appearing(program) as built:
            _build(target, files, built)
    return program


def _build(target: Target, files: Sequence[Path], program: Path) -> None:
    objects = [str(program.with_name(f"{path.stem}.o")) for path in files]
    commands = [
        [*target.compiler, *FLAGS, *target.flags, "-c", str(path), "-o", made]
        for path, made in zip(files, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands))
    _run([*target.linker, *objects, "-static", "-o", str(program)])


def _run(command: Sequence[str]) -> None:
    errors = compiling.errors_of(command)
    assert errors is None, errors


class CrossCompiled:
    """A program of kernels, started by ``runner``."""

    def __init__(self, program: Path, runner: Sequence[str]) -> None:
        self._program, self._runner = program, runner

    def __call__(self, name: str, *arguments: Argument) -> list[Tensor]:
        """Call operator ``name`` (with its overload); returns every tensor among ``arguments`` as it is afterwards."""
        call = struct.pack("<i", len(name)) + name.encode() + b"".join(map(_encoded, arguments))
        answer = subprocess.run([*self._runner, str(self._program)], input=call, capture_output=True, check=True).stdout
        results, offset = [], 0
        for tensor in (each for each in arguments if isinstance(each, Tensor)):
            flat = torch.frombuffer(bytearray(answer), dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            results.append(flat.view(tensor.shape))
            offset += tensor.nbytes
        return results


def _encoded(argument: Argument) -> bytes:
    if argument is None:
        return b"n"
    if isinstance(argument, Tensor):
        header = struct.pack(f"<ii{argument.dim()}q", DTYPES[argument.dtype], argument.dim(), *argument.shape)
        return b"t" + header + argument.contiguous().numpy().tobytes()
    if isinstance(argument, str):
        return b"s" + struct.pack("<i", len(argument)) + argument.encode()
    if isinstance(argument, Sequence):
        return b"l" + struct.pack(f"<i{len(argument)}q", len(argument), *argument)
    if isinstance(argument, float):
        return b"d" + struct.pack("<d", argument)
    return b"i" + struct.pack("<q", int(argument))
