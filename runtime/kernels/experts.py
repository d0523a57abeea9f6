"""Linear layers of experts over weights in panels: each row goes through the weight of the expert that it chose.

Axes: M rows (tokens × choices), E experts, N outputs, K inputs.
"""

from __future__ import annotations

import operator

from torch import Tensor

from hybridge.runtime.kernels.define import define
from hybridge.runtime.kernels.linear import FACTORS, product
from hybridge.runtime.kernels.panels import LANES, Factors


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
