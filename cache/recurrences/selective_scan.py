r"""Mamba's selective scan: a recurrence whose states do not mix.

For each channel of x and each of its N states, with a step size ``s`` for each token and channel:

    h <- exp(s rate) h + s x key
    out = sum over the N states of (query h) + skip x

Source: Gu and Dao, "Mamba" (arXiv:2312.00752), section 3; transformers 5.23 ``MambaMixer``, which calls key and query B and C.
The doubling form is Hillis and Steele's scan (CACM 1986). **Identity step**: a step size of 0, so a decay of 1 and inputs of 0.

Axes: B batch, T tokens (last in the scan itself), S staged tokens, C channels in H heads of P, N states of a channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.recurrences.linear_attention import StepSize
from hybridge.cache.recurrences.recurrence import Recurrence, accepted, real, replace, stage, swapped


@dataclass(frozen=True, kw_only=True)
class Selected:
    """Inputs of a selective scan: x [B, T, C] of the convolution, its steps, and key and query [B, T, H, N]."""

    x: Tensor
    steps: StepSize
    key: Tensor
    query: Tensor


class ScanStaged(NamedTuple):
    """A tentative block: x and step sizes [B, S, C] and key [B, S, H, N]."""

    x: Tensor
    steps: Tensor
    key: Tensor


class SelectiveScan(Recurrence):
    """Run and commit the scan by core operators; state [B, C, N] (or [B, H, P, N]), rate [C, N] and skip [C]."""

    def run(self, selected: Selected, rate: Tensor, skip: Tensor, state: Tensor, staged: ScanStaged, block: Block) -> Tensor:
        """Run a block. Returns [B, T, C]."""
        inputs = selected.x.float(), selected.steps.sizes, selected.key.float()
        x, sizes, key, query = real(block, *inputs, selected.query.float())
        stage(block, staged, x, sizes, key)
        states = self._states(x, sizes, key, rate, state)
        if not block.tentative:
            state.copy_(states[..., -1].reshape(state.shape))
        out = (states * query.permute(0, 2, 3, 1).unsqueeze(2)).sum(3).flatten(1, 2)
        return swapped(out) + x * skip

    def commit(self, rate: Tensor, state: Tensor, staged: ScanStaged, count: Tensor) -> None:
        """Accept the first ``count`` staged tokens."""
        (sizes,) = accepted(count, staged.steps)
        states = self._states(staged.x, sizes, staged.key, rate, state)
        replace(state, states[..., -1].reshape(state.shape), count)

    def _states(self, x: Tensor, sizes: Tensor, key: Tensor, rate: Tensor, state: Tensor) -> Tensor:
        """Return the states after every token, [B, H, P, N, T]."""
        H, N = key.shape[2:]
        steps, values = (each.unflatten(1, (H, -1)) for each in (swapped(sizes), swapped(x)))
        decay = (steps.unsqueeze(3) * rate.view(H, -1, N, 1)).exp()
        inputs = (steps * values).unsqueeze(3) * key.permute(0, 2, 3, 1).unsqueeze(2)
        return diagonal_scan(decay, inputs, state.view(decay.shape[:-1]))


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
