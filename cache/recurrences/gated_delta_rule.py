r"""The gated delta rule with one decay per head, and what leaves its state unchanged.

For each token, with state S [K, V] of one head:

    S <- exp(log_decay) S
    S <- S + k (beta (v - k^T S))^T
    out = q^T S

Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (arXiv:2412.06464), equation 10; the chunked form is section 3.3
there. Queries come scaled and keys normalized. **Identity step**: ``log_decay = 0`` and ``beta = 0``.

Axes: B batch, H value heads, T tokens, K key dim, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gated_delta_rule_naive(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one token after the other, as the definition has it; the other forms are tested against this.

    query, key [B, H, T, K], value [B, H, T, V], log_decay and beta [B, H, T], state [B, H, K, V], all float32.
    Returns the outputs [B, H, T, V] and the state after the last token.
    """
    outputs = []
    for t in range(query.shape[2]):
        q, k, v = query[:, :, t], key[:, :, t], value[:, :, t]
        state = state * log_decay[:, :, t, None, None].exp()
        correction = beta[:, :, t, None] * (v - torch.einsum("bhk,bhkv->bhv", k, state))
        state = state + k.unsqueeze(-1) * correction.unsqueeze(-2)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(outputs, dim=2), state


def gated_delta_rule_chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all T tokens as one chunk, in a number of operators that does not grow with T (but for log2 T in the inverse).

    The same arguments and results as ``gated_delta_rule_naive``. Made of core operators only, so any backend can run it;
    meant for T up to about 64, because the work inside a chunk grows with T squared.
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
