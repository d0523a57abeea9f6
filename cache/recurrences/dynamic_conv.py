"""A short causal convolution whose taps depend on the token (Inkling 2).

For each token t and channel c of a head h, with taps by distance back:

    out[c, t] = sum over lag of (static[lag, c] + dynamic[t, h, lag]) x[c, t - lag]

Source: transformers 5.23 ``Inkling2DynamicShortConvolution``. Its state is the window of a plain short convolution, because
the taps are those of the token that reads, not of the one that is read.

Axes: B batch, C channels, T tokens, H heads of C / H channels, K taps, W = K - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dynamic_conv_naive(window: Tensor, static: Tensor, dynamic: Tensor) -> Tensor:
    """Compute by the definition: window [B, W + T, C], static [K, C], dynamic [B, T, H, K] to [B, T, C]."""
    (K, C), (T, H) = static.shape, dynamic.shape[1:3]
    outputs = []
    for t in range(T):
        taps = static + dynamic[:, t].transpose(1, 2).repeat_interleave(C // H, dim=2)  # [B, K, C]
        outputs.append(sum(taps[:, lag] * window[:, t + K - 1 - lag] for lag in range(K)))
    return torch.stack(outputs, dim=1)  # type: ignore[arg-type]  # a sum of tensors is a tensor


def dynamic_conv(window: Tensor, static: Tensor, dynamic: Tensor) -> Tensor:
    """Compute all T tokens at once, in a number of operators that does not grow; the same arguments and result."""
    K, (T, H) = static.shape[0], dynamic.shape[1:3]
    source = torch.arange(T)[:, None] + K - 1 - torch.arange(K)
    inputs = window.index_select(1, source.flatten()).unflatten(1, (T, K)).unflatten(-1, (H, -1))  # [B, T, K, H, C / H]
    taps = static.unflatten(1, (H, -1)) + dynamic.transpose(2, 3).unsqueeze(-1)
    out: Tensor = (inputs * taps).sum(2)
    return out.flatten(2)
