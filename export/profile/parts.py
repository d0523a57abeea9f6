"""Time the parts of a method: each as a method of its own, in turn with the others and with the whole.

A part lacks the results of the other parts' instructions, so only its time means something, not its numbers. The time
of the bookkeeping that it needs (positions, masks, indices) is subtracted. The parts run in turn, because a part that
ran repeatedly would find its weights in the processor's caches, where a decode never finds them.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import hybridge.export.kernel_sets.hybridge  # noqa: F401  defines the operators
from hybridge.errors import UsageError
from hybridge.export.operators.define import RECURRENCES
from hybridge.export.pinned.executorch import (
    CONTROL_FLOW,
    NUMBER_OF_TENSOR,
    Chain,
    DelegateCall,
    KernelCall,
    ScalarType,
    Tensor,
    TensorList,
)
from hybridge.export.profile.program import ExecuTorchProgram, ProgramFile
from hybridge.runtime.artifact.folder import Artifact, CheckedFile, file_entry
from hybridge.runtime.artifact.manifest import PROGRAM
from hybridge.runtime.binding.session import Session

READ = 2**26
"""Numbers of 4 bytes to measure the bandwidth with, far more than the last cache holds."""


def profile(
    artifact: Artifact, methods: Sequence[str], context: int, rounds: int, clock: Clock = time.perf_counter
) -> list[Profile]:
    """Return a profile of each of ``methods`` (prefill, decode, a verify) after ``context`` tokens.

    Raises ArtifactError, and UsageError if the context leaves no room for a block.
    """
    options = artifact.manifest.options
    room = options.max_seq_len - max(options.prefill_chunk, options.verify_len, 2)  # a decode runs twice in each round
    if not 1 <= context <= room:
        raise UsageError(f"a context of {context} tokens is not 1 to {room}, which this artifact has room for.")
    with tempfile.TemporaryDirectory(prefix="hybridge-profile-") as folder:
        profiler = Profiler(artifact, methods, Path(folder))
        return [profiler.run(name, context, rounds, clock) for name in methods]


class Profiler:
    """An artifact's program with a method for each part of ``methods``."""

    def __init__(self, artifact: Artifact, methods: Sequence[str], folder: Path) -> None:
        """Write a copy of the program, of about its size, into ``folder``, and load it. Raises ArtifactError."""
        file = ProgramFile(artifact.program)
        vocabulary = artifact.manifest.vocab_size
        self._cuts = {name: Cut(name, file.plans[artifact.manifest.program_method(name)], vocabulary) for name in methods}
        path = folder / PROGRAM
        plans = [plan for cut in self._cuts.values() for plan in cut.plans]
        file.write(path, plans)
        opened = {PROGRAM: CheckedFile(path, file_entry(path))}
        self.program = ExecuTorchProgram(Artifact(folder=folder, manifest=artifact.manifest, opened=opened))
        for plan in plans:
            self.program.load_method(plan.name)
        self.session = Session.over(self.program, artifact.manifest)
        shapes = {name: [each.shape for each in artifact.manifest.methods[name].inputs] for name in methods}
        self._inputs = {name: _inputs(*each) for name, each in shapes.items()}
        self._memory = Bandwidth(READ)

    def run(self, method: str, context: int, rounds: int, clock: Clock = time.perf_counter) -> Profile:
        """Time a method after ``context`` tokens: medians of ``rounds`` rounds, in each of which every part runs once.

        With one thread ``time.process_time`` is the better clock, because it does not count other processes.
        """
        cut = self._cuts[method]
        inputs = self._inputs[method]
        bandwidth: list[float] = []
        times: dict[str, list[float]] = {name: [] for name in cut.names}
        for _ in range(rounds):
            bandwidth.append(self._memory.measure(clock=clock))
            self.session.reset()
            self.session.prefill([0] * context)
            self.program.call(cut.method(WHOLE), *inputs)  # the first call after a pause is slower than the others
            for name, measured in times.items():
                self.program.call(
                    cut.method(POSITIONS), *inputs
                )  # so that the subtracted bookkeeping takes the same time in each
                start = clock()
                self.program.call(cut.method(name), *inputs)
                measured.append(clock() - start)
        medians = {name: statistics.median(measured) for name, measured in times.items()}
        return cut.profile(medians, context, statistics.median(bandwidth))


def _inputs(tokens: Sequence[int], *counts: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return tokens of that shape, and their number for each count."""
    count = math.prod(tokens)
    return torch.zeros(*tokens, dtype=torch.long), *(torch.full(tuple(each), count) for each in counts)


# Assign instructions to parts of the model, by their operator and by the mixer of their block

WHOLE = "whole"
POSITIONS = "positions and masks"
HEAD = "head"
MLP = "MLP"
ATTENTION = ("sdpa", "attention", "update_cache", "write_rows", "write_window")
RECURRENT = ("conv", "shift_window", *RECURRENCES)
SMALL = ("norm", "rotary", "gated", "activation")
STATE = ("copy_", "keep_state", "bring_back", "clear", "index_put")


def part_names(instructions: Sequence[Instruction], vocab_size: int) -> list[str]:
    """Return the part of each instruction."""
    return [_part(each, mixer, vocab_size) for block in _blocks(instructions) for mixer in [_mixer(block)] for each in block]


def _blocks(instructions: Sequence[Instruction]) -> Iterator[list[Instruction]]:
    """Yield blocks, each of which begins with a norm of hidden states."""
    width = next((each.shape[-1:] for each in instructions if "embedding" in each.name), ())
    block: list[Instruction] = []
    for each in instructions:
        if "norm" in each.name and each.shape[-1:] == width and len(each.shape) == 3:
            yield block
            block = []
        block.append(each)
    yield block


def _mixer(block: Sequence[Instruction]) -> str:
    """Return the operators that mix tokens in a block; a block without one is an MLP."""
    attends = any(_is(each, ATTENTION) and not _is(each, RECURRENT) for each in block)
    recurrent = {_short(each): None for each in block if _is(each, RECURRENT)}
    mixers = [name for name in recurrent if len(recurrent) == 1 or ("conv" not in name and "window" not in name)]
    return " + ".join([*mixers, *(["attention"] if attends else [])]) or MLP


def _part(each: Instruction, mixer: str, vocab_size: int) -> str:
    if each.is_bookkeeping:
        return POSITIONS
    if "embedding" in each.name:
        return "embedding"
    if _is(each, RECURRENT):
        return _short(each)
    if _is(each, ATTENTION):
        return "attention"
    if "experts" in each.name:
        return "experts"
    if "linear" in each.name or "addmm" in each.name:
        return HEAD if each.shape[-1:] == (vocab_size,) else f"linear layers of {mixer}"
    if _is(each, SMALL):
        return "norms, gates, rotary"
    if "::" not in each.name:
        return each.name
    return "state moves" if _is(each, STATE) else "other operators"


def _is(each: Instruction, words: Sequence[str]) -> bool:
    return any(word in each.name for word in words)


def _short(each: Instruction) -> str:
    """Return ``gated_delta_rule`` of ``hybridge::gated_delta_rule_verify.out``."""
    return each.name.partition("::")[2].partition(".")[0].removesuffix("_verify")


def bytes_moved(each: Instruction, context: int) -> int:
    """Return the bytes that a call reads and writes, counting only the needed rows of tables, keys and values."""
    if "embedding" in each.name:
        return 2 * size(each.tensors[-1])
    rows = context if _is(each, ATTENTION) else None
    return sum(_touched(tensor, rows) for tensor in each.tensors)


def _touched(tensor: object, rows: int | None) -> int:
    whole = size(tensor)
    sizes: Sequence[int] = tensor.sizes  # type: ignore[attr-defined]  # ExecuTorch is untyped
    if rows is None or not is_state(tensor) or len(sizes) < 2:
        return whole
    return whole * min(rows, sizes[1]) // sizes[1]


# The instructions of a plan: operators, the tensors that they read and write, and their bytes

SIZES = {
    ScalarType.BYTE: 1, ScalarType.CHAR: 1, ScalarType.BOOL: 1, ScalarType.SHORT: 2, ScalarType.HALF: 2,
    ScalarType.BFLOAT16: 2, ScalarType.INT: 4, ScalarType.FLOAT: 4, ScalarType.LONG: 8, ScalarType.DOUBLE: 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One call of an operator or a backend. name: with its overload; tensors: in order; made: those that it creates."""

    name: str
    tensors: tuple[Any, ...]
    made: tuple[Any, ...]
    source: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the last tensor, which is the output."""
        return tuple(self.tensors[-1].sizes) if self.tensors else ()

    @property
    def state(self) -> tuple[Any, ...]:
        """Return the state tensors that it touches, without single numbers."""
        return tuple(each for each in self.tensors if is_state(each) and len(each.sizes) > 1)

    @property
    def is_bookkeeping(self) -> bool:
        """Return whether it makes positions, masks or indices, which other instructions need."""
        if self.name.startswith(CONTROL_FLOW) or NUMBER_OF_TENSOR in self.name:
            return True
        writes = self.name.partition(".")[0].endswith("_")
        return not writes and not self.state and any(each.scalar_type != ScalarType.FLOAT for each in self.made)


def read_instructions(plan: Any) -> list[Instruction]:
    """Return the calls of a plan in order, without jumps and the freeing of memory."""
    seen = set(plan.inputs)
    found = []
    for each in (each for chain in plan.chains for each in chain.instructions):
        call = each.instr_args
        if isinstance(call, KernelCall | DelegateCall):
            indices = [index for argument in call.args for index in _tensors(plan, argument)]
            new = {index for index in indices if index not in seen and is_made(plan.values[index].val)}
            seen.update(indices)
            found.append(
                Instruction(
                    name=_name(plan, call),
                    tensors=tuple(plan.values[index].val for index in indices),
                    made=tuple(plan.values[index].val for index in sorted(new)),
                    source=each,
                )
            )
    return found


def with_only(plan: Any, kept: Sequence[Any], name: str) -> Any:
    """Return a plan with only the calls ``kept`` and their delegates, under another name and without outputs."""
    used = sorted({each.instr_args.delegate_index for each in kept if isinstance(each.instr_args, DelegateCall)})
    calls = [_renumbered(each, used) for each in kept]
    chain = Chain(inputs=[], outputs=[], instructions=calls, stacktrace=None)
    return replace(plan, name=name, chains=[chain], outputs=[], delegates=[plan.delegates[index] for index in used])


def _renumbered(instruction: Any, used: Sequence[int]) -> Any:
    call = instruction.instr_args
    if not isinstance(call, DelegateCall):
        return instruction
    return replace(instruction, instr_args=replace(call, delegate_index=used.index(call.delegate_index)))


def _name(plan: Any, call: KernelCall | DelegateCall) -> str:
    if isinstance(call, DelegateCall):
        return str(plan.delegates[call.delegate_index].id)
    operator = plan.operators[call.op_index]
    return f"{operator.name}.{operator.overload}"


def _tensors(plan: Any, index: int) -> Iterator[int]:
    value = plan.values[index].val
    if isinstance(value, Tensor):
        yield index
    elif isinstance(value, TensorList):
        yield from value.items


def is_state(tensor: Any) -> bool:
    """Return whether its memory outlives the call."""
    return tensor.extra_tensor_info is not None and tensor.allocation_info is not None


def is_made(tensor: Any) -> bool:
    """Return whether it is neither state nor a constant."""
    return not is_state(tensor) and tensor.allocation_info is not None


def size(tensor: Any) -> int:
    """Return the size in bytes."""
    numbers: int = math.prod(tensor.sizes)
    return numbers * SIZES.get(tensor.scalar_type, 4)


# A method cut into parts, and its profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartProfile:
    """Instructions that belong together: their number, time, bytes moved, and operators with counts."""

    name: str
    calls: int
    milliseconds: float
    bytes: int
    operators: dict[str, int]

    def share_of_limit(self, bandwidth: float) -> float:
        """Return the share of ``bandwidth`` (bytes per second) that it uses; above 1, caches help."""
        return self.bytes / bandwidth / (self.milliseconds / 1e3) if self.milliseconds > 0 else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A method at a context length: its time as a whole, its parts, and the machine's read bandwidth in bytes per second."""

    method: str
    context: int
    milliseconds: float
    parts: list[PartProfile]
    bandwidth: float

    @property
    def sum(self) -> float:
        """Return the milliseconds of all parts together, to compare with the whole."""
        return sum(part.milliseconds for part in self.parts)

    @property
    def bytes(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for ``--json``."""
        shares = [{"share_of_limit": part.share_of_limit(self.bandwidth)} for part in self.parts]
        parts = [dataclasses.asdict(part) | share for part, share in zip(self.parts, shares, strict=True)]
        return dataclasses.asdict(self) | {"sum": self.sum, "parts": parts}


class Cut:
    """A method's plan cut into the parts ``names``, the whole and the bookkeeping first; ``plans`` has one for each.

    A part's plan has its instructions over the same memory and weights, and before them the bookkeeping that they need.
    """

    def __init__(self, method: str, plan: Any, vocab_size: int) -> None:
        self._name = method
        self._instructions = read_instructions(plan)
        self._parts = part_names(self._instructions, vocab_size)
        self.names = [WHOLE, POSITIONS, *(name for name in dict.fromkeys(self._parts) if name != POSITIONS)]
        self.plans = [self._plan(plan, name) for name in self.names]

    def method(self, part: str) -> str:
        """Return the name of a part's method."""
        return f"{self._name}: {part}"

    def profile(self, seconds: Mapping[str, float], context: int, bandwidth: float) -> Profile:
        """Return the profile of measured seconds by name; bookkeeping is in every part's time but counted once."""
        own = {name: max(0.0, seconds[name] - seconds[POSITIONS]) for name in self.names} | {POSITIONS: seconds[POSITIONS]}
        parts = [self._part(name, own[name], context) for name in self.names if name != WHOLE]
        return Profile(
            method=self._name,
            context=context,
            milliseconds=seconds[WHOLE] * 1e3,
            parts=sorted(parts, key=lambda part: -part.milliseconds),
            bandwidth=bandwidth,
        )

    def _part(self, name: str, seconds: float, context: int) -> PartProfile:
        members = self._members(name)
        return PartProfile(
            name=name,
            calls=len(members),
            milliseconds=seconds * 1e3,
            bytes=sum(bytes_moved(each, context) for each in members),
            operators=dict(Counter(f"{each.name} {list(each.shape)}" for each in members)),
        )

    def _members(self, *parts: str) -> list[Instruction]:
        named = zip(self._instructions, self._parts, strict=True)
        return [each for each, name in named if name in parts or WHOLE in parts]

    def _plan(self, plan: Any, part: str) -> Any:
        return with_only(plan, [each.source for each in self._members(part, POSITIONS)], self.method(part))


# The bandwidth of reading memory, which limits a decode because it reads every weight once

Clock = Callable[[], float]
NUMBERS = 2**27
"""Numbers of 4 bytes, 512 MB together, far more than the last cache holds."""


class Bandwidth:
    """Measures the bandwidth of reading memory, repeatedly, so that it sees the same noise as the profile does."""

    def __init__(self, numbers: int = NUMBERS) -> None:
        self._numbers = torch.ones(numbers, dtype=torch.int32)

    def measure(self, times: int = 1, clock: Clock = time.perf_counter) -> float:
        """Return bytes per second of one pass over all of it on PyTorch's threads, the median of ``times``."""
        rates = []
        for _ in range(times):
            start = clock()
            self._numbers.max()
            rates.append(self._numbers.nbytes / (clock() - start))
        return sorted(rates)[times // 2]
