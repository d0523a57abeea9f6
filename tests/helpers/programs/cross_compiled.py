"""The kernels compiled for another processor, or for an older one, and run under an emulator."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from checkout import CHECKOUT
from compiler_flags import KERNEL_FLAGS, LISTS, TABLE, compile_all, instruction_sets, kernel_sources
from torch import Tensor

from hybridge.runtime.kernels import compiling, library

STUB, PROGRAM = CHECKOUT / "tests" / "cross", "kernels"
DTYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.bool: 11,
    torch.bfloat16: 15,
}  # fmt: skip
# Exceptions, type information and locked statics would need the C++ library: see stub_runtime.h.
FLAGS = [
    *KERNEL_FLAGS,
    *("-O1", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-include", str(STUB / "stub_runtime.h")),
    f"-I{library.FOLDER}",
]
RECURRENCES = ["fading_sum", "gated_delta_rule", "generalized_delta_rule", "linear_attention", "selective_scan", "short_conv"]
LAYERS = ["activation", "block_linear", "linear", "matmul", "norm", "permute"]
CALLED = ["attention", "quantized_attention", *LAYERS, *RECURRENCES]  # files that the tests call

Argument = Tensor | int | float | bool | str | Sequence[int] | None


def zig(language: str, target: str = "aarch64-linux-musl") -> list[str]:
    """Clang of the ``ziglang`` wheel; it brings the target's C and C++ libraries."""
    return [sys.executable, "-m", "ziglang", language, "-target", target]


@dataclass(frozen=True)
class Target:
    """How to compile and link the kernels for one kind of processor: all instruction sets in one program."""

    machine: str
    compiler: Sequence[str]
    linker: Sequence[str]


def arm() -> Target:
    """Clang of the ``ziglang`` wheel, which brings the C library's source."""
    return Target("aarch64", zig("c++"), zig("cc"))


def x86() -> Target:
    compiler = [compiling.compiler() or "g++"]
    return Target("x86_64", compiler, compiler)


def zig_flags(flags: Sequence[str]) -> list[str]:
    """Zig writes ``-march=armv8.2-a+dotprod`` as ``-mcpu=generic+v8_2a+dotprod``."""
    return [re.sub(r"^-march=armv8\.?(\d*)-a", lambda m: f"-mcpu=generic+v8{m[1] and '_' + m[1]}a", flag) for flag in flags]


def emulator(machine: str) -> str | None:
    return shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")


def has_zig() -> bool:
    return find_spec("ziglang") is not None


def cross_compile(target: Target) -> Path:
    """The program of the target's kernels; from the user's cache if it is there."""
    files = [
        STUB / "main.cpp",
        STUB / "stub_runtime.h",
        TABLE,
        LISTS,
        *kernel_sources("dispatch"),
        *kernel_sources(),
        *sorted(library.FOLDER.rglob("*.h")),
        Path(__file__),
    ]
    program = compiling.cache_folder("cross") / f"{compiling.key(files)}-{target.machine}" / PROGRAM
    return compiling.built(program, lambda unfinished: _build(target, unfinished))


def _build(target: Target, program: Path) -> None:
    sets = instruction_sets(target.machine)
    named = ", ".join(f'{{"{each.name}", "{" ".join(each.flags)}"}}' for each in sets)
    units = [(sets[0], STUB / "main.cpp"), (sets[0], library.FOLDER / "dispatch/instruction_sets.cpp")]
    # All files compile for the best set; the others get those that the tests call.
    units += [(each, path) for each in sets for path in kernel_sources() if each is sets[-1] or path.stem in CALLED]
    objects = [str(program.with_name(f"{number}.o")) for number in range(len(units))]
    commands = [
        [
            *target.compiler,
            *FLAGS,
            f"-DINSTRUCTION_SETS={named}",
            each.definition,
            *zig_flags(each.flags),
            "-c",
            path,
            "-o",
            made,
        ]
        for (each, path), made in zip(units, objects, strict=True)
    ]
    compile_all(commands, program.parent)
    compile_all([[*target.linker, *objects, "-static", "-o", program]], program.parent)


class CrossCompiled:
    """A program of kernels, started by ``runner``, in ``instruction_set`` or the one that it chooses itself."""

    def __init__(self, program: Path, runner: Sequence[str] = (), instruction_set: str = "") -> None:
        self._program, self._runner, self._set = program, runner, instruction_set

    def _start(self, *arguments: str, call: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environment = os.environ | {library.CHOICE: self._set}
        command = [*self._runner, str(self._program), *arguments]
        return subprocess.run(command, input=call, capture_output=True, check=True, env=environment)

    def chosen(self) -> str:
        """The instruction set that it runs, and all that the processor has."""
        return self._start("which").stdout.decode()

    def __call__(self, name: str, *arguments: Argument) -> list[Tensor]:
        """Call operator ``name`` (with its overload); returns every tensor among ``arguments`` as it is afterwards."""
        call = struct.pack("<i", len(name)) + name.encode() + b"".join(map(_encoded, arguments))
        answer = self._start(call=call).stdout
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
        return b"t" + header + bytes(range(argument.dim())) + argument.contiguous().view(torch.uint8).numpy().tobytes()
    if isinstance(argument, str):
        return b"s" + struct.pack("<i", len(argument)) + argument.encode()
    if isinstance(argument, Sequence):
        return b"l" + struct.pack(f"<i{len(argument)}q", len(argument), *argument)
    if isinstance(argument, float):
        return b"d" + struct.pack("<d", argument)
    return b"i" + struct.pack("<q", int(argument))
