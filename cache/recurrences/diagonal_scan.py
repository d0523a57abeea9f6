r"""The recurrence whose states do not mix: Mamba's selective scan, and the RG-LRU.

For each element of the state, by itself:

    h <- decay h + inputs

Source: Gu and Dao, "Mamba" (arXiv:2312.00752), section 3; De et al., "Griffin" (arXiv:2402.19427), section 2.4. The doubling
form is Hillis and Steele's scan (CACM 1986). **Identity step**: ``decay = 1`` and ``inputs = 0``.

Axes: ... any, T tokens (last).
"""

from __future__ import annotations

import torch
from torch import Tensor


def diagonal_scan_naive(decay: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Compute one token after the other, as the definition has it; the other form is tested against this.

    decay, inputs [..., T] and state [...], all float32. Returns the state after every token, [..., T].
    """
    states = []
    for t in range(inputs.shape[-1]):
        state = decay[..., t] * state + inputs[..., t]
        states.append(state)
    return torch.stack(states, dim=-1)


def diagonal_scan(decay: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Compute all T tokens in log2 T steps, each of which doubles the tokens that a partial result covers.

    The same arguments and results as ``diagonal_scan_naive``. Decays are only ever multiplied, so nothing overflows.
    """
    T, size = inputs.shape[-1], 1
    while size < T:
        carried = inputs[..., size:] + decay[..., size:] * inputs[..., :-size]
        faded = decay[..., size:] * decay[..., :-size]
        inputs = torch.cat([inputs[..., :size], carried], dim=-1)
        decay = torch.cat([decay[..., :size], faded], dim=-1)
        size *= 2
    return inputs + decay * state.unsqueeze(-1)
