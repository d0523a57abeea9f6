"""A token's inputs to state spaces and linear attention: rows of a convolution, and step sizes.

Axes: B batch, T tokens, S staged tokens, H heads, P value dim, G groups, N key dim; C channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """Step sizes before their activation: ``softplus(raw + bias)`` between low and high.

    raw is [B, T, X], of which the steps are from ``start`` on, as many as fit the state; bias has one for each or is None.
    """

    raw: Tensor
    count: int
    start: int = 0
    bias: Tensor | None = None
    low: float = 0.0
    high: float = math.inf

    @property
    def sizes(self) -> Tensor:
        """Return float32 [B, T, count]."""
        raw = self.raw[..., self.start : self.start + self.count] if self.count < self.raw.shape[-1] else self.raw
        steps = F.softplus(raw if self.bias is None else raw + self.bias.to(raw.dtype)).float()
        bounded = self.low > 0 or self.high < math.inf
        return steps.clamp(self.low, None if self.high == math.inf else self.high) if bounded else steps


@dataclass(frozen=True, kw_only=True)
class LinearAttention:
    """The weights of a decayed linear attention, and how a row is laid out.

    rate [H] is the log decay of a step of 1 and skip [H] what a value adds to its own output. A row is the values of all
    heads, the keys of all groups and their queries; or, ``by_head``, the query, key and value of each head in turn.
    """

    rate: Tensor
    skip: Tensor | None = None
    groups: int
    by_head: bool = False

    def split(self, mixed: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split rows [B, C, T] into query, key [B, H, N, T] and value [B, H, P, T], float32; state is [B, H, P, N]."""
        heads, P, N = state.shape[1:]
        mixed = mixed.float()
        if self.by_head:
            query, key, value = mixed.unflatten(1, (heads, -1)).split([N, N, P], dim=2)
            return query, key, value
        inner, size = heads * P, self.groups * N
        key, query = mixed[:, inner : inner + size], mixed[:, inner + size :]
        return self._for_heads(query, heads), self._for_heads(key, heads), mixed[:, :inner].unflatten(1, (heads, -1))

    def _for_heads(self, x: Tensor, heads: int) -> Tensor:
        """Each group serves H / G heads that follow each other: [B, G N, T] to [B, H, N, T]."""
        each = heads // self.groups
        grouped: Tensor = x.unflatten(1, (self.groups, -1))
        return grouped.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2) if each > 1 else grouped


@dataclass(frozen=True, kw_only=True)
class LinearStaged:
    """Buffers for a tentative block: rows mixed [B, S, C] and the sizes of steps [B, S, H]."""

    mixed: Tensor
    steps: Tensor


@dataclass(frozen=True, kw_only=True)
class Selected:
    """Inputs of a selective scan: x [B, T, C] of the convolution, its steps, and key and query [B, T, H, N].

    Source: transformers 5.23 ``MambaMixer``, which calls key and query B and C.
    """

    x: Tensor
    steps: StepSize
    key: Tensor
    query: Tensor


@dataclass(frozen=True, kw_only=True)
class ScanStaged:
    """Buffers for a tentative block: x and steps [B, S, C] and key [B, S, H, N]."""

    x: Tensor
    steps: Tensor
    key: Tensor

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Return all in the order of the fields."""
        return self.x, self.steps, self.key
