"""Weights in panels, rounded to nearest."""

from __future__ import annotations

from torch import Tensor

from hybridge.export.layers import Grid, PackedWeight
from hybridge.export.quantize.rounding import round_to_nearest


def packed_weight(weight: Tensor, bits: int, group: int) -> PackedWeight:
    if bits == 32:
        return PackedWeight.exact(weight)
    return PackedWeight.of(round_to_nearest("", weight, Grid(bits=bits, group=group)))
