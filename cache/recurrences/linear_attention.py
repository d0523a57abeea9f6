r"""Linear attention with one decay per head: Mamba-2's state space duality, and lightning attention.

For each token, with state S [P, N] of one head:

    S <- exp(log_decay) S + value key^T
    out = S query

Mamba-2 calls value dt x, key B and query C, and its log decay is dt A. Source: Dao and Gu, "Transformers are SSMs"
(arXiv:2405.21060), section 6; for lightning attention, whose decay is fixed, Qin et al. (arXiv:2401.04658).
**Identity step**: ``log_decay = 0`` and ``value = 0``, or ``key = 0``; a step size of 0 gives both.

Axes: B batch, T tokens (last after a convolution), S staged tokens, H heads, P value dim, G groups, N key dim; C channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.recurrence import Recurrence, accepted, real, replace, stage, swapped


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
class LinearWeights:
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
        """Repeat each group for the H / G heads that it serves: [B, G N, T] to [B, H, N, T]."""
        each = heads // self.groups
        grouped: Tensor = x.unflatten(1, (self.groups, -1))
        return grouped.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2) if each > 1 else grouped


class LinearStaged(NamedTuple):
    """A tentative block: rows mixed [B, S, C] and step sizes [B, S, H]."""

    mixed: Tensor
    steps: Tensor


class LinearAttention(Recurrence):
    """Run and commit decayed linear attention by core operators; state [B, H, P, N]."""

    def run(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearWeights, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        """Run a block of rows mixed [B, T, C]; without ``steps`` every step size is 1. Returns [B, T, H P]."""
        mixed, sizes = real(block, mixed, steps.sizes if steps else _ones(block, *mixed.shape[:2], state.shape[1]))
        stage(block, staged, mixed, sizes)
        out, after = self._by_step(mixed, sizes, weights, state)
        if not block.tentative:
            state.copy_(after)
        return swapped(out.flatten(1, 2))

    def commit(self, weights: LinearWeights, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        """Accept the first ``count`` staged tokens."""
        (sizes,) = accepted(count, staged.steps)
        replace(state, self._by_step(staged.mixed, sizes, weights, state)[1], count)

    def _by_step(self, mixed: Tensor, sizes: Tensor, weights: LinearWeights, state: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = weights.split(swapped(mixed), state)
        sizes = swapped(sizes)
        scaled, log_decay = value * sizes.unsqueeze(2), sizes * weights.rate.unsqueeze(-1)
        out, after = linear_attention_chunked(query, key, scaled, log_decay, state)
        return out if weights.skip is None else out + value * weights.skip[:, None, None], after


def linear_attention_naive(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one token after the other, as the definition has it; the other form is tested against this.

    query, key [B, H, N, T], value [B, H, P, T], log_decay [B, H, T], state [B, H, P, N], all float32.
    Returns the outputs [B, H, P, T] and the state after the last token.
    """
    outputs = []
    for t in range(query.shape[-1]):
        decay = log_decay[:, :, t, None, None].exp()
        state = state * decay + value[..., t].unsqueeze(-1) * key[..., t].unsqueeze(-2)
        outputs.append((state * query[..., t].unsqueeze(-2)).sum(-1))
    return torch.stack(outputs, dim=-1), state


def linear_attention_chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T.

    The same arguments and results as ``linear_attention_naive``; meant for T up to a few hundred, because the work
    inside a chunk grows with T squared.
    """
    T = query.shape[-1]
    if T == 1:
        state = state * log_decay.unsqueeze(-1).exp() + value * key.transpose(-1, -2)
        return state @ query, state
    of, at = torch.arange(T)[:, None], torch.arange(T)[None, :]
    # Sums of the decays between two tokens, each made on its own: differences of one running sum, which grows with T, would
    # lose the digits of the small ones; quotients of exponentials would overflow.
    between = torch.where(of < at, log_decay.unsqueeze(-2), 0.0).cumsum(-1)  # [B, H, T of, T at]
    decay = torch.where(of <= at, between.exp(), 0.0)
    from_start = log_decay.cumsum(-1).exp().unsqueeze(-2)
    out = (state @ query) * from_start + value @ ((key.transpose(-1, -2) @ query) * decay)
    to_end = decay[..., -1].unsqueeze(-2)
    return out, state * from_start[..., -1:] + (value * to_end) @ key.transpose(-1, -2)


def _ones(block: Block, *shape: int) -> Tensor:
    """Return float32 ones [B, T, H] that no lowering takes for a constant: it drops the copy of a constant into a buffer."""
    return (block.positions >= 0).float().view(1, -1, 1).expand(shape)
