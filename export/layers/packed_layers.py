"""Linear layers and embeddings over weights in panels, as our kernels read them (``runtime/kernels/panels.h``).

Weights of 4 and 8 bits are symmetric whole numbers with one float16 scale for each group of columns, by torchao's recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import hybridge.runtime.kernels.experts  # noqa: F401  registers the operator
import hybridge.runtime.kernels.linear as kernels
from hybridge.export.pinned.torchao import quantize, symmetric_scales
from hybridge.export.pinned.transformers_loading import initialized

CHUNK = 1 << 18
"""Elements that are packed at once: they stay in the processor's cache, which makes it ten times faster."""

SMALLEST_SCALE = 2.0**-24
"""Of float16 numbers above 0."""


class PackedWeight:
    """A weight [N, K] as panels of 4, 8 or 32 bits; scales are None for 32."""

    def __init__(self, weight: Tensor, bits: int, group: int) -> None:
        self.rows, self.columns = weight.shape
        parts = [_pack(rows, bits, group) for rows in float_rows(weight)]
        self.packed = constant(torch.cat([packed for packed, _ in parts]))
        self.scales = constant(torch.cat([scales for _, scales in parts if scales is not None])) if bits < 32 else None


class WithoutWeight(nn.Module):
    """A layer that keeps its numbers otherwise."""

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
        self.packed, self.scales, self.out_features = weight.packed, weight.scales, out_features
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
        self.packed, self.scales, self.shape = weight.packed, weight.scales, (weight.rows, weight.columns)
        self.factor = factor

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.packed_embedding(tokens, self.packed, self.scales, *self.shape)
        return out if self.factor == 1.0 else out * self.factor


def _pack(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor | None]:
    if bits == 32:
        return kernels.pack(weight, bits), None
    quanta, scales = rounded(weight, bits, group)
    return kernels.pack(quanta, bits), kernels.pack_scales(scales)


def rounded(weight: Tensor, bits: int, group: int, scale: torch.dtype = torch.float16) -> tuple[Tensor, Tensor]:
    """Round a weight [N, K] to int8 [N, K] with float32 scales [N, K / group], which the type ``scale`` holds exactly."""
    high = (1 << (bits - 1)) - 1
    low = -8 if bits == 4 else -high  # -128 has no positive twin, which some processors' products need
    scales = symmetric_scales(weight, group, low, high).to(scale).clamp(min=SMALLEST_SCALE).float()
    return quantize(weight, scales, group, low, high), scales.view(weight.shape[0], -1)


def float_rows(weight: Tensor) -> Iterator[Tensor]:
    """Yield a weight [N, K] in float32, some rows at a time: whole panels, but for the last ones."""
    panels = max(1, CHUNK // (weight.shape[1] * kernels.LANES)) * kernels.LANES
    with _one_thread():
        for rows in weight.detach().split(panels):
            yield rows.float()


def constant(values: Tensor) -> nn.Parameter:
    """Return numbers that a program stores: buffers would be state."""
    return nn.Parameter(values, requires_grad=False)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other at every chunk cost far more than they bring."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
