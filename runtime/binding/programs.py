"""Run programs in Python under the native core, which calls their methods and reads their state.

Graphs of onnxruntime, eager models and plain functions have the same sessions and generations as a .pte.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import Array, byref, c_char_p, c_int64, c_uint8
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hybridge.errors import UsageError
from hybridge.runtime.artifact.model_info import ModelInfo
from hybridge.runtime.artifact.pictures import VISION, PictureDescription, PictureForm
from hybridge.runtime.binding.interface import (
    MOST_DIMENSIONS,
    ArrayStruct,
    CText,
    ModelHandle,
    OnBuffer,
    OnCall,
    OnClose,
    ProgramStruct,
    Type,
)
from hybridge.runtime.binding.library import run

TYPES: Mapping[Type, np.dtype[Any]] = {
    Type.UINT8: np.dtype(np.uint8),
    Type.INT8: np.dtype(np.int8),
    Type.INT64: np.dtype(np.int64),
    Type.FLOAT32: np.dtype(np.float32),
    Type.BOOL: np.dtype(np.bool_),
    Type.FLOAT16: np.dtype(np.float16),
}
FAILED, UNDONE = -1, -2
"""Answers of a call that raised, with a state that is unknown or as it was."""
NUMBERS = {dtype: number for number, dtype in TYPES.items()}
Numbers = NDArray[Any]


class Program(Protocol):
    """The methods of an artifact over one state; docs/artifact.md describes each. Arrays are contiguous."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the state's buffers, without staged ones."""

    @property
    def bounded(self) -> Collection[str]:
        """Return the names of the bounded buffers: those that a rollback must restore, ``length`` among them."""

    @property
    def is_atomic(self) -> bool:
        """Return whether a call that raises leaves the state as it was."""

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        """Run a method. The inputs are views for the call; the outputs stay as they are until the next one."""

    def buffer(self, name: str) -> Numbers:
        """Return a view of a buffer's current memory. Raises KeyError for an unknown name."""


class ProgramFunctions:
    """The functions of a program that the core calls. ``error`` is the last exception of one."""

    def __init__(self, program: Program, info: ModelInfo) -> None:
        self.program, self.error = program, None
        self._outputs: list[Numbers] = []
        self._callbacks = OnCall(self._call), OnBuffer(self._buffer), OnClose()
        self._described = _described(program, info, *self._callbacks)

    error: BaseException | None

    def open(self) -> ModelHandle:
        """Return the handle of a model over the program. Raises UsageError for impossible sizes."""
        handle = ModelHandle()
        run("program_open", byref(self._described), byref(handle))
        return handle

    def _call(self, _: object, name: bytes, inputs: Any, count: int, outputs: Any, capacity: int) -> int:
        try:
            self._outputs = [
                np.ascontiguousarray(each) for each in self.program.call(name.decode(), *map(seen, inputs[:count]))
            ]
            for place, each in enumerate(self._outputs[:capacity]):
                show(outputs[place], each)
            return min(len(self._outputs), capacity)
        except BaseException as error:
            self.error = error
            return UNDONE if self.program.is_atomic else FAILED

    def _buffer(self, _: object, name: bytes, found: Any) -> int:
        try:
            show(found.contents, self.program.buffer(name.decode()))
            return 0
        except KeyError:
            return -1
        except BaseException as error:
            self.error = error
            return -1


def seen(view: ArrayStruct) -> Numbers:
    """Return a view of the core's numbers."""
    shape = tuple(view.shape[: view.dimensions])
    dtype = TYPES[Type(view.type)]
    size = int(np.prod(shape)) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (c_uint8 * size).from_address(view.data)
    array: Numbers = np.frombuffer(memory, dtype).reshape(shape)
    return array


def show(view: ArrayStruct, array: Numbers) -> None:
    """Describe an array to the core. Raises TypeError for a dtype or layout that the core does not have."""
    if array.dtype not in NUMBERS or array.ndim > MOST_DIMENSIONS or not array.flags.c_contiguous:
        raise TypeError(f"an array of {array.dtype} {array.shape} is of a type that the core does not know.")
    view.type, view.dimensions, view.data = NUMBERS[array.dtype], array.ndim, array.ctypes.data
    view.shape[: array.ndim] = array.shape


def _described(program: Program, info: ModelInfo, call: Any, buffer: Any, close: Any) -> ProgramStruct:
    options, drafter = info.options, info.drafter
    numbers: dict[str, Sequence[int]] = {
        "verify_len": options.verify_lens,
        "eos_id": info.eos_ids,
        "draft_block": drafter.blocks if drafter else (),
        "draft_tap": [options.tap_layers.index(tap) for tap in drafter.taps] if drafter else (),
        "vision": _encoder_numbers(info.pictures) if info.pictures else (),
    }
    names, bounded = list(program.names), list(program.bounded)
    table = ProgramStruct(
        call=call,
        buffer=buffer,
        close=close,
        max_seq_len=options.max_seq_len,
        vocab_size=info.vocab_size,
        prefill_chunk=options.prefill_chunk,
        snapshot_slots=options.snapshot_slots,
        taps=len(options.tap_layers),
        names=_strings(names),
        bounded=_strings(bounded),
        name_count=len(names),
        bounded_count=len(bounded),
        row_axis=2 if options.format == "onnx" else 1,
        draft_samples=bool(drafter and drafter.samples),
        fixed_shapes=options.fixed_shapes,
        fingerprint=_fingerprint(info.identity),
    )
    for name, values in numbers.items():
        setattr(table, name if name == "vision" else f"{name}s", (c_int64 * len(values))(*values))
        setattr(table, f"{name}_count", len(values))
    return table


def _encoder_numbers(pictures: PictureDescription) -> list[int]:
    """Return the numbers of an encoder. Raises UsageError for positions that only a .pte has."""
    if pictures.form != PictureForm():
        raise UsageError(f"pictures of a {pictures.model_type!r} model have positions that only a .pte has; export one.")
    return pictures.constants[VISION]


def _strings(names: Sequence[str]) -> Array[c_char_p]:
    return (c_char_p * len(names))(*(CText("a name", name.encode()) for name in names))


def _fingerprint(identity: str | None) -> int:
    """Return the number that saved states of an artifact carry; a random one without an identity."""
    if identity is None:
        return secrets.randbits(64)
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "little")


BLOCK = 512
"""Rows after the last position, for a block that may start there."""


class TextProgram:
    """A function from a text to the logits after it, as a program over a list of tokens.

    It replaces a model in simulations and tests in which only the logits matter. rows int64 [R] hold a token for each position.
    numbers int64 [3 + slots], length, staged, operations and the slots' lengths, change all at once.
    """

    names = ("length", "staged", "operations", "slot_length", "rows")
    bounded = ("length",)
    is_atomic = True

    def __init__(
        self, logits: Callable[[tuple[int, ...]], ArrayLike], max_seq_len: int = 4096, snapshot_slots: int = 4
    ) -> None:
        """logits: a text of at least one token to float32 [V]."""
        self.logits = logits
        self.rows = np.zeros(max_seq_len + BLOCK, np.int64)
        self.numbers = np.array([0, 0, 0] + [-1] * snapshot_slots, np.int64)

    @property
    def text(self) -> list[int]:
        """Return the committed tokens."""
        text: list[int] = self.rows[: int(self.numbers[0])].tolist()
        return text

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        length, staged, operations, *slots = self.numbers.tolist()
        match name.split("_")[0], [each.ravel().tolist() for each in inputs]:
            case "verify", [tokens]:
                text = self._write(length, tokens)
                logits = np.stack([self._after(text[: length + i + 1]) for i in range(len(tokens))])
                self._move(length, len(tokens), operations, _within(slots, length))
                return (logits[None],)
            case "prefill" | "decode", [tokens, *count]:
                text = self._write(length, tokens[: count[0][0]] if count else tokens)
                logits = self._after(text)
                self._move(len(text), 0, operations, _within(slots, length))
                return (logits[None, None],)
            case "commit", [[count]] if 0 <= count <= staged and staged:
                length += count
            case "snapshot", [[slot]]:
                slots[slot] = length
            case "restore", [[slot]] if slots[slot] >= 0:
                length = slots[slot]
            case "reset", []:
                length, slots = 0, [-1] * len(slots)
            case _:
                return (np.array([-1]),)
        self._move(length, 0, operations, slots)
        return (np.array([length]),)

    def buffer(self, name: str) -> Numbers:
        numbers = {"length": slice(0, 1), "staged": slice(1, 2), "operations": slice(2, 3), "slot_length": slice(3, None)}
        return self.rows if name == "rows" else self.numbers[numbers[name]]

    def _after(self, text: list[int]) -> NDArray[np.float32]:
        return np.asarray(self.logits(tuple(text)), np.float32)

    def _write(self, length: int, tokens: list[int]) -> list[int]:
        """Write rows after the length; return the text with them."""
        self.rows[length : length + len(tokens)] = tokens
        text: list[int] = self.rows[: length + len(tokens)].tolist()
        return text

    def _move(self, length: int, staged: int, operations: int, slots: list[int]) -> None:
        self.numbers[:] = [length, staged, operations + 1, *slots]


def _within(slots: list[int], length: int) -> list[int]:
    """Return the lengths that slots keep after rows from ``length`` on are written."""
    return [kept if kept <= length else -1 for kept in slots]
