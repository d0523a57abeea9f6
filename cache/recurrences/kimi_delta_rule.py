r"""The delta rule of Kimi delta attention: gated as in ``gated_delta_rule``, but with one decay per key channel.

For each token, with state S [K, V] of one head:

    S <- diag(exp(log_decay)) S
    S <- S + k (beta (v - k^T S))^T
    out = q^T S

Source: Kimi Team, "Kimi Linear" (arXiv:2510.26692), equation 1; transformers 5.23 ``chunk_kimi_delta_attention``. Queries come
scaled and keys normalized. **Identity step**: ``log_decay = 0`` and ``beta = 0``.

Axes: B batch, H heads, T tokens, K key dim, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.recurrences.gated_delta_rule import unit_lower_inverse


def kimi_delta_rule_naive(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one token after the other, as the definition has it; the chunked form is tested against this.

    query, key, log_decay [B, H, T, K], value [B, H, T, V], beta [B, H, T], state [B, H, K, V], all float32.
    Returns the outputs [B, H, T, V] and the state after the last token.
    """
    outputs = []
    for t in range(query.shape[2]):
        q, k, v = query[:, :, t], key[:, :, t], value[:, :, t]
        state = state * log_decay[:, :, t, :, None].exp()
        correction = beta[:, :, t, None] * (v - torch.einsum("bhk,bhkv->bhv", k, state))
        state = state + k.unsqueeze(-1) * correction.unsqueeze(-2)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(outputs, dim=2), state


def kimi_delta_rule_chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T (but for log2 T in the inverse).

    The same arguments and results as ``kimi_delta_rule_naive``. Made of core operators only, so any backend can run it; meant
    for T up to about 64, because the decayed keys take B H T T K numbers.
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
