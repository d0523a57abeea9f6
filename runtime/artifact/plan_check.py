"""Validate the program fields that ExecuTorch trusts unchecked; a bad value aborts the process or corrupts memory.

ExecuTorch follows every offset of the file and bounds every index of a value, but not that of an operator. A kernel that is
handed a number in place of a list asserts; one that writes into a tensor without memory, or into a constant of the mapped file,
ends the process. Kernels check tensors of the right kinds themselves (docs/security.md).

``Table`` at the end reads flatbuffers and trusts no offset.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar

from hybridge.errors import ArtifactError
from hybridge.runtime.artifact.folder import CheckedFile
from hybridge.runtime.artifact.manifest import Manifest
from hybridge.runtime.pinned import (
    CALL,
    CHAIN,
    CONSTANTS,
    DELEGATE,
    DELEGATE_CALL,
    EXTRA_TENSOR_INFO,
    HEADER_MAGIC,
    INSTRUCTION,
    INT,
    INT_LIST,
    KERNEL_CALL,
    LIST,
    NAMED_DATA,
    NULL,
    OPERATOR,
    OPTIONAL_TENSOR_LIST,
    PLAN,
    PROCESSED,
    PROGRAM,
    SEGMENT,
    SPEC,
    TENSOR,
    TENSOR_FIELDS,
    TENSOR_LIST,
    VALUE,
    XNNPACK,
    Argument,
    arguments_of,
)

Entry = TypeVar("Entry")
Called = tuple[str, Sequence[Argument] | None]
"""An operator's name, and its arguments if they are known."""

ITEMS = {INT_LIST: ("q", {INT}), TENSOR_LIST: ("i", {TENSOR}), OPTIONAL_TENSOR_LIST: ("i", {TENSOR, NULL})}
"""Lists whose items are places of other values: the items' width, and the kinds of those values."""
NO_TENSOR = -1
"""The place of a tensor that is left out, in the lists that may leave some out."""


class Values(NamedTuple):
    """The kind of each value of a plan, and whether it is a constant or a list with one, which nothing may write into."""

    kinds: list[int]
    are_constant: list[bool]


def check_plans(manifest: Manifest, program: CheckedFile) -> None:
    """Check every plan of a program. Raises ArtifactError for an impossible one, or one that differs from the manifest.

    The arguments of an operator are not checked if the table of operators lacks it, as it does ExecuTorch's few untyped ones.
    """
    backends = {name for method in manifest.methods.values() for name in method.delegates}
    head = program.first(HEAD_BYTES)
    try:
        root = Table.root(plans_of(program))
        _check_segments(root, program.expected.size - segment_base(head))
        for plan in root.tables(PROGRAM.execution_plan):
            _check(plan, manifest.operators, backends)
    except Damaged as error:
        raise ArtifactError(f"the program's plan cannot be read ({error}); export the model again.") from None


def _check_segments(root: Table, size: int) -> None:
    """Check that named weights have segments of their own, and that each segment is within the ``size`` bytes of all.

    A backend does not ask how long a weight is: XNNPACK reads past the end of a shorter segment.
    """
    segments = [(each.number(SEGMENT.offset, "Q"), each.number(SEGMENT.size, "Q")) for each in root.tables(PROGRAM.segments)]
    if any(offset > size or length > size - offset for offset, length in segments):
        raise ArtifactError("a segment of the program leads out of its file. Export the model again.")
    named = [each.number(NAMED_DATA.segment_index, "I") for each in root.tables(PROGRAM.named_data)]
    constants = root.table(PROGRAM.constant_segment)
    others = {constants.number(CONSTANTS.segment_index, "I")} if constants else set()
    for plan in root.tables(PROGRAM.execution_plan):
        processed = [each.table(DELEGATE.processed) for each in plan.tables(PLAN.delegates)]
        others |= {each.number(PROCESSED.index, "I") for each in processed if each}
    if len(set(named)) < len(named) or others & set(named) or max(named, default=-1) >= len(segments):
        raise ArtifactError("two weights of the program are the same segment, or one is none of them. Export the model again.")


def _check(plan: Table, operators: Collection[str], backends: Collection[str]) -> None:
    name = plan.text(PLAN.name) or ""
    values = _values(name, plan)
    called = [_called(name, each, operators) for each in plan.tables(PLAN.operators)]
    delegates = [_delegate(name, each, backends) for each in plan.tables(PLAN.delegates)]
    for chain in plan.tables(PLAN.chains):
        for instruction in chain.tables(CHAIN.instructions):
            call = instruction.table(INSTRUCTION.instr_args)
            kind = instruction.number(INSTRUCTION.instr_args_type, "B") if call else 0
            if call is None or kind not in (KERNEL_CALL, DELEGATE_CALL):
                raise _refusal(name, "does something else than calling operators and backends")
            index, arguments = call.number(CALL.index, "i"), call.numbers(CALL.args, "i")
            if kind == KERNEL_CALL:
                _check_call(name, called, values, index, arguments)
            else:
                _check_delegate_call(name, delegates, values, index, arguments)


def _values(name: str, plan: Table) -> Values:
    """Check that tensors have memory and lists hold values of the right kind; return the values' kinds."""
    values = list(plan.tables(PLAN.values))
    kinds = [value.number(VALUE.val_type, "B") for value in values]
    contents = [_content(name, value) for value in values]
    are_constant = [kind == TENSOR and _is_constant(name, each) for kind, each in zip(kinds, contents, strict=True)]
    for place, (kind, content) in enumerate(zip(kinds, contents, strict=True)):
        if kind in ITEMS:
            items = _items(name, kinds, kind, content)
            are_constant[place] = any(are_constant[item] for item in items)
    return Values(kinds, are_constant)


def _content(name: str, value: Table) -> Table:
    if (content := value.table(VALUE.val)) is None:
        raise _refusal(name, "has a value that is nothing")
    return content


def _is_constant(name: str, tensor: Table) -> bool:
    """Return whether a tensor is a constant: one with data. All others, inputs included, have an allocation."""
    if tensor.table(TENSOR_FIELDS.allocation_info) is not None:
        return False
    extra = tensor.table(TENSOR_FIELDS.extra_tensor_info)
    if (
        extra is not None and extra.text(EXTRA_TENSOR_INFO.fully_qualified_name) is not None
    ):  # only buffers of the state have names
        raise _refusal(name, "has a buffer of the state without memory")
    if tensor.number(TENSOR_FIELDS.data_buffer_idx, "I") == 0:
        raise _refusal(name, "has a tensor without memory")
    return True


def _items(name: str, kinds: Sequence[int], kind: int, content: Table) -> Sequence[int]:
    """Return the places of a list's items."""
    width, wanted = ITEMS[kind]
    items = content.numbers(LIST.items, width)
    if kind == OPTIONAL_TENSOR_LIST:
        items = tuple(each for each in items if each != NO_TENSOR)
    if not wanted.issuperset(_take(name, kinds, items)):
        raise _refusal(name, "has a list of other things than it should hold")
    return items


def _called(name: str, operator: Table, operators: Collection[str]) -> Called:
    """Return an operator's name and its arguments; None if they are not known."""
    overload = operator.text(OPERATOR.overload)
    called = (operator.text(OPERATOR.name) or "") + (f".{overload}" if overload else "")
    if called not in operators:
        raise _refusal(name, f"calls {called[:80]!r}, which its manifest does not list")
    return called, arguments_of(called)


def _delegate(name: str, delegate: Table, backends: Collection[str]) -> str:
    backend = delegate.text(DELEGATE.id) or ""
    if backend not in backends:
        raise _refusal(name, f"hands parts to {backend[:80]!r}, which its manifest does not list")
    for spec in delegate.tables(DELEGATE.compile_specs):
        spec.text(SPEC.key)  # a text, or this raises: the runtime may want to print it
    return backend


def _check_call(name: str, called: Sequence[Called], values: Values, index: int, arguments: Sequence[int]) -> None:
    operator, wanted = _entry(name, called, index, "operator")
    given = _take(name, values.kinds, arguments)
    if wanted is None:
        return
    if len(given) < len(wanted):
        raise _refusal(name, f"hands {operator} {len(given)} of {len(wanted)} values")
    for place, (kind, argument) in enumerate(zip(given, wanted, strict=False)):  # after them come those that it wrote
        if kind not in argument.kinds:
            raise _refusal(name, f"hands {operator} a value of another kind as its value {place}")
        if argument.is_written and values.are_constant[arguments[place]]:
            raise _refusal(name, f"lets {operator} write into a constant, its value {place}")


def _check_delegate_call(name: str, delegates: Sequence[str], values: Values, index: int, arguments: Sequence[int]) -> None:
    """Check a call of a backend, which writes into its last values; only the backend knows into how many."""
    backend = _entry(name, delegates, index, "backend")
    _take(name, values.kinds, arguments)
    written = arguments[-1:] if backend == XNNPACK else arguments  # of others none takes a constant as an input
    if any(values.are_constant[each] for each in written):
        raise _refusal(name, f"lets {backend} write into a constant")


def _entry(name: str, entries: Sequence[Entry], index: int, what: str) -> Entry:
    if not 0 <= index < len(entries):
        raise _refusal(name, f"calls {what} {index} of {len(entries)}")
    return entries[index]


def _take(name: str, kinds: Sequence[int], places: Sequence[int]) -> list[int]:
    """Return the kinds of the values at these places."""
    if places and (min(places) < 0 or max(places) >= len(kinds)):
        raise _refusal(name, f"takes a value that is none of its {len(kinds)}")
    return [kinds[place] for place in places]


def _refusal(method: str, what: str) -> ArtifactError:
    return ArtifactError(f"the program's method {method[:80]!r} {what}. Export the model again.")


Damaged = (struct.error, IndexError, UnicodeDecodeError)
"""The errors of reading data that is not a flatbuffer."""
HEAD_BYTES = 32
"""Bytes of a file's head, which has the size of its plans and the offset of its segments."""
LARGEST_PLAN = 1 << 28
"""Most bytes of the plans; those of large models take a hundredth of it."""
MOST_ENTRIES = 1 << 20
"""Most entries of a list."""


MOST_FIELDS = 16
"""More than the number of any field that is asked for."""


class Table:
    """A table of a flatbuffer (https://flatbuffers.dev/internals), by its place in the data.

    Fields are found by number through a list of offsets, which tables with the same fields share; every offset counts from its
    own place. Missing fields are None, 0 or empty. An offset that leads out of the data raises ``Damaged``.
    """

    __slots__ = ("_data", "_lists", "_place")

    def __init__(self, data: bytes, place: int, lists: dict[int, tuple[int, ...]]) -> None:
        """Take a table of ``data``; ``lists`` has the offsets of fields by their list, read once for all tables."""
        self._data, self._place, self._lists = data, place, lists

    @classmethod
    def root(cls, data: bytes) -> Table:
        """Return the root table."""
        return cls(data, _follow(data, 0), {})

    def table(self, field: int) -> Table | None:
        """Return the table that a field holds."""
        place = self._field(field)
        return None if place is None else Table(self._data, _follow(self._data, place), self._lists)

    def tables(self, field: int) -> Iterator[Table]:
        """Yield the tables of a field that is a list of them."""
        start, count = self._list(field)
        for place in range(start, start + 4 * count, 4):
            yield Table(self._data, _follow(self._data, place), self._lists)

    def entry(self, field: int, index: int) -> Table:
        """Return one table of a field that is a list of them. Raises IndexError."""
        start, count = self._list(field)
        if not 0 <= index < count:
            raise IndexError("a value is at no place")
        return Table(self._data, _follow(self._data, start + 4 * index), self._lists)

    def text(self, field: int) -> str | None:
        """Return the text of a field."""
        start, count = self._list(field)
        return self._data[start : start + count].decode() if start else None

    def number(self, field: int, kind: str) -> int:
        """Return the number of a field; ``kind`` is one of struct's letters."""
        place = self._field(field)
        return 0 if place is None else NUMBERS[kind](self._data, place)[0]

    def numbers(self, field: int, kind: str) -> tuple[int, ...]:
        """Return the numbers of a field that is a list of them."""
        start, count = self._list(field)
        return struct.unpack_from(f"<{count}{kind}", self._data, start)

    def _list(self, field: int) -> tuple[int, int]:
        """Return the place of a list's first entry and their number; (0, 0) without the list."""
        place = self._field(field)
        if place is None:
            return 0, 0
        start = _follow(self._data, place)
        count = NUMBERS["I"](self._data, start)[0]
        if count > MOST_ENTRIES:
            raise struct.error(f"a list has {count} entries")
        return start + 4, count

    def _field(self, field: int) -> int | None:
        """Return the place of a field; None without it."""
        at = self._place - NUMBERS["i"](self._data, self._place)[0]
        offsets = self._lists.get(at)
        if offsets is None:
            offsets = self._lists[at] = _field_offsets(self._data, at)
        offset = offsets[field] if field < len(offsets) else 0
        return self._place + offset if offset else None


NUMBERS = {kind: struct.Struct(f"<{kind}").unpack_from for kind in "bBHiIqQ"}
"""Functions that read a little-endian number from a place on. They raise struct.error if it leads out of the data."""


def _field_offsets(data: bytes, place: int) -> tuple[int, ...]:
    """Return the offsets of a table's fields, of which there are ``MOST_FIELDS`` at most."""
    if place < 0:  # a list before its tables; struct would count from the end
        raise struct.error("an offset leads out of it")
    (size,) = NUMBERS["H"](data, place)
    count = min(max(0, size - 3) // 2, MOST_FIELDS)  # behind the sizes of the list and of the table
    return struct.unpack_from(f"<{count}H", data, place + 4)


def _follow(data: bytes, place: int) -> int:
    offset: int = NUMBERS["I"](data, place)[0]
    return place + offset


def plan_bytes(head: bytes) -> int:
    """Return the number of bytes that the plans take at most, from the program's first on, by its first ``HEAD_BYTES``."""
    return min(NUMBERS["Q"](head, 16)[0], LARGEST_PLAN) if _has_header(head) else LARGEST_PLAN


def plans_of(program: CheckedFile) -> bytes:
    """Return the first bytes of a program, which include its plans."""
    return program.first(plan_bytes(program.first(HEAD_BYTES)))


def segment_base(head: bytes) -> int:
    """Return the offset of a program's segments, by its first ``HEAD_BYTES``; 0 without any."""
    return NUMBERS["Q"](head, 24)[0] if _has_header(head) else 0


def _has_header(head: bytes) -> bool:
    return len(head) == HEAD_BYTES and head[8:12] == HEADER_MAGIC
