"""A tensor with its dimensions in another order, written out."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hybridge.runtime.kernels.define import define


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x of any dtype as ``x.permute(dims)``, contiguous."""
    return x.permute(tuple(dims)).contiguous()


define("permute", "Tensor x, int[] dims", permute, lambda x, dims: x.new_empty([x.shape[dim] for dim in dims]))
