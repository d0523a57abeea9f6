"""The names of a program's state in its own order, which the runtime's Python has no function for."""

from __future__ import annotations

from collections.abc import Iterator

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.artifacts.checked_file import CheckedFile
from hybridge.runtime.artifacts.flatbuffer import Damaged, Table, unpack
from hybridge.runtime.pinned import EXTRA_TENSOR_INFO, HEADER_MAGIC, PLAN, PROGRAM, TENSOR, TENSOR_FIELDS, VALUE

HEAD_BYTES = 32
"""So many bytes of a file say how many its plans take, and where its segments begin."""
LARGEST_PLAN = 1 << 28
"""Bytes; those of large models take a hundredth of it."""


def plan_bytes(head: bytes) -> int:
    """Return how many bytes of a program from its first on are the plans, by its first ``HEAD_BYTES``; at most so many."""
    return min(unpack("Q", head, 16)[0], LARGEST_PLAN) if _has_header(head) else LARGEST_PLAN


def plans_of(program: CheckedFile) -> bytes:
    """Return the first bytes of a program, of which the plans are part."""
    return program.first(plan_bytes(program.first(HEAD_BYTES)))


def segment_base(head: bytes) -> int:
    """Return where the segments of a program begin in its file, by its first ``HEAD_BYTES``; 0 where it has none."""
    return unpack("Q", head, 24)[0] if _has_header(head) else 0


def _has_header(head: bytes) -> bool:
    return len(head) == HEAD_BYTES and head[8:12] == HEADER_MAGIC


def buffer_names_of(program: bytes, method: str) -> list[str]:
    """Return the qualified names of the buffers of ``method``, from the first bytes of a file of which the plans are part.

    Raises ArtifactError where it has no such method, or is no program.
    """
    try:
        for plan in Table.root(program).tables(PROGRAM.execution_plan):
            if plan.text(PLAN.name) == method:
                return list(_names(plan))
    except Damaged as error:
        raise ArtifactError(f"the program's plan cannot be read ({error}); export the model again.") from None
    raise ArtifactError(f"the program has no method {method}; export the model again.")


def _names(plan: Table) -> Iterator[str]:
    """A value is part of the state if it is a tensor with a name."""
    for value in plan.tables(PLAN.values):
        tensor = value.table(VALUE.val) if value.number(VALUE.val_type, "B") == TENSOR else None
        extra = tensor.table(TENSOR_FIELDS.extra_tensor_info) if tensor else None
        name = extra.text(EXTRA_TENSOR_INFO.fully_qualified_name) if extra else None
        if name is not None:
            yield name
