"""A weight of a checkpoint as rows and columns of a file's tensors, with the bits that those have there.

A table's ``make`` works on floats. It is run on the indices of rows and of columns in place of them: if it only moves them,
what comes out says how, and the whole numbers and their factors are moved likewise. A weight that is more than moved rows, or
that is made of tensors whose blocks have no form in common, has no blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hybridge.export.checkpoint.gguf.file import GgufTensor
from hybridge.export.layers.rounded_weight import RoundedWeight
from hybridge.export.operators.panels import Factors


def selected(make: Callable[..., Tensor], sources: Sequence[GgufTensor]) -> RoundedWeight | None:
    """Return the blocks of the weight that ``make`` makes of ``sources``, as rows [N, K] of a layer's inputs.

    Of several matrices, such as experts', the rows lie one below the other, however the weight has them.
    """
    columns = sources[0].shape[-1]
    if any(len(each.shape) < 2 or each.shape[-1] != columns for each in sources):
        return None
    moved = _moves(make, sources)
    joined = _joined([each.blocks() for each in sources]) if moved else None
    if moved is None or joined is None:
        return None
    rows, order = moved
    joined = joined if rows is None else joined.mapped(lambda part: part[rows])
    return joined if order is None else _with_columns(joined, order)


def _moves(make: Callable[..., Tensor], sources: Sequence[GgufTensor]) -> tuple[Tensor | None, Tensor | None] | None:
    """Rows of all sources [N], and columns [K], in the order of the weight; None in place of either that stays as it is."""
    rows, columns, first = [], [], 0
    for source in sources:
        each = torch.arange(first, first + source.rows, dtype=torch.int32).view(*source.shape[:-1], 1)
        rows.append(each.expand(source.shape))
        columns.append(torch.arange(source.shape[-1], dtype=torch.int32).expand(source.shape))
        first += source.rows
    moved_rows = make(*rows)
    if moved_rows is rows[0]:
        return None, None
    moved_columns = make(*columns)
    if moved_rows.dtype != torch.int32 or moved_rows.dim() < 2:
        return None
    if bool((moved_columns[..., 0] == moved_columns[..., -1]).all()):  # inputs are along the other dimension
        moved_rows, moved_columns = moved_rows.transpose(-1, -2), moved_columns.transpose(-1, -2)
    row, column = moved_rows[..., :1], moved_columns.flatten(0, -2)[0]
    if not bool((moved_rows == row).all()) or not bool((moved_columns == column).all()):
        return None
    stays = bool((column == torch.arange(len(column))).all())
    return row.flatten().long(), None if stays else column.long()


def _joined(parts: Sequence[RoundedWeight | None]) -> RoundedWeight | None:
    """The rows of several weights as one of as many bits as the widest; None where their factors are of different forms."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if len(found) == 1:
        return found[0]
    if any(_form(part) != _form(found[0]) for part in found):
        return None
    bits = max(part.bits for part in found)
    wide = [_widened(part, bits) for part in found]
    quanta = torch.cat([part.quanta for part in wide])
    scales, minima, superscales = (
        None if each[0] is None else torch.cat(each) for each in zip(*(part.factors[:3] for part in wide), strict=True)
    )
    factors = Factors(scales, minima, superscales, wide[0].factors.table)
    return RoundedWeight(quanta=quanta, factors=factors, bits=8 * quanta.element_size() if bits > 8 else bits)


def _form(weight: RoundedWeight) -> object:
    factors = weight.factors
    table = None if factors.table is None else tuple(factors.table.tolist())
    return [None if part is None else (part.dtype, part.shape[1]) for part in factors[:3]], table


def _widened(weight: RoundedWeight, bits: int) -> RoundedWeight:
    """The same numbers in more bits; with minima they are counted from the lowest, else from the middle."""
    if bits > 8 or weight.factors.minima is None:
        return replace(weight, bits=bits)
    return replace(weight, quanta=weight.quanta + ((1 << weight.bits) - (1 << bits)) // 2, bits=bits)


def _with_columns(weight: RoundedWeight, order: Tensor) -> RoundedWeight | None:
    """The columns in another order, in which those that share factors stay together; None where they do not.

    Columns of a superblock may part: its factors are there for each part of it then.
    """
    scales, minima, superscales, table = weight.factors
    quanta = weight.quanta[:, order]
    if scales is None:
        return replace(weight, quanta=quanta)
    groups = _groups(order, scales.shape[1])
    if groups is None:
        return None
    if superscales is not None:
        each = 1 if minima is None else 2  # a superblock's numbers
        spread = superscales.unflatten(1, (-1, each))
        while (blocks := _groups(order, spread.shape[1])) is None:
            spread = spread.repeat_interleave(2, dim=1)
        superscales = spread[:, blocks].flatten(1)
    moved = Factors(scales[:, groups], None if minima is None else minima[:, groups], superscales, table)
    return replace(weight, quanta=quanta, factors=moved)


def _groups(order: Tensor, count: int) -> Tensor | None:
    """The order of ``count`` equal groups of columns, if each stays together."""
    parts = order.view(count, -1)
    size = parts.shape[1]
    whole = parts[:, :1] + torch.arange(size)
    return parts[:, 0] // size if parts.equal(whole) and not bool((parts[:, 0] % size).any()) else None
