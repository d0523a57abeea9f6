"""The instructions of a plan in words: operators, the tensors that they read and write, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridge.export.pinned.program_format import (
    CONTROL_FLOW,
    NUMBER_OF_TENSOR,
    Chain,
    DelegateCall,
    KernelCall,
    ScalarType,
    Tensor,
    TensorList,
)

SIZES = {
    ScalarType.BYTE: 1, ScalarType.CHAR: 1, ScalarType.BOOL: 1, ScalarType.SHORT: 2, ScalarType.HALF: 2,
    ScalarType.BFLOAT16: 2, ScalarType.INT: 4, ScalarType.FLOAT: 4, ScalarType.LONG: 8, ScalarType.DOUBLE: 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One call: operator ``name`` with its overload, or a backend's; tensors in order, those that it makes apart."""

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
        """Return the state that it touches, but for single numbers."""
        return tuple(each for each in self.tensors if is_state(each) and len(each.sizes) > 1)

    @property
    def is_bookkeeping(self) -> bool:
        """Return whether it makes positions, masks or indices, which others cannot run without."""
        if self.name.startswith(CONTROL_FLOW) or NUMBER_OF_TENSOR in self.name:
            return True
        writes = self.name.partition(".")[0].endswith("_")
        return not writes and not self.state and any(each.scalar_type != ScalarType.FLOAT for each in self.made)


def read_instructions(plan: Any) -> list[Instruction]:
    """Return the calls of a plan in order; freeing memory and jumps are none."""
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
    """Return the plan with only the calls ``kept`` and what they hand to backends, under another name and without outputs."""
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
