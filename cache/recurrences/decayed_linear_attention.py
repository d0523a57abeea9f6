r"""Linear attention with one decay per head: Mamba-2's state space duality, and lightning attention.

For each token, with state S [P, N] of one head:

    S <- exp(log_decay) S + value key^T
    out = S query

Mamba-2 calls value dt x, key B and query C, and its log decay is dt A. Source: Dao and Gu, "Transformers are SSMs"
(arXiv:2405.21060), section 6; for lightning attention, whose decay is fixed, Qin et al. (arXiv:2401.04658).
**Identity step**: ``log_decay = 0`` and ``value = 0``, or ``key = 0``.

Axes: B batch, H heads, T tokens (last, as they come out of a convolution), P value dim, N key dim.
"""

from __future__ import annotations

import torch
from torch import Tensor


def decayed_linear_attention_naive(
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


def decayed_linear_attention(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T.

    The same arguments and results as ``decayed_linear_attention_naive``; meant for T up to a few hundred, because the work
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
