"""Quantized blocks of a GGUF file as whole numbers and factors, and their rows and columns in another order.

The same bits in the order of our kernels. Source: ggml's ``ggml-common.h`` and ``ggml-quants.c``; gguf's ``quants.py`` has the
numbers that each block stands for. Axes: N rows, K columns, B blocks of a row; after them the bytes of a block, or its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridge.runtime.pack.panels import Array


@dataclass(frozen=True)
class Blocks:
    """A weight [N, K] as int8 ``quanta`` of ``bits`` bits with factors by rows, or as floats of 16 or 32 bits without.

    Bfloat16 is in uint16, for want of its type. The factors are those of ``hybridge.export.operators.linear.Factors``.
    """

    quanta: Array
    bits: int
    scales: Array | None = None
    minima: Array | None = None
    superscales: Array | None = None
    table: Array | None = None

    def mapped(self, change: Callable[[Array], Array]) -> Blocks:
        """Apply ``change`` to each array that has a row for each row of the weight."""
        quanta, scales, minima, superscales = (
            None if part is None else change(part) for part in (self.quanta, self.scales, self.minima, self.superscales)
        )
        assert quanta is not None
        return replace(self, quanta=quanta, scales=scales, minima=minima, superscales=superscales)


FLOATS: Mapping[int, type[np.generic]] = {0: np.float32, 1: np.float16, 30: np.uint16}
"""Types that are plain floats, by GGML's number: float32, float16, bfloat16."""

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode(data: Array, kind: int, block_bytes: int) -> Blocks | None:
    """Decode uint8 ``data`` [N, bytes of a row] of GGML's type ``kind``; None for a type without kernels."""
    if kind in FLOATS:
        dtype = np.dtype(FLOATS[kind])
        return Blocks(quanta=np.ascontiguousarray(data).view(dtype), bits=8 * dtype.itemsize)
    if kind not in KINDS:
        return None
    bits, parts = KINDS[kind]
    found = parts(data.reshape(len(data), -1, block_bytes))
    codes = found.quanta.reshape(len(data), -1)
    quanta = np.ascontiguousarray(codes).view(np.int8)
    return replace(found, quanta=quanta if bits == 8 else quanta - np.int8(1 << (bits - 1)), bits=bits)


def _spread(data: Array, run: int, bits: int) -> Array:
    """Unpack numbers of ``bits`` to a byte each: first the lowest bits of ``run`` bytes, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts: Array = data.reshape(*data.shape[:-1], -1, 1, run) >> shifts
    spread: Array = (parts & np.uint8((1 << bits) - 1)).reshape(*data.shape[:-1], -1)
    return spread


def _halves(data: Array) -> Array:
    """Return the float16 numbers [N, …] in bytes."""
    return np.ascontiguousarray(data).view(np.float16).reshape(len(data), -1)


def _signed(data: Array) -> Array:
    return np.ascontiguousarray(data).view(np.int8).reshape(len(data), -1)


def _plain(codes: Array, scales: Array, minima: Array | None = None, table: Sequence[int] | None = None) -> Blocks:
    """Return blocks with a float16 scale each, and a minimum, in bytes."""
    found = None if minima is None else _halves(minima)
    return Blocks(quanta=codes, bits=0, scales=_halves(scales), minima=found, table=_table(table))


def _table(numbers: Sequence[int] | None) -> Array | None:
    return None if numbers is None else np.array(numbers, np.int8)


def _fives(blocks: Array) -> Array:
    """Return 32 numbers of 4 bytes with their fifth bits and 16 bytes with the others."""
    fives: Array = _spread(blocks[..., 4:], 16, 4) | (_spread(blocks[..., :4], 1, 1) << 4)
    return fives


def _superblock(codes: Array, head: Array) -> Blocks:
    """Decode the first 16 bytes of Q4_K and Q5_K: two float16 numbers, and eight scales and eight minima of 6 bits."""
    scales, minima, upper = np.moveaxis(head[..., 4:].reshape(*head.shape[:-1], 3, 4), -2, 0)
    low = np.concatenate([scales & 63, (upper & 15) | ((scales >> 2) & 48)], axis=-1)
    subtracted = np.concatenate([minima & 63, (upper >> 4) | ((minima >> 2) & 48)], axis=-1)
    pairs = _halves(head[..., :4]) * np.tile(np.array([1.0, -1.0], np.float16), head.shape[1])
    return Blocks(quanta=codes, bits=0, scales=_signed(low), minima=_signed(subtracted), superscales=pairs)


def _q6_k(blocks: Array) -> Blocks:
    codes = _spread(blocks[..., :128], 64, 4) | (_spread(blocks[..., 128:192], 32, 2) << 4)
    return Blocks(quanta=codes, bits=0, scales=_signed(blocks[..., 192:208]), superscales=_halves(blocks[..., 208:]))


def _iq4_xs(blocks: Array) -> Blocks:
    scales = _signed(_spread(blocks[..., 4:8], 1, 4) | (_spread(blocks[..., 2:4], 1, 2) << 4)) - np.int8(32)
    codes = _spread(blocks[..., 8:], 16, 4)
    return Blocks(quanta=codes, bits=0, scales=scales, superscales=_halves(blocks[..., :2]), table=_table(IQ4))


def _mxfp4(blocks: Array) -> Blocks:
    exponents = np.ascontiguousarray(blocks[..., 0])
    return Blocks(quanta=_spread(blocks[..., 1:], 16, 4), bits=0, scales=exponents, table=_table(MXFP4))


KINDS: Mapping[int, tuple[int, Callable[[Array], Blocks]]] = {
    # Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K
    2: (4, lambda b: _plain(_spread(b[..., 2:], 16, 4), b[..., :2])),
    3: (4, lambda b: _plain(_spread(b[..., 4:], 16, 4), b[..., :2], b[..., 2:4])),
    6: (5, lambda b: _plain(_fives(b[..., 2:]), b[..., :2])),
    7: (5, lambda b: _plain(_fives(b[..., 4:]), b[..., :2], b[..., 2:4])),
    8: (8, lambda b: _plain(b[..., 2:], b[..., :2])),
    12: (4, lambda b: _superblock(_spread(b[..., 16:], 32, 4), b[..., :16])),
    13: (5, lambda b: _superblock(_spread(b[..., 48:], 32, 4) | (_spread(b[..., 16:48], 32, 1) << 4), b[..., :16])),
    14: (6, _q6_k),
    # IQ4_NL, IQ4_XS, MXFP4
    20: (4, lambda b: _plain(_spread(b[..., 2:], 16, 4), b[..., :2], table=IQ4)),
    23: (4, _iq4_xs),
    39: (4, _mxfp4),
}
"""Bits of a number and decoder of the blocks, by GGML's number of a type."""

SIZES: Mapping[int, tuple[int, int]] = {
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    20: (32, 18),
    23: (256, 136),
    39: (32, 17),
    **{kind: (1, np.dtype(dtype).itemsize) for kind, dtype in FLOATS.items()},
}
"""Elements and bytes of a block, by GGML's number of a type."""

NAMES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4",
}  # fmt: skip
"""GGML's names of these types."""


def numbers(weight: Blocks) -> Array:
    """Return float32 [N, K] of a weight, to the bit as llama.cpp's package does."""
    if weight.scales is None:
        return floats(weight.quanta)
    if weight.table is not None:
        whole = weight.table.astype(np.float32)[weight.quanta.astype(np.intp) + 8]
    else:
        whole = weight.quanta.astype(np.float32) + np.float32(0 if weight.minima is None else 1 << (weight.bits - 1))
    pairs = None
    if weight.superscales is not None:
        pairs = weight.superscales.reshape(len(whole), -1, 1 if weight.minima is None else 2)
    grouped = whole.reshape(len(whole), weight.scales.shape[1], -1)
    grouped = grouped * _scaled(weight.scales, None if pairs is None else pairs[..., 0])
    if weight.minima is not None:
        grouped = grouped + _scaled(weight.minima, None if pairs is None else pairs[..., 1])
    return grouped.reshape(weight.quanta.shape)


def _scaled(values: Array, superscales: Array | None) -> Array:
    """Return scales or minima as float32 [N, G, 1]."""
    if values.dtype == np.uint8:
        exponents = values.astype(np.int32)
        bits = np.where(exponents < 2, (exponents + 1) << 21, (exponents - 1) << 23)
        return bits.astype(np.int32).view(np.float32)[..., None]
    scaled = values.astype(np.float32)
    if superscales is not None:
        parts = scaled.reshape(len(scaled), superscales.shape[1], -1) * superscales.astype(np.float32)[..., None]
        scaled = parts.reshape(len(scaled), -1)
    return scaled[..., None]


# Move quantized blocks as ``make`` moves numbers. ``make`` is run on the indices of rows and of columns: if it only
# moves them, its result says how, and quantized numbers and their factors are moved likewise. A weight has no blocks if
# it is more than moved rows, or if the blocks of its tensors have no form in common.


def selected(
    make: Callable[..., Array], shapes: Sequence[tuple[int, ...]], blocks: Callable[[], Sequence[Blocks | None]]
) -> Blocks | None:
    """Return the blocks of the weight that ``make`` makes of tensors, as rows [N, K], or None if it has none.

    The rows of several matrices, such as experts', are joined, however the weight stores them.

    Args:
        make: makes the weight of arrays with the tensors' shapes.
        shapes: of the tensors.
        blocks: decodes the tensors; it is called only if rows and columns merely move.
    """
    columns = shapes[0][-1]
    if any(len(shape) < 2 or shape[-1] != columns for shape in shapes):
        return None
    moved = _moves(make, shapes)
    joined = _joined(blocks()) if moved else None
    if moved is None or joined is None:
        return None
    rows, order = moved
    joined = joined if rows is None else joined.mapped(lambda part: part[rows])
    return joined if order is None else _with_columns(joined, order)


def _moves(make: Callable[..., Array], shapes: Sequence[tuple[int, ...]]) -> tuple[Array | None, Array | None] | None:
    """Return the indices of rows [N] and columns [K] in the weight's order, None for those that stay; None if more happens."""
    rows, columns, first = [], [], 0
    for shape in shapes:
        count = int(np.prod(shape[:-1]))
        each = np.arange(first, first + count, dtype=np.int32).reshape(*shape[:-1], 1)
        rows.append(np.broadcast_to(each, shape))
        columns.append(np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape))
        first += count
    moved_rows = make(*rows)
    if moved_rows is rows[0]:
        return None, None
    moved_columns = make(*columns)
    if moved_rows.dtype != np.int32 or moved_rows.ndim < 2:
        return None
    if (moved_columns[..., 0] == moved_columns[..., -1]).all():  # the inputs are along the other dimension
        moved_rows, moved_columns = moved_rows.swapaxes(-1, -2), moved_columns.swapaxes(-1, -2)
    row, column = moved_rows[..., :1], moved_columns.reshape(-1, moved_columns.shape[-1])[0]
    if not (moved_rows == row).all() or not (moved_columns == column).all():
        return None
    stays = bool((column == np.arange(len(column))).all())
    return row.reshape(-1), None if stays else column


def _joined(parts: Sequence[Blocks | None]) -> Blocks | None:
    """Join the rows of several weights in the most bits of any; None if their factors have different forms."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if len(found) == 1:
        return found[0]
    if any(_form(part) != _form(found[0]) for part in found):
        return None
    bits = max(part.bits for part in found)
    if bits > 8 and len({part.quanta.dtype for part in found}) > 1:
        found, bits = [replace(part, quanta=floats(part.quanta), bits=32) for part in found], 32
    wide = [_widened(part, bits) for part in found]
    columns = zip(*((part.quanta, part.scales, part.minima, part.superscales) for part in wide), strict=True)
    quanta, scales, minima, superscales = (None if each[0] is None else np.concatenate(each) for each in columns)
    assert quanta is not None
    return Blocks(quanta=quanta, bits=bits, scales=scales, minima=minima, superscales=superscales, table=wide[0].table)


def floats(numbers: Array) -> Array:
    """Return stored floats in float32."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _form(weight: Blocks) -> object:
    table = None if weight.table is None else tuple(weight.table.tolist())
    factors = (weight.scales, weight.minima, weight.superscales)
    return [None if part is None else (part.dtype, part.shape[1]) for part in factors], table


def _widened(weight: Blocks, bits: int) -> Blocks:
    """Return the same numbers in more bits. With minima they are counted from the lowest, without from the middle."""
    if bits > 8 or weight.minima is None:
        return replace(weight, bits=bits)
    return replace(weight, quanta=weight.quanta + np.int8(((1 << weight.bits) - (1 << bits)) // 2), bits=bits)


def _with_columns(weight: Blocks, order: Array) -> Blocks | None:
    """Reorder columns; None if columns that share factors come apart.

    Columns of a superblock may come apart, because its factors are repeated for each part.
    """
    quanta = weight.quanta[:, order]
    if weight.scales is None:
        return replace(weight, quanta=quanta)
    groups = _groups(order, weight.scales.shape[1])
    if groups is None:
        return None
    superscales = weight.superscales
    if superscales is not None:
        each = 1 if weight.minima is None else 2  # factors of a superblock
        spread = superscales.reshape(len(superscales), -1, each)
        while (blocks := _groups(order, spread.shape[1])) is None:
            spread = spread.repeat(2, axis=1)
        superscales = spread[:, blocks].reshape(len(superscales), -1)
    minima = None if weight.minima is None else weight.minima[:, groups]
    return replace(weight, quanta=quanta, scales=weight.scales[:, groups], minima=minima, superscales=superscales)


def _groups(order: Array, count: int) -> Array | None:
    """Return the order of ``count`` equal groups of columns, or None if one comes apart."""
    parts = order.reshape(count, -1)
    size = parts.shape[1]
    whole = parts[:, :1] + np.arange(size)
    return parts[:, 0] // size if (parts == whole).all() and not (parts[:, 0] % size).any() else None
