"""Weights in panels of 16 rows as ``panels.h`` draws them: packed, and taken apart again.

Axes: N rows, K columns, G groups of columns that share a scale, S superblocks of groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 16
"""Rows of a panel."""

UNITS = {5: 32, 6: 16}
"""Columns whose upper bits fill 64 bytes, by the bits of a weight; they lie behind those columns' lower four bits."""

BITS = {64: 4, 320: 5, 192: 6}
"""Bits by the last dimension of a uint8 tensor of panels."""

PANEL_BYTES = {8: 64} | {bits: size for size, bits in BITS.items()}
"""The last dimension by the bits."""


class Factors(NamedTuple):
    """What whole numbers [N, K] become weights by, each but ``table`` in rows [N, ...] or in panels [N / 16, ..., 16].

    scales, and minima to be added: float16 [N, G], or int8 [N, G] times a float16 of ``superscales``: [N, S], or [N, 2 S] with
    each superblock's factors of scales and of minima. Scales may also be uint8, exponents of two (e8m0, halved). With minima,
    whole numbers are counted from 0, without from the middle. table: int8 [16], which whole numbers of 4 bits choose from.
    """

    scales: Tensor | None = None
    minima: Tensor | None = None
    superscales: Tensor | None = None
    table: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether there are scales by themselves, or nothing."""
        plain = self.scales is None or self.scales.is_floating_point()
        return plain and self.minima is None and self.superscales is None and self.table is None

    def in_panels(self) -> Factors:
        """Return these factors of rows in panels; float32 become float16."""
        return self.mapped(pack_factors)

    def in_rows(self, rows: int) -> Factors:
        """Return these factors of panels by rows."""
        return self.mapped(lambda part: part.transpose(1, 2).reshape(-1, part.shape[1])[:rows])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Factors:
        """Return these with ``change`` made of each tensor that has rows, or panels, as the weight has them."""
        scales, minima, superscales = (None if part is None else change(part) for part in self[:3])
        return Factors(scales, minima, superscales, self.table)


def pack(quanta: Tensor, bits: int) -> Tensor:
    """Pack int8 [N, K], -2^(bits - 1) or more, into panels.

    uint8 [N / 16, K / 8, 64] for 4 bits, [N / 16, K / 32, 320] for 5, [N / 16, K / 16, 192] for 6; int8 [N / 16, K / 4, 64] for
    8. 16 and 32 bits: floats [N, K] of any type to [N / 16, K, 16].
    """
    N, K = quanta.shape
    padded = F.pad(quanta, (0, 0, 0, -N % LANES))
    if bits >= 16:
        return padded.view(-1, LANES, K).transpose(1, 2).contiguous()
    quads = padded.view(-1, LANES, K // 4, 4).transpose(1, 2).reshape(-1, K // 4, 64)
    if bits == 8:
        return quads.contiguous()
    codes = (quads + (1 << (bits - 1))).to(torch.uint8)
    nibbles = codes & 15
    low = nibbles[:, ::2] | (nibbles[:, 1::2] << 4)
    if bits == 4:
        return low
    unit = UNITS[bits]
    upper = (codes >> 4).unflatten(1, (-1, unit // 4))
    shifts = torch.arange(0, 8, bits - 4, dtype=torch.uint8).view(-1, 1)
    high = (upper << shifts).sum(2, dtype=torch.uint8)
    return torch.cat([low.unflatten(1, (-1, unit // 8)).flatten(2), high], dim=2)


def unpack(packed: Tensor, rows: int) -> Tensor:
    """Unpack what ``pack`` made to [N, K]."""
    panels = packed.shape[0]
    if packed.is_floating_point():
        return packed.transpose(1, 2).reshape(-1, packed.shape[1])[:rows]
    if packed.dtype == torch.int8:
        quads = packed
    else:
        bits = BITS[packed.shape[2]]
        low, high = packed, None
        if bits > 4:
            low, high = packed[..., :-64].reshape(panels, -1, 64), packed[..., -64:]
        codes = torch.stack([low & 15, low >> 4], dim=2).flatten(1, 2)
        if high is not None:
            shifts = torch.arange(0, 8, bits - 4, dtype=torch.uint8).view(-1, 1)
            upper = (high.unsqueeze(2) >> shifts) & ((1 << (bits - 4)) - 1)
            codes = codes | (upper << 4).flatten(1, 2)
        quads = codes.to(torch.int8) - (1 << (bits - 1))
    return quads.view(panels, -1, LANES, 4).transpose(1, 2).reshape(panels * LANES, -1)[:rows]


def pack_factors(values: Tensor) -> Tensor:
    """Pack values [N, G] as [N / 16, G, 16], float32 ones in float16."""
    values = values.half() if values.is_floating_point() else values
    padded = F.pad(values, (0, 0, 0, -values.shape[0] % LANES))
    return padded.view(-1, LANES, values.shape[1]).transpose(1, 2).contiguous()


def weights(packed: Tensor, factors: Factors, rows: int) -> Tensor:
    """Return float32 [N, K] of weights in panels and their factors."""
    bits = 8 if packed.dtype == torch.int8 else BITS.get(packed.shape[2], 32)
    return numbers(unpack(packed, rows), bits, factors.in_rows(rows))


def numbers(quanta: Tensor, bits: int, factors: Factors) -> Tensor:
    """Return float32 [N, K] of int8 [N, K] and factors by rows, or of floats without.

    To the bit as llama.cpp's package does.
    """
    scales, minima, superscales, table = factors
    if scales is None:
        return quanta.float()
    if table is not None:
        whole = table.float()[(quanta + 8).long()]
    else:
        whole = quanta.float() + (0 if minima is None else 1 << (bits - 1))
    pairs = None if superscales is None else superscales.unflatten(1, (-1, 1 if minima is None else 2))
    grouped = whole.unflatten(1, (scales.shape[1], -1)) * _scaled(scales, None if pairs is None else pairs[..., 0])
    if minima is not None:
        grouped = grouped + _scaled(minima, None if pairs is None else pairs[..., 1])
    flat: Tensor = grouped.flatten(1)
    return flat


def _scaled(values: Tensor, superscales: Tensor | None) -> Tensor:
    """Scales or minima as float32 [N, G, 1]."""
    if values.dtype == torch.uint8:
        exponents = values.int()
        bits = torch.where(exponents < 2, (exponents + 1) << 21, (exponents - 1) << 23)
        return bits.view(torch.float32).unsqueeze(2)
    floats = values.float()
    if superscales is not None:
        floats = (floats.unflatten(1, (superscales.shape[1], -1)) * superscales.float().unsqueeze(2)).flatten(1)
    return floats.unsqueeze(2)
