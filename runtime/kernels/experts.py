"""Linear layers of experts over weights in panels: each row goes through the weight of the expert that it chose.

Axes: M rows (tokens × choices), E experts, N outputs, K inputs.
"""

from __future__ import annotations

from torch import Tensor

from hybridge.runtime.kernels.define import define
from hybridge.runtime.kernels.linear import LANES, packed_linear


def packed_experts(
    x: Tensor, chosen: Tensor, packed: Tensor, scales: Tensor | None, bias: Tensor | None, rows: int, integer: bool
) -> Tensor:
    """Map x float32 [M, K], chosen int64 [M] (0..E - 1) to [M, N]; ``packed`` and ``scales`` hold the panels of E weights.

    rows: N, of which each expert has its own panels. bias [E, N]; ``integer`` as in ``packed_linear``.
    """
    out, panels = x.new_empty(x.shape[0], rows), -(-rows // LANES)
    for expert in chosen.unique().tolist():
        part, mine = slice(expert * panels, (expert + 1) * panels), chosen == expert
        own_scales, own_bias = None if scales is None else scales[part], None if bias is None else bias[expert]
        out[mine] = packed_linear(x[mine], packed[part], own_scales, own_bias, rows, integer)
    return out


define(
    "packed_experts",
    "Tensor x, Tensor chosen, Tensor packed, Tensor? scales, Tensor? bias, int rows, bool integer",
    packed_experts,
    lambda x, chosen, packed, scales, bias, rows, integer: x.new_empty(x.shape[0], rows),
)
