"""Define the two operations of a recurrence, and the identity steps by which every recurrence skips tokens.

An **identity step** is a token whose inputs leave the state unchanged. Padding and rejected tokens become identity steps, so
shapes stay fixed and nothing branches. A rejected block costs nothing, and accepted tokens cost one replay of the recurrence
over their staged inputs: no second forward, and no copy of the state for each token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block


class Recurrence:
    """The base of every recurrence's operations: ``run`` for a block of tokens, ``commit`` for the tokens that it staged.

    Each subclass gives both operations its own arguments, and implements them by core operators. A runtime with better
    operators subclasses it in turn (``Kernels.recurrence``). All of them keep this contract:

    - ``run`` changes the state in place, by the block's first ``block.count`` tokens. For a tentative block it leaves the
      state alone, and fills the staged buffers instead. It returns the outputs of all tokens.
    - ``commit`` replays the first ``count`` (int64 [1]) staged tokens. A count of 0 leaves every bit of the state.
    - NaN in tokens that do not count never reaches the state.
    - An implementation decides what it stages, within the shapes of the staged buffers.
    """


def real(block: Block, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return inputs [B, T, ...] with zeros for tokens of a block that do not count; a tentative block has none of those."""
    if block.tentative:
        return inputs
    # A refused block has seen rows that nothing was written to: its inputs may be NaN, and NaN * 0 is NaN.
    masks = (block.shared(("real", x.dim()), lambda x=x: _as_rows(block.real, x)) for x in inputs)  # type: ignore[misc]
    return tuple(torch.where(mask, x, 0.0) for mask, x in zip(masks, inputs, strict=True))


def stage(block: Block, staged: tuple[Tensor, ...], *values: Tensor) -> None:
    """Keep values [B, T, ...] of a tentative block in buffers [B, S, ...] for a commit; other blocks need none.

    Rows of the buffers after the block become zeros.
    """
    if not block.tentative:
        return
    for buffer, value in zip(staged, values, strict=True):
        if rest := buffer.shape[1] - value.shape[1]:
            # Memory that was never written may hold NaN, and NaN * 0 is NaN.
            value = torch.cat([value, value.new_zeros(value.shape[0], rest, *value.shape[2:])], dim=1)
        buffer.copy_(value)


def accepted(count: Tensor, *gates: Tensor) -> tuple[Tensor, ...]:
    """Return staged gates [B, S, ...] with zeros from token ``count`` (int64 [1]) on."""
    mask = torch.arange(gates[0].shape[1]) < count
    return tuple(torch.where(_as_rows(mask, x), x, 0.0) for x in gates)


def replace(state: Tensor, after: Tensor, count: Tensor) -> None:
    """Make ``after`` the state, in place, unless ``count`` is 0.

    Identity steps keep every value, but -0.0 + 0.0 is 0.0, and without a block the inputs may be NaN: a choice keeps all. By
    index it copies whole states; ExecuTorch's ``where`` asks for every number, which takes twenty times as long.
    """
    state.copy_(torch.stack([state, after]).index_select(0, (count > 0).long())[0])


def swapped(x: Tensor) -> Tensor:
    """Transpose [B, X, Y] to [B, Y, X]: for one row or column a view of the same memory, which no runtime copies."""
    return x.reshape(x.shape[0], x.shape[2], x.shape[1]) if 1 in x.shape[1:] else x.transpose(1, 2)


def _as_rows(mask: Tensor, x: Tensor) -> Tensor:
    """View mask [T] in a shape that selects tokens of x [B, T, ...]."""
    return mask.view(-1, *[1] * (x.dim() - 2))
