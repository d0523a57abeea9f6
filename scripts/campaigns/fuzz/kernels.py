"""The kernels, their calls with up to three hostile arguments, in a program under the address and UB sanitizers."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from compiler_flags import KERNEL_FLAGS, LISTS, kernel_sources

from campaigns import ROOT
from campaigns.fuzz import kernel_calls
from campaigns.fuzz.driver import Compiled, Input
from campaigns.fuzz.kernel_arguments import CALLS, DTYPES, Argument, Array, Maybe, MaybeReal, Several, hostile
from hybridge.runtime.kernels import compiling, library

DRIVER = Path(__file__).with_name("kernels.cpp")
STUB = ROOT / "tests" / "cross" / "stub_runtime.h"
SANITIZERS = "address,undefined,float-cast-overflow"
FLAGS = [
    *KERNEL_FLAGS,
    *("-O0", "-g1", f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all"),
    *("-include", str(STUB), f"-I{library.FOLDER}"),
]
assert kernel_calls  # its import registers the calls


class Kernels(Compiled):
    """See ``Target``."""

    def __init__(self, name: str = "kernels", architecture: str = "native") -> None:
        """``architecture`` is the compiler's: the vectors of this processor, or fewer."""
        self.name, self._architecture = name, architecture
        self._names = sorted(CALLS)

    def prepare(self) -> None:
        """Compile every kernel with the sanitizers: some minutes, once for each state of the sources."""
        self.program = compiled(self._architecture)

    def make(self, seed: int, index: int) -> Input:
        """Return a good call, nine times of ten with one to three hostile arguments."""
        rng = np.random.default_rng([seed, index])
        name = self._names[index % len(self._names)]
        arguments = CALLS[name](rng)
        spoilt = set() if rng.random() < 0.1 else {int(each) for each in rng.integers(len(arguments), size=rng.integers(1, 4))}
        for at in sorted(spoilt):
            arguments[at] = hostile(rng, arguments[at], at, _tensors(arguments[:at]))
        arguments = _with_room(arguments)
        return Input(encoded(name, arguments), f"{name}({', '.join(map(_described, arguments))}), hostile: {sorted(spoilt)}")


def compiled(architecture: str) -> Path:
    """Return the program of all kernels and the driver. What is in the user's cache is not compiled again, file by file."""
    compiler = [compiling.compiler() or "g++", *FLAGS, f"-march={architecture}"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda path: _object(compiler, path), [DRIVER, *kernel_sources()]))
    program = compiling.cache_folder("fuzz") / compiling.key(objects) / "kernels"
    link = [compiler[0], f"-fsanitize={SANITIZERS}", *map(str, objects), "-o"]
    return compiling.built(program, lambda unfinished: _run(link, unfinished))


def _object(compiler: Sequence[str], path: Path) -> Path:
    parts = [path, STUB, LISTS, Path(__file__), *sorted(library.FOLDER.glob("*.h"))]
    made = compiling.cache_folder("fuzz") / f"{compiling.key(parts)}{compiler[-1]}" / f"{path.stem}.o"
    return compiling.built(made, lambda unfinished: _run([*compiler, "-c", str(path), "-o"], unfinished))


def _run(command: Sequence[str], made: Path) -> None:
    if errors := compiling.errors_of([*command, str(made)], made.parent):
        raise SystemExit(f"the kernels do not compile with sanitizers {errors}")


def _tensors(arguments: Sequence[Argument]) -> int:
    """Return the number of tensors with memory of their own."""
    return sum(each.shares is None for argument in arguments for each in _arrays(argument))


def _arrays(argument: Argument) -> list[Array]:
    """Return an argument's tensors, in the order in which they are read."""
    if isinstance(argument, Several):
        return [array for each in argument.values for array in _arrays(each)]
    given = argument.value if isinstance(argument, Maybe) else argument
    return [given] if isinstance(given, Array) else []


def _with_room(arguments: Sequence[Argument]) -> list[Argument]:
    """Let only tensors share memory that have room in it: a program's memory plan is ExecuTorch's to check."""
    rooms: list[int] = []
    checked: list[Argument] = []
    for argument in arguments:
        for array in _arrays(argument):
            if array.shares is not None and (array.shares >= len(rooms) or rooms[array.shares] < array.numbers.nbytes):
                array = Array(array.numbers, array.order)
                argument = Maybe(array) if isinstance(argument, Maybe) else array
            if array.shares is None:
                rooms.append(array.numbers.nbytes)
        checked.append(argument)
    return checked


def encoded(name: str, arguments: Sequence[Argument]) -> bytes:
    """Return a call as ``stub_runtime.h`` reads it."""
    return struct.pack("<i", len(name)) + name.encode() + b"".join(map(_encoded, arguments))


def _encoded(argument: Argument | None) -> bytes:
    match argument:
        case None:
            return b"n"
        case Maybe(value=value) | MaybeReal(value=value):
            return _encoded(value)
        case Several(values=values):
            return b"m" + struct.pack("<i", len(values)) + b"".join(map(_encoded, values))
        case Array(numbers=numbers, order=order, shares=shares):
            shape = struct.pack(f"<ii{numbers.ndim}q", DTYPES[numbers.dtype.type], numbers.ndim, *numbers.shape)
            shape += bytes(order or range(numbers.ndim))
            return b"t" + shape + numbers.tobytes() if shares is None else b"a" + struct.pack("<i", shares) + shape
        case str():
            return b"s" + struct.pack("<i", len(argument)) + argument.encode()
        case list():
            return b"l" + struct.pack(f"<i{len(argument)}q", len(argument), *argument)
        case float():
            return b"d" + struct.pack("<d", argument)
        case int():
            return b"i" + struct.pack("<q", min(max(argument, -(2**63)), 2**63 - 1))


def _described(argument: Argument | None) -> str:
    match argument:
        case Maybe(value=value) | MaybeReal(value=value):
            return _described(value)
        case Several(values=values):
            return f"[{', '.join(map(_described, values))}]"
        case Array(numbers=numbers, order=order, shares=shares):
            notes = f" in order {order}" if order else "", f" in the memory of tensor {shares}" if shares is not None else ""
            only = f" {numbers.reshape(-1)[0]}" if numbers.size == 1 and numbers.dtype.kind in "iub" else ""
            return f"{numbers.dtype}{list(numbers.shape)}{only}{''.join(notes)}"
        case _:
            return repr(argument)[:60]
