"""Weights in panels of 16 rows, as our kernels read them: ``runtime/kernels/panels.h`` draws them.

Axes: N rows, K columns, G groups of columns that share a scale.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LANES = 16
"""Rows of a panel."""

UNITS = {5: 32, 6: 16}
"""Columns whose upper bits fill 64 bytes, by the bits of a weight; they lie after those columns' lower four bits."""


def pack(quanta: Array, bits: int) -> Array:
    """Pack int8 [N, K], -2^(bits - 1) or more, into panels.

    uint8 [N / 16, K / 8, 64] for 4 bits, [N / 16, K / 32, 320] for 5, [N / 16, K / 16, 192] for 6; int8 [N / 16, K / 4, 64] for
    8. 16 and 32 bits: numbers [N, K] of any type to [N / 16, K, 16].
    """
    K = quanta.shape[1]
    padded = whole_panels(quanta)
    if bits >= 16:
        return np.ascontiguousarray(padded.reshape(-1, LANES, K).transpose(0, 2, 1))
    quads = padded.reshape(-1, LANES, K // 4, 4).transpose(0, 2, 1, 3).reshape(-1, K // 4, 64)
    if bits == 8:
        return np.ascontiguousarray(quads)
    codes = quads.view(np.uint8) + np.uint8(1 << (bits - 1))
    nibbles = codes & 15
    low = nibbles[:, ::2] | (nibbles[:, 1::2] << 4)
    if bits == 4:
        return low
    unit, panels = UNITS[bits], len(codes)
    upper = (codes >> 4).reshape(panels, -1, unit // 4, 64)
    shifts = np.arange(0, 8, bits - 4, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce(upper << shifts, axis=2)
    return np.concatenate([low.reshape(panels, -1, unit // 8 * 64), high], axis=2)


def pack_factors(values: Array) -> Array:
    """Pack values [N, G] as [N / 16, G, 16], float32 ones in float16."""
    values = values.astype(np.float16) if values.dtype == np.float32 else values
    return np.ascontiguousarray(whole_panels(values).reshape(-1, LANES, values.shape[1]).transpose(0, 2, 1))


def whole_panels(rows: Array) -> Array:
    """Append rows of zeros up to a whole number of panels."""
    missing = -len(rows) % LANES
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)]) if missing else rows
