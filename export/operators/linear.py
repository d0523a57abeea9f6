"""Define linear layers, embeddings and experts: over weights as in a checkpoint, and over weights in panels (``panels.h``).

``block_*`` take all forms of ``panels.h``, from numbers in float32, which have no scales, to the blocks of a GGUF file.
``panel_linear`` computes some outputs of such a layer. ``matmul`` is PyTorch's, of 2 or 3 dimensions.

Axes: T tokens, N rows (outputs), K columns (inputs); of experts, E experts and M rows (tokens × choices).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.export.operators.define import define
from hybridge.export.operators.parts import by_panels
from hybridge.runtime.pack import blocks, panels
from hybridge.runtime.pack.blocks import Blocks


def round_activations(x: Tensor, groups: int) -> Tensor:
    """Round x [..., K] to 8 bits with one scale for each of ``groups`` groups: round(x / step), step = max |x| / 127."""
    parts = x.unflatten(-1, (groups, -1))
    largest = parts.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, 0.0)
    rounded: Tensor = ((parts * inverse).round() * (largest * (1.0 / 127.0))).flatten(-2)
    return rounded


def block_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor | None,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    rows: int,
    integer: bool,
) -> Tensor:
    """Map x float32 [..., K] to [..., N]; ``integer`` rounds x to 8 bits by the weights' groups, otherwise x stays (4w, 8w)."""
    return product(x, packed, Factors(scales, minima, superscales, table), bias, rows, integer)


def block_linears(x: Tensor, weights: list[Tensor | None], rows: list[int], integer: bool) -> list[Tensor]:
    """Map x float32 [..., K] by several weights; of each, ``weights`` has what ``block_linear`` takes, up to the bias."""
    made = []
    for at, each in enumerate(rows):
        packed, *factors, bias = weights[at * PARTS : (at + 1) * PARTS]
        assert packed is not None
        made.append(product(x, packed, Factors(*factors), bias, each, integer))
    return made


def block_embedding(
    tokens: Tensor,
    packed: Tensor,
    scales: Tensor | None,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    rows: int,
    columns: int,
) -> Tensor:
    """Return rows ``tokens`` (int64 [...]) of the weight, float32 [..., K]: only their panels are unpacked."""
    chosen, places = (tokens // LANES).unique(return_inverse=True)
    factors = Factors(scales, minima, superscales, table).mapped(operator.itemgetter(chosen))
    return F.embedding(places * LANES + tokens % LANES, weights(packed[chosen], factors, len(chosen) * LANES))


def panel_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor | None,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    panels: Tensor,
    rows: int,
    chosen_rows: int,
    integer: bool,
) -> Tensor:
    """Map x float32 [..., K] to [..., C]: the outputs in the panels of the weight with these indices, and no others.

    Args:
        panels: int64 [P], ascending.
        rows: N, of the whole weight.
        chosen_rows: C, at most 16 P; what is missing to that are the last panel's last outputs.
    """
    factors = Factors(scales, minima, superscales, table).mapped(lambda part: part[panels])
    wide = None if bias is None else F.pad(bias, (0, -rows % LANES)).view(-1, LANES)[panels].flatten()[:chosen_rows]
    return product(x, packed[panels], factors, wide, chosen_rows, integer)


def product(x: Tensor, packed: Tensor, factors: Factors, bias: Tensor | None, rows: int, integer: bool) -> Tensor:
    """Map x float32 [..., K] to [..., N] by a weight in panels."""
    rounded = round_activations(x, factors.scales.shape[1]) if integer and factors.scales is not None else x
    return F.linear(rounded, weights(packed, factors, rows), bias)


PARTS = 6
"""Tensors of a layer: its packed weight, the factors and the bias."""
FACTORS = "Tensor? scales, Tensor? minima, Tensor? superscales, Tensor? table"
"""A weight's ``panels.Factors`` in a schema."""

define(
    "linear",
    "Tensor x, Tensor weight, Tensor? bias",
    F.linear,
    lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
)
define("matmul", "Tensor a, Tensor b", torch.matmul, lambda a, b: a.new_empty(*a.shape[:-1], b.shape[-1]))
define(
    "block_linear",
    f"Tensor x, Tensor packed, {FACTORS}, Tensor? bias, int rows, bool integer",
    block_linear,
    lambda x, packed, scales, minima, superscales, table, bias, rows, integer: x.new_empty(*x.shape[:-1], rows),
)
define(
    "block_linears",
    "Tensor x, Tensor?[] weights, int[] rows, bool integer",
    block_linears,
    lambda x, weights, rows, integer: [x.new_empty(*x.shape[:-1], each) for each in rows],
    returns="Tensor[]",
)
define(
    "panel_linear",
    f"Tensor x, Tensor packed, {FACTORS}, Tensor? bias, Tensor panels, int rows, int chosen_rows, bool integer",
    panel_linear,
    lambda x, packed, scales, minima, superscales, table, bias, panels, rows, chosen_rows, integer: x.new_empty(
        *x.shape[:-1], chosen_rows
    ),
)
define(
    "block_embedding",
    f"Tensor tokens, Tensor packed, {FACTORS}, int rows, int columns",
    block_embedding,
    lambda tokens, packed, scales, minima, superscales, table, rows, columns: packed.new_empty(
        *tokens.shape, columns, dtype=torch.float32
    ),
)


def block_experts(
    x: Tensor,
    chosen: Tensor,
    packed: Tensor,
    scales: Tensor | None,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    rows: int,
    integer: bool,
) -> Tensor:
    """Map x float32 [M, K], chosen int64 [M] (0..E - 1) to [M, N]; ``packed`` and the factors hold the panels of E weights.

    rows: N, of which each expert has its own panels. bias [E, N]; ``integer`` as in ``block_linear``.
    """
    factors = Factors(scales, minima, superscales, table)
    out, panels = x.new_empty(x.shape[0], rows), -(-rows // LANES)
    for expert in chosen.unique().tolist():
        part, mine = slice(expert * panels, (expert + 1) * panels), chosen == expert
        own = factors.mapped(operator.itemgetter(part))
        out[mine] = product(x[mine], packed[part], own, None if bias is None else bias[expert], rows, integer)
    return out


define(
    "block_experts",
    f"Tensor x, Tensor chosen, Tensor packed, {FACTORS}, Tensor? bias, int rows, bool integer",
    block_experts,
    lambda x, chosen, packed, scales, minima, superscales, table, bias, rows, integer: x.new_empty(x.shape[0], rows),
)


# Weights in panels of 16 rows as ``panels.h`` draws them: packed, and taken apart again.
#
# Axes: N rows, K columns, G groups of columns that share a scale, S superblocks of groups.


UNITS, LANES = panels.UNITS, panels.LANES
BITS = {64: 4, 320: 5, 192: 6}
"""Bits by the last dimension of a uint8 tensor of panels."""

PANEL_BYTES = {8: 64} | {bits: size for size, bits in BITS.items()}
"""The last dimension by the bits."""


class Factors(NamedTuple):
    """The factors that turn whole numbers [N, K] into weights; all but ``table`` in rows [N, ...] or panels [N / 16, ..., 16].

    scales, and minima to be added: float16 [N, G], or int8 [N, G] times a float16 of ``superscales``: [N, S], or [N, 2 S] with
    each superblock's factors of scales and of minima. Scales may also be uint8, exponents of two (e8m0, halved). With minima,
    whole numbers are counted from 0, without from the middle. table: int8 [16], which whole numbers of 4 bits choose from.
    """

    scales: Tensor | None = None
    minima: Tensor | None = None
    superscales: Tensor | None = None
    table: Tensor | None = None

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
    """Pack int8 [N, K], -2^(bits - 1) or more, or floats of 16 or 32 bits, into panels; see ``panels.pack``."""
    if quanta.dtype == torch.bfloat16:
        return pack(quanta.view(torch.uint16), bits).view(torch.bfloat16)
    return torch.from_numpy(panels.pack(quanta.detach().numpy(), bits))


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
    return torch.from_numpy(panels.pack_factors(values.numpy()))


def weights(packed: Tensor, factors: Factors, rows: int) -> Tensor:
    """Return float32 [N, K] of weights in panels and their factors."""
    bits = 8 if packed.dtype == torch.int8 else BITS.get(packed.shape[2], 32)
    columns = packed.shape[1] * packed.shape[2] * 8 // (LANES * bits) if bits < 32 else packed.shape[1]

    def unpacked(part: slice) -> Tensor:
        panels = packed[part]
        count = len(panels) * LANES
        return numbers(unpack(panels, count), bits, factors.mapped(operator.itemgetter(part)).in_rows(count))

    return torch.cat(by_panels(len(packed), columns, unpacked))[:rows]


def numbers(quanta: Tensor, bits: int, factors: Factors) -> Tensor:
    """Return float32 [N, K] of int8 [N, K] and factors by rows, or of floats without.

    To the bit as llama.cpp's package does.
    """
    if factors.scales is None:
        return quanta.float()
    parts = (None if part is None else part.detach().numpy() for part in factors)
    found = Blocks(quanta.numpy(), bits, *parts)
    return torch.from_numpy(blocks.numbers(found))
