"""Keep keys and values in 8 bits as a processor multiplies them: blocks of 64 rows, sixteen to a vector, four bytes to a lane.

Sixteen lanes of a vector take sixteen rows of keys, or sixteen columns of values, and four bytes a lane are summed at once, so
neither product of attention needs a sum across lanes.

Axes: B batch, T tokens, R rows (a multiple of 64), N blocks (R / 64), G key/value heads, D head dim, V value dim, K columns of
keys (D or up to 3 more), C columns of values (V or up to 15 more). What columns after D and V hold does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK, LANES, QUAD = 64, 16, 4


@dataclass(frozen=True, kw_only=True)
class QuantizedRows:
    """keys int8 [B, N, G, K, 64], values int8 [B, N, G, C, 64], and a float32 scale for each row and head, [B, N, G, 64]."""

    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor

    def write(self, key: Tensor, value: Tensor, start: Tensor) -> None:
        """Round key [B, T, G, D] and value [B, T, G, V] and put them into the rows from ``start`` (int64 [1]) on."""
        at = start + torch.arange(key.shape[1])
        quanta, scales = quantize_rows(F.pad(key, (0, -key.shape[-1] % QUAD)))
        key_rows(self.keys)[:, at // BLOCK, at % BLOCK // LANES, at % LANES] = quanta.unflatten(-1, (-1, QUAD))
        self.key_scales.transpose(2, 3)[:, at // BLOCK, at % BLOCK] = scales
        quanta, scales = quantize_rows(F.pad(value, (0, -value.shape[-1] % LANES)))
        value_rows(self.values)[:, at // BLOCK, at % BLOCK // QUAD, at % QUAD] = quanta.unflatten(-1, (-1, LANES))
        self.value_scales.transpose(2, 3)[:, at // BLOCK, at % BLOCK] = scales

    def dense(self, head_dim: int, value_dim: int) -> tuple[Tensor, Tensor]:
        """Return float32 keys [B, R, G, D] and values [B, R, G, V]."""
        keys = _dense(key_rows(self.keys), self.key_scales)[..., :head_dim]
        return keys, _dense(value_rows(self.values), self.value_scales)[..., :value_dim]


def key_rows(keys: Tensor) -> Tensor:
    """Return a view by row of the keys' memory, [B, N, 4, 16, G, K / 4, 4]; the second to fourth dimension are the row."""
    by_row: Tensor = keys.unflatten(3, (BLOCK // LANES, -1)).unflatten(-1, (LANES, QUAD)).permute(0, 1, 3, 5, 2, 4, 6)
    return by_row


def value_rows(values: Tensor) -> Tensor:
    """Return a view by row of the values' memory, [B, N, 16, 4, G, C / 16, 16]; the second to fourth dimension are the row."""
    by_row: Tensor = values.unflatten(3, (-1, LANES)).unflatten(-1, (LANES, QUAD)).permute(0, 1, 4, 6, 2, 3, 5)
    return by_row


def quantize_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows [..., G, D] to int8 with float32 scales [..., G]: round(x / scale), scale = max |x| / 127 over a head.

    A head with a number that is not finite becomes zeros with a scale of NaN. One below 4e-37, whose scale has no inverse,
    becomes zeros.
    """
    largest = rows.abs().amax(-1, keepdim=True)
    inverse = 127.0 / largest
    quanta = torch.where(inverse.isfinite() & largest.isfinite(), rows * inverse, 0.0).round().to(torch.int8)
    return quanta, torch.where(largest.isfinite(), largest * (1.0 / 127.0), torch.nan).squeeze(-1)


def _dense(by_row: Tensor, scales: Tensor) -> Tensor:
    return by_row.flatten(5).flatten(1, 3) * scales.transpose(2, 3).flatten(1, 2).unsqueeze(-1)
