"""Linear layers, embeddings and experts: over weights as they lie in a checkpoint, and over weights in panels (``panels.h``).

``packed_*`` are for weights with one float16 scale a group, or with none, as all were in earlier artifacts; ``block_*`` take
whatever ``panels.h`` draws, such as the blocks of a GGUF file.

Axes: T tokens, N rows (outputs), K columns (inputs); of experts, E experts and M rows (tokens × choices).
"""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.export.operators.define import define
from hybridge.export.operators.panels import LANES, Factors, weights


def round_activations(x: Tensor, groups: int) -> Tensor:
    """Round x [..., K] to 8 bits with one scale for each of ``groups`` groups: round(x / step), step = max |x| / 127."""
    parts = x.unflatten(-1, (groups, -1))
    largest = parts.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, 127.0 / largest, 0.0)
    rounded: Tensor = ((parts * inverse).round() * (largest * (1.0 / 127.0))).flatten(-2)
    return rounded


def packed_linear(x: Tensor, packed: Tensor, scales: Tensor | None, bias: Tensor | None, rows: int, integer: bool) -> Tensor:
    """Map x float32 [..., K] to [..., N]; ``integer`` rounds x to 8 bits by the weights' groups, else x stays (4w, 8w)."""
    return product(x, packed, Factors(scales), bias, rows, integer)


def packed_embedding(tokens: Tensor, packed: Tensor, scales: Tensor | None, rows: int, columns: int) -> Tensor:
    """Return rows ``tokens`` (int64 [...]) of the weight, float32 [..., K]."""
    return F.embedding(tokens, weights(packed, Factors(scales), rows))


def block_linear(
    x: Tensor,
    packed: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    rows: int,
    integer: bool,
) -> Tensor:
    """Map x as ``packed_linear`` does."""
    return product(x, packed, Factors(scales, minima, superscales, table), bias, rows, integer)


def block_embedding(
    tokens: Tensor,
    packed: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    rows: int,
    columns: int,
) -> Tensor:
    """Return rows as ``packed_embedding`` does."""
    return F.embedding(tokens, weights(packed, Factors(scales, minima, superscales, table), rows))


def product(x: Tensor, packed: Tensor, factors: Factors, bias: Tensor | None, rows: int, integer: bool) -> Tensor:
    """Map x float32 [..., K] to [..., N] by a weight in panels."""
    rounded = round_activations(x, factors.scales.shape[1]) if integer and factors.scales is not None else x
    return F.linear(rounded, weights(packed, factors, rows), bias)


FACTORS = "Tensor scales, Tensor? minima, Tensor? superscales, Tensor? table"
"""A weight's ``panels.Factors`` in a schema."""

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
define(
    "block_linear",
    f"Tensor x, Tensor packed, {FACTORS}, Tensor? bias, int rows, bool integer",
    block_linear,
    lambda x, packed, scales, minima, superscales, table, bias, rows, integer: x.new_empty(*x.shape[:-1], rows),
)
define(
    "block_embedding",
    f"Tensor tokens, Tensor packed, {FACTORS}, int rows, int columns",
    block_embedding,
    lambda tokens, packed, scales, minima, superscales, table, rows, columns: scales.new_empty(
        *tokens.shape, columns, dtype=torch.float32
    ),
)


def packed_experts(
    x: Tensor, chosen: Tensor, packed: Tensor, scales: Tensor | None, bias: Tensor | None, rows: int, integer: bool
) -> Tensor:
    """Map x float32 [M, K], chosen int64 [M] (0..E - 1) to [M, N]; ``packed`` and ``scales`` hold the panels of E weights.

    rows: N, of which each expert has its own panels. bias [E, N]; ``integer`` as in ``packed_linear``.
    """
    return _product(x, chosen, packed, Factors(scales), bias, rows, integer)


def block_experts(
    x: Tensor,
    chosen: Tensor,
    packed: Tensor,
    scales: Tensor,
    minima: Tensor | None,
    superscales: Tensor | None,
    table: Tensor | None,
    bias: Tensor | None,
    rows: int,
    integer: bool,
) -> Tensor:
    """Map x as ``packed_experts`` does, with the other weights of ``block_linear``."""
    return _product(x, chosen, packed, Factors(scales, minima, superscales, table), bias, rows, integer)


def _product(
    x: Tensor, chosen: Tensor, packed: Tensor, factors: Factors, bias: Tensor | None, rows: int, integer: bool
) -> Tensor:
    out, panels = x.new_empty(x.shape[0], rows), -(-rows // LANES)
    for expert in chosen.unique().tolist():
        part, mine = slice(expert * panels, (expert + 1) * panels), chosen == expert
        own = factors.mapped(operator.itemgetter(part))
        out[mine] = product(x[mine], packed[part], own, None if bias is None else bias[expert], rows, integer)
    return out


define(
    "packed_experts",
    "Tensor x, Tensor chosen, Tensor packed, Tensor? scales, Tensor? bias, int rows, bool integer",
    packed_experts,
    lambda x, chosen, packed, scales, bias, rows, integer: x.new_empty(x.shape[0], rows),
)
define(
    "block_experts",
    f"Tensor x, Tensor chosen, Tensor packed, {FACTORS}, Tensor? bias, int rows, bool integer",
    block_experts,
    lambda x, chosen, packed, scales, minima, superscales, table, bias, rows, integer: x.new_empty(x.shape[0], rows),
)
