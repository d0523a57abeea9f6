"""Linear layers: over weights as they lie in a checkpoint, and over weights in panels of 4, 8 or 32 bits (``panels.h``).

Axes: T tokens, N rows (outputs), K columns (inputs).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.runtime.kernels.define import define

LANES = 16
"""Rows of a panel; ``panels.h`` draws the layout."""


def pack(quanta: Tensor, bits: int) -> Tensor:
    """Pack int8 [N, K] (-8..7 for 4 bits) into panels: uint8 [N / 16, K / 8, 64] for 4 bits, int8 [N / 16, K / 4, 64] for 8.

    32 bits: float32 [N, K] to float32 [N / 16, K, 16].
    """
    N, K = quanta.shape
    padded = F.pad(quanta, (0, 0, 0, -N % LANES))
    if bits == 32:
        return padded.view(-1, LANES, K).transpose(1, 2).contiguous()
    if bits == 8:
        return padded.view(-1, LANES, K // 4, 4).transpose(1, 2).reshape(-1, K // 4, 64).contiguous()
    blocks = (padded + 8).to(torch.uint8).view(-1, LANES, K // 8, 2, 4).permute(3, 0, 2, 1, 4)
    return (blocks[0] | (blocks[1] << 4)).reshape(-1, K // 8, 64)


def unpack(packed: Tensor, rows: int) -> Tensor:
    """Unpack what ``pack`` made to [N, K]."""
    if packed.dtype == torch.float32:
        return packed.transpose(1, 2).reshape(-1, packed.shape[1])[:rows]
    if packed.dtype == torch.int8:
        return packed.view(packed.shape[0], -1, LANES, 4).transpose(1, 2).reshape(packed.shape[0] * LANES, -1)[:rows]
    halves = torch.stack([packed & 15, packed >> 4]).to(torch.int8) - 8
    blocks = halves.view(2, packed.shape[0], -1, LANES, 4).permute(1, 3, 2, 0, 4)
    return blocks.reshape(packed.shape[0] * LANES, -1)[:rows]


def pack_scales(scales: Tensor) -> Tensor:
    """Pack scales [N, K / group] as float16 [N / 16, K / group, 16]."""
    padded = F.pad(scales.to(torch.float16), (0, 0, 0, -scales.shape[0] % LANES))
    return padded.view(-1, LANES, scales.shape[1]).transpose(1, 2).contiguous()


def weights(packed: Tensor, scales: Tensor | None, rows: int) -> Tensor:
    """Return float32 [N, K] of packed weights and their scales."""
    if scales is None:
        return unpack(packed, rows)
    quanta = unpack(packed, rows).float()
    step = scales.float().transpose(1, 2).reshape(-1, scales.shape[1])[:rows]
    scaled: Tensor = (quanta.unflatten(1, (scales.shape[1], -1)) * step.unsqueeze(-1)).flatten(1)
    return scaled


def round_activations(x: Tensor, groups: int) -> Tensor:
    """Round x [..., K] to 8 bits with one scale for each of ``groups`` groups: round(x / step), step = max |x| / 127."""
    parts = x.unflatten(-1, (groups, -1))
    largest = parts.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, 0.0)
    rounded: Tensor = ((parts * inverse).round() * (largest * (1.0 / 127.0))).flatten(-2)
    return rounded


def packed_linear(x: Tensor, packed: Tensor, scales: Tensor | None, bias: Tensor | None, rows: int, integer: bool) -> Tensor:
    """Map x float32 [..., K] to [..., N]; ``integer`` rounds x to 8 bits by the weights' groups, else x stays (4w, 8w)."""
    rounded = round_activations(x, scales.shape[1]) if integer and scales is not None else x
    return F.linear(rounded, weights(packed, scales, rows), bias)


def packed_embedding(tokens: Tensor, packed: Tensor, scales: Tensor | None, rows: int, columns: int) -> Tensor:
    """Return rows ``tokens`` (int64 [...]) of the weight, float32 [..., K]."""
    return F.embedding(tokens, weights(packed, scales, rows))


define(
    "linear",
    "Tensor x, Tensor weight, Tensor? bias",
    F.linear,
    lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
)
define(
    "packed_linear",
    "Tensor x, Tensor packed, Tensor? scales, Tensor? bias, int rows, bool integer",
    packed_linear,
    lambda x, packed, scales, bias, rows, integer: x.new_empty(*x.shape[:-1], rows),
)
define(
    "packed_embedding",
    "Tensor tokens, Tensor packed, Tensor? scales, int rows, int columns",
    packed_embedding,
    lambda tokens, packed, scales, rows, columns: packed.new_empty(*tokens.shape, columns, dtype=torch.float32),
)
