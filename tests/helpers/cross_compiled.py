"""The kernels compiled for another processor, or for an older one, and run under an emulator."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hybridge.runtime.kernels import library

STUB, PROGRAM = Path(__file__).parents[1] / "cross", "kernels"
DTYPES = {torch.uint8: 0, torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.bool: 11}

Argument = Tensor | int | float | bool | str | Sequence[int] | None


def cross_compile(folder: Path, compiler: str, flags: Sequence[str]) -> None:
    """Make one program of all kernels in ``folder``."""
    own = [flag for flag in library.FLAGS if flag not in ("-march=native", "-shared", "-fPIC", "-fvisibility=hidden", "-O3")]
    objects = ["-O1", "-include", str(STUB / "stub_runtime.h"), f"-I{library.FOLDER}", f"-I{STUB}"]
    sources = [str(path) for path in [STUB / "main.cpp", *library.sources()]]
    subprocess.run([compiler, *own, *flags, *objects, *sources, "-static", "-o", str(folder / PROGRAM)], check=True)


class CrossCompiled:
    """What ``cross_compile`` made in ``folder``, started by ``runner``."""

    def __init__(self, folder: Path, runner: Sequence[str] = ()) -> None:
        self._program, self._runner = folder / PROGRAM, runner

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
