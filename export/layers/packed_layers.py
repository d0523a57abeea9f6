"""Linear layers and embeddings over weights in panels, as our kernels read them (``runtime/kernels/panels.h``).

Weights of 4 and 8 bits are symmetric whole numbers with one float16 scale for each group of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import hybridge.runtime.kernels.experts  # noqa: F401  registers the operator
import hybridge.runtime.kernels.linear
from hybridge.export.layers.rounded_weight import RoundedWeight
from hybridge.export.pinned.transformers_loading import initialized
from hybridge.runtime.kernels.panels import LANES, pack, pack_factors

CHUNK = 1 << 18
"""Elements that are worked on at once: they stay in the processor's cache, which makes it ten times faster."""


class PackedWeight:
    """A weight [N, K] as panels of 4, 8 or 32 bits; scales are None for 32."""

    def __init__(self, packed: Tensor, scales: Tensor | None, shape: tuple[int, int], bits: int) -> None:
        self.rows, self.columns = shape
        self.bits = bits
        self.packed = constant(packed)
        self.scales = None if scales is None else constant(pack_factors(scales.to(torch.float16)))

    @classmethod
    def exact(cls, weight: Tensor) -> PackedWeight:
        """Pack numbers as they are, in float32."""
        rows, columns = weight.shape
        return cls(torch.cat([pack(part, 32) for part in float_rows(weight)]), None, (rows, columns), 32)

    @classmethod
    def of(cls, weight: RoundedWeight) -> PackedWeight:
        """Pack whole numbers and their scales, which become float16."""
        rows, columns = weight.quanta.shape
        with one_thread():
            packed = torch.cat([pack(part, weight.bits) for part in _chunks(weight.quanta)])
        return cls(packed, weight.scales, (rows, columns), weight.bits)


class WithoutWeight(nn.Module):
    """A layer that keeps its numbers otherwise, in ``bits`` bits."""

    bits: int

    @property
    def weight(self) -> Tensor:
        """Return an empty tensor of the type that is computed in: some models ask a layer's weight for its type or device.

        Others initialize it once they are read, unless it is marked.
        """
        return initialized(torch.empty(0))


class _Packed(WithoutWeight):
    """Packed weights with ``out_features`` outputs; ``integer`` rounds what goes in to 8 bits, by the groups of the weight."""

    def __init__(self, weight: PackedWeight, out_features: int, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__()
        self.packed, self.scales, self.bits, self.out_features = weight.packed, weight.scales, weight.bits, out_features
        self.bias = None if bias is None else constant(bias)
        self.integer = integer


class PackedLinear(_Packed):
    """A linear layer."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None, *, integer: bool) -> None:
        super().__init__(weight, weight.rows, bias, integer=integer)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.packed_linear(x, self.packed, self.scales, self.bias, self.out_features, self.integer)
        return out


class PackedExperts(_Packed):
    """The weights [E, N, K] and biases [E, N] of one projection of all experts; each row goes through one of them."""

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Map x [M, K], chosen int64 [M] to [M, N]."""
        out: Tensor = torch.ops.hybridge.packed_experts(
            x, chosen, self.packed, self.scales, self.bias, self.out_features, self.integer
        )
        return out


class PackedEmbedding(WithoutWeight):
    """An embedding, whose weight a tied head may share; ``factor`` is what its family multiplies it with."""

    def __init__(self, weight: PackedWeight, factor: float) -> None:
        super().__init__()
        self.packed, self.scales, self.bits = weight.packed, weight.scales, weight.bits
        self.shape, self.factor = (weight.rows, weight.columns), factor

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.packed_embedding(tokens, self.packed, self.scales, *self.shape)
        return out if self.factor == 1.0 else out * self.factor


def float_rows(weight: Tensor) -> Iterator[Tensor]:
    """Yield a weight [N, K] in float32, some rows at a time: whole panels, but for the last ones."""
    with one_thread():
        for rows in _chunks(weight.detach()):
            yield rows.float()


def _chunks(weight: Tensor) -> Sequence[Tensor]:
    chunks: Sequence[Tensor] = weight.split(max(1, CHUNK // (weight.shape[1] * LANES)) * LANES)
    return chunks


def constant(values: Tensor) -> nn.Parameter:
    """Return numbers that a program stores: buffers would be state."""
    return nn.Parameter(values, requires_grad=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other at every chunk cost far more than they bring."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
