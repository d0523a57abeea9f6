"""The short causal convolution: its state is a window of the last W = K - 1 inputs, zeros before the first token.

For each token t and channel c, with taps by distance back:

    out[c, t] = bias[c] + sum over lag of taps[lag, c] x[c, t - lag]

Source: transformers 5.23 ``Lfm2ShortConv``; Amini et al., "LFM2 Technical Report" (arXiv:2511.23404). In a dynamic convolution
(Inkling 2: transformers 5.23 ``Inkling2DynamicShortConvolution``) the taps depend on the token that reads, and on its head:

    out[c, t] = sum over lag of (static[lag, c] + dynamic[t, h, lag]) x[c, t - lag]

**Identity step**: to leave the window as it is.

Axes: B batch, C channels, T tokens, S staged tokens, K taps, H heads of C / H channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.recurrence import Recurrence, stage, swapped


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A mixer's convolution. Weights are functions, because an export has to see at every call where a weight comes from.

    weight gives [C, 1, K], the newest tap last, and bias [C] or None; ``name`` is what kernels may know the activation by.
    """

    weight: Callable[[], Tensor]
    bias: Callable[[], Tensor | None] = lambda: None
    activation: Callable[[Tensor], Tensor] | None = None
    name: str | None = None

    @property
    def taps(self) -> Tensor:
        """Return the weight as rows [K, C]."""
        return self.weight().squeeze(1).T.contiguous()

    def activate(self, mixed: Tensor) -> Tensor:
        """Apply the activation, if there is one."""
        return self.activation(mixed) if self.activation else mixed

    def over(self, rows: Tensor) -> Tensor:
        """Convolve window and inputs [B, W + T, C]; returns [B, T, C]."""
        weight = self.weight()
        return swapped(self.activate(F.conv1d(rows.transpose(1, 2), weight, self.bias(), groups=weight.shape[0])))


class ConvWindow(Recurrence):
    """Run and commit a short convolution by core operators; window [B, W, C], staged inputs [B, S, C]."""

    def run(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        """Convolve a block of x [B, T, X], C channels from ``start`` on. Returns [B, T, C]."""
        C = window.shape[2]
        return convolution.over(self.extend(x if x.shape[2] == C else x[..., start : start + C], window, staged, block))

    def extend(self, x: Tensor, window: Tensor, staged: Tensor, block: Block) -> Tensor:
        """Take a block of x [B, T, C] in; return window and x [B, W + T, C], for what ``run`` cannot compute."""
        rows = torch.cat([window, x], dim=1)
        stage(block, (staged,), x)
        if not block.tentative:
            # A select, because inputs of padding or of a refused block may be NaN.
            window.copy_(window_after(rows, block.count, window.shape[1]))
        return rows

    def commit(self, window: Tensor, staged: Tensor, count: Tensor) -> None:
        """Move the first ``count`` staged inputs into the window."""
        window.copy_(window_after(torch.cat([window, staged], dim=1), count, window.shape[1]))


def window_after(rows: Tensor, count: Tensor, width: int) -> Tensor:
    """Return the window after ``count`` (int64 [1]) of the T new inputs: window and inputs [B, W + T, C] to [B, W, C].

    For ``count = 0`` this is the old window, bit for bit.
    """
    return rows.index_select(1, count + torch.arange(width))


def short_conv_naive(x: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one token after the other, as the definition has it; the other forms are tested against this.

    x [B, C, T], weight [C, K] with the newest tap last, bias [C], window [B, C, W]. Returns the outputs [B, C, T] and the
    window after the last token.
    """
    outputs = []
    for t in range(x.shape[-1]):
        inputs = torch.cat([window, x[..., t : t + 1]], dim=-1)
        outputs.append((inputs * weight).sum(-1) + (0.0 if bias is None else bias))
        window = inputs[..., 1:]
    return torch.stack(outputs, dim=-1), window


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
