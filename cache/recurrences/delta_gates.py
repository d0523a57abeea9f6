"""A token's inputs to a delta rule: its heads, normalized, and its gates as they come out of projections.

Axes: B batch, T tokens, S staged tokens, Hk key heads, H value heads, K key dim, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DeltaGates:
    """The gates of a delta rule before their activations.

    decay [B, T, H], or [B, T, H K] with one for each channel; beta [B, T, H]; rate [H], positive, and bias [H] or [H K] are
    float32 weights. ``floor``, a negative number, bounds the log decay; without it there is no bound. ``strength`` is the
    largest beta. Source: transformers 5.23 ``Qwen3_5GatedDeltaNet``, ``KimiLinearForgetGate`` and ``BailingHybridForgetGate``.
    """

    decay: Tensor
    beta: Tensor
    rate: Tensor
    bias: Tensor
    floor: float | None = None
    strength: float = 1.0

    @property
    def log_decay(self) -> Tensor:
        """Return float32 [B, T, H (, K)]: ``-rate softplus(decay + bias)``, or ``floor sigmoid(rate (decay + bias))``."""
        x, rate = self.decay.float() + self.bias, self.rate
        if len(self.bias) != len(rate):
            x, rate = x.unflatten(-1, (len(rate), -1)), rate.unsqueeze(-1)
        return -rate * F.softplus(x) if self.floor is None else self.floor * (rate * x).sigmoid()

    @property
    def strengths(self) -> Tensor:
        """Return beta in [0, strength], [B, T, H]."""
        return self.beta.sigmoid() if self.strength == 1.0 else self.beta.sigmoid() * self.strength


@dataclass(frozen=True, kw_only=True)
class DeltaStaged:
    """A tentative block: key [B, S, Hk, K], value [B, S, H, V], log_decay [B, S, H] or [B, S, H, K], beta [B, S, H].

    They are the kernels' own: value may be the values, or what is left of them once the state's answer is taken off.
    """

    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Return all in the order of the fields."""
        return self.key, self.value, self.log_decay, self.beta


def split_heads(mixed: Tensor, key_heads: int, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split mixed [B, T, 2 Hk K + H V] into scaled query, normalized key [B, T, Hk, K] and value [B, T, H, V].

    state is [B, H, K, V].
    """
    heads, K = state.shape[1:3]
    size = key_heads * K
    # Slices, not a split: backends take a slice as part of what comes before and after it.
    query, key, value = mixed[..., :size], mixed[..., size : 2 * size], mixed[..., 2 * size :]
    query, key = (x.unflatten(-1, (key_heads, -1)) for x in (query, key))
    # The key first: XNNPACK's partitioner makes islands of the norms that depend on each other when the query comes first.
    key, query = l2_normalize(key), l2_normalize(query)
    return query * K**-0.5, key, value.unflatten(-1, (heads, -1))


def l2_normalize(x: Tensor) -> Tensor:
    """Normalize as transformers' ``l2norm`` does in its delta rules: epsilon inside the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
