r"""The gated delta rule, with one decay for each head, or for each channel of a head's keys (Kimi delta attention).

For each token, with state S [K, V] of one head:

    S <- exp(log_decay) S            (or diag(exp(log_decay)) S)
    S <- S + k (beta (v - k^T S))^T
    out = q^T S

Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (arXiv:2412.06464), equation 10; the chunked form is section 3.3
there. With a decay for each channel: Kimi Team, "Kimi Linear" (arXiv:2510.26692), equation 1; transformers 5.23
``chunk_kimi_delta_attention``. Queries come scaled and keys normalized. **Identity step**: ``log_decay = 0`` and ``beta = 0``.

Axes: B batch, T tokens, S staged tokens, Hk key heads, H value heads, K key dim, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.recurrence import Recurrence, accepted, real, replace, stage


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


class DeltaStaged(NamedTuple):
    """A tentative block: key [B, S, Hk, K], value [B, S, H, V], log_decay [B, S, H] or [B, S, H, K], beta [B, S, H].

    value: v, or the prediction error v - k^T S if the kernel stages errors.
    """

    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor


class GatedDeltaRule(Recurrence):
    """Run and commit the gated delta rule by core operators; state [B, H, K, V]."""

    def run(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        """Run a block of mixed [B, T, 2 Hk K + H V]: queries, keys and values, not normalized. Returns [B, T, H, V]."""
        mixed, log_decay, beta = real(block, mixed, gates.log_decay, gates.strengths)
        query, key, value = split_heads(mixed, staged.key.shape[2], state)
        stage(block, staged, key, value, log_decay, beta)
        out, after = self._by_token(query, key, value, log_decay, beta, state)
        if not block.tentative:
            state.copy_(after)
        return out.transpose(1, 2)

    def commit(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        """Accept the first ``count`` staged tokens."""
        log_decay, beta = accepted(count, staged.log_decay, staged.beta)
        replace(state, self._by_token(staged.key, staged.key, staged.value, log_decay, beta, state)[1], count)

    def _by_token(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the rule over inputs by token with shared key heads; return outputs [B, H, T, V] and the state after them."""
        query, key, value, log_decay, beta = (x.transpose(1, 2) for x in (query, key, value, log_decay, beta))
        group = value.shape[1] // key.shape[1]
        if group > 1:
            query, key = (x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (query, key))
        return self.rule(query, key, value, log_decay, beta, state)

    def rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the rule; arguments and results are those of ``gated_delta_rule_naive``."""
        if query.shape[2] == 1:  # for one token the definition is the shorter form
            return gated_delta_rule_naive(query, key, value, log_decay, beta, state)
        chunked = gated_delta_rule_chunked if log_decay.dim() == 3 else kimi_delta_rule_chunked
        return chunked(query, key, value, log_decay, beta, state)


def gated_delta_rule_naive(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one token after the other, as the definition has it; the other forms are tested against this.

    query, key [B, H, T, K], value [B, H, T, V], log_decay [B, H, T] or [B, H, T, K], beta [B, H, T], state [B, H, K, V], all
    float32. Returns the outputs [B, H, T, V] and the state after the last token.
    """
    outputs = []
    for t in range(query.shape[2]):
        q, k, v = query[:, :, t], key[:, :, t], value[:, :, t]
        decay = log_decay[:, :, t, None, None] if log_decay.dim() == 3 else log_decay[:, :, t, :, None]
        state = state * decay.exp()
        correction = beta[:, :, t, None] * (v - torch.einsum("bhk,bhkv->bhv", k, state))
        state = state + k.unsqueeze(-1) * correction.unsqueeze(-2)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(outputs, dim=2), state


def gated_delta_rule_chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T (except log2 T in the inverse).

    The same arguments and results as ``gated_delta_rule_naive`` with log_decay [B, H, T]. Made of core operators only, so
    any backend can run it; meant for T up to about 64, because the work inside a chunk grows with T squared.
    """
    T = query.shape[2]
    at, of = torch.arange(T)[:, None], torch.arange(T)[None, :]
    total = log_decay.cumsum(-1)
    # Sums of the decays between two tokens, each made on its own: differences of one running sum, which grows with T, would
    # lose the digits of the small ones; quotients of exponentials would overflow.
    between = torch.where(of < at, log_decay.unsqueeze(-1), 0.0).cumsum(-2)  # [B, H, T at, T of]
    decay = torch.where(of <= at, between.exp(), 0.0)
    key_beta = key * beta.unsqueeze(-1)
    system = torch.where(of < at, (key_beta @ key.transpose(-1, -2)) * decay, 0.0)
    inverse = unit_lower_inverse(system)
    from_start = total.exp().unsqueeze(-1)
    corrections = inverse @ (value * beta.unsqueeze(-1)) - (inverse @ (key_beta * from_start)) @ state
    out = (query * from_start) @ state + ((query @ key.transpose(-1, -2)) * decay) @ corrections
    to_end = decay[..., -1, :].unsqueeze(-1)
    state = state * from_start[..., -1:, :] + (key * to_end).transpose(-1, -2) @ corrections
    return out, state


def kimi_delta_rule_chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T (except log2 T in the inverse).

    The same arguments and results as ``gated_delta_rule_naive`` with log_decay [B, H, T, K]. Made of core operators only, so
    any backend can run it; meant for T up to about 64, because the decayed keys take B H T T K numbers.
    """
    T = query.shape[2]
    at, of = torch.arange(T)[:, None], torch.arange(T)[None, :]
    total = log_decay.cumsum(2)
    # Sums of the decays between two tokens, each made on its own, as in the gated delta rule. A product of keys is then a sum
    # over decayed channels, so the decay cannot be pulled out of it as where a head has only one.
    between = torch.where((of < at).unsqueeze(-1), log_decay.unsqueeze(3), 0.0).cumsum(2)
    decay = torch.where((of <= at).unsqueeze(-1), between.exp(), 0.0)
    decayed = decay * key.unsqueeze(2)  # [B, H, T at, T of, K]
    key_beta = key * beta.unsqueeze(-1)
    system = torch.where(of < at, (decayed @ key_beta.unsqueeze(-1)).squeeze(-1), 0.0)
    inverse = unit_lower_inverse(system)
    from_start = total.exp()
    corrections = inverse @ (value * beta.unsqueeze(-1)) - (inverse @ (key_beta * from_start)) @ state
    out = (query * from_start) @ state + (decayed @ query.unsqueeze(-1)).squeeze(-1) @ corrections
    state = state * from_start[:, :, -1:].transpose(-1, -2) + decayed[:, :, -1].transpose(-1, -2) @ corrections
    return out, state


def unit_lower_inverse(strictly_lower: Tensor) -> Tensor:
    """Invert I + L for strictly lower triangular L [..., T, T], by doubling the size of the inverted blocks.

    Where X inverts the diagonal blocks of size b, the blocks of size 2b are inverted by X - X L_b X, L_b being the lower left
    b x b part of each: the block form of forward substitution, and as stable. (A power series would need log2 T products
    too, but its terms can grow like binomials and cancel.)
    """
    T = strictly_lower.shape[-1]
    at, of = torch.arange(T)[:, None], torch.arange(T)[None, :]
    inverse = (at == of).to(strictly_lower.dtype).expand_as(strictly_lower)
    size = 1
    while size < T:
        same_pair = at // (2 * size) == of // (2 * size)
        below = torch.where(same_pair & (at // size > of // size), strictly_lower, 0.0)
        inverse = inverse - (below if size == 1 else inverse @ below @ inverse)
        size *= 2
    return inverse


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
