"""Recurrent state by core operators: a tentative block's small inputs are staged, and a commit replays the recurrence.

No second forward, and no copy of the state for each token. See ``Kernels`` for what each operation does; staged buffers hold
what the recurrence takes in.

**Identity**: a token whose gates are all zero (log decay 0, beta 0, step 0) leaves the state unchanged, whatever finite numbers
its other inputs are. That is what padding and rejected tokens become.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.operations.conv_window import ShortConvolution, swapped, window_after
from hybridge.cache.recurrences.decayed_linear_attention import decayed_linear_attention
from hybridge.cache.recurrences.delta_gates import DeltaGates, DeltaStaged, split_heads
from hybridge.cache.recurrences.diagonal_scan import diagonal_scan
from hybridge.cache.recurrences.gated_delta_rule import gated_delta_rule_chunked, gated_delta_rule_naive
from hybridge.cache.recurrences.kimi_delta_rule import kimi_delta_rule_chunked, kimi_delta_rule_naive
from hybridge.cache.recurrences.state_space import LinearAttention, LinearStaged, ScanStaged, Selected, StepSize


class CoreRecurrences:
    """See ``hybridge.cache.operations.kernels.Kernels``."""

    # Short convolutions

    def convolve(
        self, x: Tensor, convolution: ShortConvolution, window: Tensor, staged: Tensor, block: Block, start: int = 0
    ) -> Tensor:
        C = window.shape[2]
        return convolution.over(self.extend_window(x if x.shape[2] == C else x[..., start : start + C], window, staged, block))

    def extend_window(self, x: Tensor, window: Tensor, staged: Tensor, block: Block) -> Tensor:
        rows = torch.cat([window, x], dim=1)
        if block.tentative:
            stage(staged, x)
        else:
            # A select: inputs of padding or of a refused block, NaN perhaps, are not looked at.
            window.copy_(window_after(rows, block.count, window.shape[1]))
        return rows

    def shift(self, window: Tensor, x: Tensor, count: Tensor) -> None:
        window.copy_(window_after(torch.cat([window, x], dim=1), count, window.shape[1]))

    # Delta rules

    def delta_rule(self, mixed: Tensor, gates: DeltaGates, state: Tensor, staged: DeltaStaged, block: Block) -> Tensor:
        mixed, log_decay, beta = real(block, mixed, gates.log_decay, gates.strengths)
        query, key, value = split_heads(mixed, staged.key.shape[2], state)
        if block.tentative:
            for buffer, each in zip(staged.all, (key, value, log_decay, beta), strict=True):
                stage(buffer, each)
        out, after = self._delta_rule(query, key, value, log_decay, beta, state)
        if not block.tentative:
            state.copy_(after)
        return out.transpose(1, 2)

    def commit_delta_rule(self, state: Tensor, staged: DeltaStaged, count: Tensor) -> None:
        log_decay, beta = accepted(count, staged.log_decay, staged.beta)
        replace(state, self._delta_rule(staged.key, staged.key, staged.value, log_decay, beta, state)[1], count)

    def _delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Inputs by token, key heads shared, to outputs [B, H, T, V] and the state after them."""
        query, key, value, log_decay, beta = (x.transpose(1, 2) for x in (query, key, value, log_decay, beta))
        group = value.shape[1] // key.shape[1]
        if group > 1:
            query, key = (x.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (query, key))
        return self.gated_delta_rule(query, key, value, log_decay, beta, state)

    def gated_delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``gated_delta_rule`` for log_decay [B, H, T], one a head, and ``kimi_delta_rule`` for [B, H, T, K]."""
        naive, chunked = gated_delta_rule_naive, gated_delta_rule_chunked
        if log_decay.dim() == 4:
            naive, chunked = kimi_delta_rule_naive, kimi_delta_rule_chunked
        # For one token the definition is the shorter form.
        rule = naive if query.shape[2] == 1 else chunked
        return rule(query, key, value, log_decay, beta, state)

    # Linear attention and state spaces

    def linear_attention(
        self, mixed: Tensor, steps: StepSize | None, weights: LinearAttention, state: Tensor, staged: LinearStaged, block: Block
    ) -> Tensor:
        mixed, sizes = real(block, mixed, steps.sizes if steps else _ones(block, *mixed.shape[:2], state.shape[1]))
        if block.tentative:
            stage(staged.mixed, mixed)
            stage(staged.steps, sizes)
        out, after = self._linear_attention(mixed, sizes, weights, state)
        if not block.tentative:
            state.copy_(after)
        return swapped(out.flatten(1, 2))

    def commit_linear_attention(self, weights: LinearAttention, state: Tensor, staged: LinearStaged, count: Tensor) -> None:
        (sizes,) = accepted(count, staged.steps)
        replace(state, self._linear_attention(staged.mixed, sizes, weights, state)[1], count)

    def _linear_attention(self, mixed: Tensor, sizes: Tensor, weights: LinearAttention, state: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = weights.split(swapped(mixed), state)
        sizes = swapped(sizes)
        scaled, log_decay = value * sizes.unsqueeze(2), sizes * weights.rate.unsqueeze(-1)
        out, after = decayed_linear_attention(query, key, scaled, log_decay, state)
        return out if weights.skip is None else out + value * weights.skip[:, None, None], after

    def selective_scan(
        self, selected: Selected, rate: Tensor, skip: Tensor, state: Tensor, staged: ScanStaged, block: Block
    ) -> Tensor:
        inputs = selected.x.float(), selected.steps.sizes, selected.key.float()
        x, sizes, key, query = real(block, *inputs, selected.query.float())
        if block.tentative:
            for buffer, each in zip(staged.all, (x, sizes, key), strict=True):
                stage(buffer, each)
        states = self._scan(x, sizes, key, rate, state)
        if not block.tentative:
            state.copy_(states[..., -1].reshape(state.shape))
        out = (states * query.permute(0, 2, 3, 1).unsqueeze(2)).sum(3).flatten(1, 2)
        return swapped(out) + x * skip

    def commit_selective_scan(self, rate: Tensor, state: Tensor, staged: ScanStaged, count: Tensor) -> None:
        (sizes,) = accepted(count, staged.steps)
        states = self._scan(staged.x, sizes, staged.key, rate, state)
        replace(state, states[..., -1].reshape(state.shape), count)

    def _scan(self, x: Tensor, sizes: Tensor, key: Tensor, rate: Tensor, state: Tensor) -> Tensor:
        """States after every token [B, H, P, N, T]."""
        H, N = key.shape[2:]
        by_head = (each.unflatten(1, (H, -1)) for each in (swapped(sizes), swapped(x)))
        steps, values = by_head
        decay = (steps.unsqueeze(3) * rate.view(H, -1, N, 1)).exp()
        return diagonal_scan(
            decay, (steps * values).unsqueeze(3) * key.permute(0, 2, 3, 1).unsqueeze(2), state.view(decay.shape[:-1])
        )

    def fading_sum(self, log_decay: Tensor, x: Tensor, state: Tensor, staged: tuple[Tensor, Tensor], block: Block) -> Tensor:
        log_decay, x = real(block, log_decay, x)
        if block.tentative:
            for buffer, each in zip(staged, (log_decay, x), strict=True):
                stage(buffer, each)
        states = diagonal_scan(swapped(log_decay).exp(), swapped(x), state)
        if not block.tentative:
            state.copy_(states[..., -1])
        return swapped(states)

    def commit_fading_sum(self, state: Tensor, staged: tuple[Tensor, Tensor], count: Tensor) -> None:
        log_decay, x = accepted(count, *staged)
        replace(state, diagonal_scan(swapped(log_decay).exp(), swapped(x), state)[..., -1], count)


def stage(buffer: Tensor, value: Tensor) -> None:
    """Keep a tentative block's input [B, T, ...] in buffer [B, S, ...] for a commit; behind a block of less tokens go zeros."""
    rest = buffer.shape[1] - value.shape[1]
    if rest:
        # Memory that was never written may hold NaN, and NaN * 0 is NaN.
        value = torch.cat([value, value.new_zeros(value.shape[0], rest, *value.shape[2:])], dim=1)
    buffer.copy_(value)


def real(block: Block, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return inputs [B, T, ...] with zeros for tokens of a block that do not count; a tentative block has none of those."""
    if block.tentative:
        return inputs
    # A refused block has seen rows that nothing was written to: its inputs may be NaN, and NaN * 0 is NaN.
    masks = (block.shared(("real", x.dim()), lambda x=x: as_rows(block.real, x)) for x in inputs)  # type: ignore[misc]
    return tuple(torch.where(mask, x, 0.0) for mask, x in zip(masks, inputs, strict=True))


def accepted(count: Tensor, *gates: Tensor) -> tuple[Tensor, ...]:
    """Return staged gates [B, S, ...] with zeros from token ``count`` (int64 [1]) on."""
    mask = torch.arange(gates[0].shape[1]) < count
    return tuple(torch.where(as_rows(mask, x), x, 0.0) for x in gates)


def as_rows(mask: Tensor, x: Tensor) -> Tensor:
    """View mask [T] in a shape that selects tokens of x [B, T, ...]."""
    return mask.view(-1, *[1] * (x.dim() - 2))


def replace(state: Tensor, after: Tensor, count: Tensor) -> None:
    """Make ``after`` the state, in place, unless ``count`` is 0.

    Identity steps keep every value, but -0.0 + 0.0 is 0.0, and without a block the inputs may be NaN: a choice keeps all. By
    index it copies whole states; ExecuTorch's ``where`` asks for every number, which takes twenty times as long.
    """
    state.copy_(torch.stack([state, after]).index_select(0, (count > 0).long())[0])


def _ones(block: Block, *shape: int) -> Tensor:
    """float32 [B, T, H] of ones that no lowering takes for a constant: it drops the copy of a constant into a buffer."""
    return (block.positions >= 0).float().view(1, -1, 1).expand(shape)
