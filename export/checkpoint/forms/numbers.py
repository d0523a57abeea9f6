"""Numbers of few bits in larger words, and scales that several numbers share.

Axes: N rows (outputs), K columns (inputs), G groups of columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""float4 e2m1 by its four bits (Open Compute Project, Microscaling Formats 1.0, section 5.3.3)."""

E8M0_BIAS = 127
"""Of a scale that is a power of two."""


def unpack_words(words: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack the numbers in the 32-bit words along ``dim``, lowest bits first, to int32 of 0 to 2^bits - 1."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    dim %= words.dim()
    spread = words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))
    return (spread & ((1 << bits) - 1)).flatten(dim, dim + 1)


def unpack_nibbles(packed: Tensor, *, low_first: bool = True) -> Tensor:
    """Unpack uint8 [..., K / 2] to int64 [..., K], indices into a table of 16."""
    halves = (packed & 15, packed >> 4) if low_first else (packed >> 4, packed & 15)
    return torch.stack(halves, -1).flatten(-2).long()


def fp4(packed: Tensor) -> Tensor:
    """Return float32 [..., K] of float4 numbers, two in a byte of uint8 [..., K / 2], the first in its lower half."""
    return torch.tensor(FP4)[unpack_nibbles(packed)]


def e8m0(scales: Tensor) -> Tensor:
    """Return the powers of two that uint8 scales stand for, float32."""
    return torch.exp2(scales.view(torch.uint8).float() - E8M0_BIAS)


def scaled(numbers: Tensor, scales: Tensor, block: Sequence[int] | None = None) -> Tensor:
    """Multiply numbers [..., N, K] with the scale of their block: scales [..., n, k], [N] (a row each), or one for all.

    block: rows and columns of one; where it is left out, blocks divide rows and columns evenly. float32.
    """
    numbers, scales = numbers.float(), scales.float()
    if scales.numel() == 1:
        return numbers * scales.reshape(())
    if scales.dim() < numbers.dim():
        scales = scales.unsqueeze(-1)
    for dim, size in ((-2, block[0] if block else None), (-1, block[1] if block else None)):
        repeats = size or numbers.shape[dim] // scales.shape[dim]
        scales = scales.repeat_interleave(repeats, dim).narrow(dim, 0, numbers.shape[dim])
    return numbers * scales


def grouped(numbers: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor | None) -> Tensor:
    """Return (numbers - zeros) * scales as float32 [N, K], where scales and zeros [N, G] hold for groups of columns.

    groups: the group of each column, int [K], where it is not the one that the column's place says.
    """
    for each in (scales, scales if zeros is None else zeros):
        if each.dim() != 2 or each.shape != scales.shape or each.shape[0] != numbers.shape[0]:
            raise ValueError(f"scales and zero points of {list(each.shape)} for a weight of {list(numbers.shape)}")
    if groups is None:
        groups = torch.arange(numbers.shape[1]) // -(-numbers.shape[1] // scales.shape[1])
    columns = groups.long()
    if zeros is not None:
        numbers = numbers - zeros[:, columns]
    return numbers.float() * scales.float()[:, columns]
