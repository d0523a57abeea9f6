"""The blocks of a GGUF tensor as whole numbers and factors: the same bits, in the order that our kernels know.

Source: ggml's ``ggml-common.h`` and ``ggml-quants.c``; gguf's ``quants.py`` says which number each block stands for.

Axes: N rows, B blocks of a row; behind them the bytes of a block, or its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hybridge.export.layers.rounded_weight import RoundedWeight
from hybridge.export.operators.linear import Factors

FLOATS: Mapping[int, torch.dtype] = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""The types whose numbers need no decoding, by GGML's numbers of them."""

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode(data: Tensor, kind: int, block_bytes: int) -> RoundedWeight | None:
    """Return the weight of uint8 ``data`` [N, bytes of a row] of GGML's type ``kind``; None for a type without kernels."""
    if kind in FLOATS:
        dtype = FLOATS[kind]
        return RoundedWeight(quanta=data.view(dtype), factors=Factors(), bits=8 * dtype.itemsize)
    if kind not in KINDS:
        return None
    bits, parts = KINDS[kind]
    codes, factors = parts(data.unflatten(1, (-1, block_bytes)))
    quanta = codes.view(torch.int8) if bits == 8 else codes.to(torch.int8) - (1 << (bits - 1))
    return RoundedWeight(quanta=quanta.flatten(1), factors=factors, bits=bits)


Parts = tuple[Tensor, Factors]


def _spread(data: Tensor, run: int, bits: int) -> Tensor:
    """Bytes of several numbers of ``bits`` to one byte each: the lowest bits of ``run`` bytes come first, then the next."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(-1, 1)
    spread: Tensor = (data.unflatten(-1, (-1, 1, run)) >> shifts) & ((1 << bits) - 1)
    return spread.flatten(-3)


def _halves(data: Tensor) -> Tensor:
    """Float16 numbers of their bytes, in rows [N, …]."""
    return data.contiguous().view(torch.float16).flatten(1)


def _q4_0(blocks: Tensor) -> Parts:
    return _spread(blocks[..., 2:], 16, 4), Factors(_halves(blocks[..., :2]))


def _q4_1(blocks: Tensor) -> Parts:
    return _spread(blocks[..., 4:], 16, 4), Factors(_halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _fives(blocks: Tensor) -> Tensor:
    """32 numbers of 4 bytes of fifth bits and 16 of the others."""
    return _spread(blocks[..., 4:], 16, 4) | (_spread(blocks[..., :4], 1, 1) << 4)


def _q5_0(blocks: Tensor) -> Parts:
    return _fives(blocks[..., 2:]), Factors(_halves(blocks[..., :2]))


def _q5_1(blocks: Tensor) -> Parts:
    return _fives(blocks[..., 4:]), Factors(_halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _q8_0(blocks: Tensor) -> Parts:
    return blocks[..., 2:], Factors(_halves(blocks[..., :2]))


def _superblock(head: Tensor) -> Factors:
    """The first 16 bytes of Q4_K and Q5_K: two float16 numbers, and eight scales and eight minima of 6 bits."""
    scales, minima, upper = head[..., 4:].unflatten(-1, (3, 4)).unbind(-2)
    low = torch.cat([scales & 63, (upper & 15) | ((scales >> 2) & 48)], dim=-1)
    subtracted = torch.cat([minima & 63, (upper >> 4) | ((minima >> 2) & 48)], dim=-1)
    pairs = _halves(head[..., :4]) * torch.tensor([1.0, -1.0], dtype=torch.float16).repeat(head.shape[1])
    return Factors(low.view(torch.int8).flatten(1), subtracted.view(torch.int8).flatten(1), pairs)


def _q4_k(blocks: Tensor) -> Parts:
    return _spread(blocks[..., 16:], 32, 4), _superblock(blocks[..., :16])


def _q5_k(blocks: Tensor) -> Parts:
    return _spread(blocks[..., 48:], 32, 4) | (_spread(blocks[..., 16:48], 32, 1) << 4), _superblock(blocks[..., :16])


def _q6_k(blocks: Tensor) -> Parts:
    codes = _spread(blocks[..., :128], 64, 4) | (_spread(blocks[..., 128:192], 32, 2) << 4)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).flatten(1)
    return codes, Factors(scales, superscales=_halves(blocks[..., 208:]))


def _iq4_nl(blocks: Tensor) -> Parts:
    return _spread(blocks[..., 2:], 16, 4), Factors(_halves(blocks[..., :2]), table=torch.tensor(IQ4, dtype=torch.int8))


def _iq4_xs(blocks: Tensor) -> Parts:
    scales = _spread(blocks[..., 4:8], 1, 4) | (_spread(blocks[..., 2:4], 1, 2) << 4)
    table = torch.tensor(IQ4, dtype=torch.int8)
    factors = Factors(scales.to(torch.int8).flatten(1) - 32, superscales=_halves(blocks[..., :2]), table=table)
    return _spread(blocks[..., 8:], 16, 4), factors


def _mxfp4(blocks: Tensor) -> Parts:
    exponents = blocks[..., 0].contiguous()
    return _spread(blocks[..., 1:], 16, 4), Factors(exponents, table=torch.tensor(MXFP4, dtype=torch.int8))


KINDS: Mapping[int, tuple[int, Callable[[Tensor], Parts]]] = {
    2: (4, _q4_0),
    3: (4, _q4_1),
    6: (5, _q5_0),
    7: (5, _q5_1),
    8: (8, _q8_0),
    12: (4, _q4_k),
    13: (5, _q5_k),
    14: (6, _q6_k),
    20: (4, _iq4_nl),
    23: (4, _iq4_xs),
    39: (4, _mxfp4),
}
"""Bits of a number, and what takes blocks apart, by GGML's numbers of its types."""
