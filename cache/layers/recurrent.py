"""Keep recurrent state: a conv window and what the recurrence of a mixer left behind.

Each layer is one kind of mixer: gated delta nets, Kimi delta attention, RWKV-7, Mamba, Mamba-2, lightning attention and RG-LRU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.cache.recurrences.gated_delta_rule import DeltaGates, DeltaStaged, GatedDeltaRule
from hybridge.cache.recurrences.gated_linear_scan import GatedLinearScan, GatedScanStaged
from hybridge.cache.recurrences.generalized_delta_rule import GeneralizedDeltaInputs, GeneralizedDeltaRule
from hybridge.cache.recurrences.linear_attention import LinearAttention, LinearStaged, LinearWeights, StepSize
from hybridge.cache.recurrences.selective_scan import ScanStaged, Selected, SelectiveScan
from hybridge.cache.recurrences.short_conv import ConvWindow, ShortConvolution


class ConvolvedLayer(CacheLayer):
    """A recurrence after a short convolution: conv_state [B, W, C] and recurrent_state [B, *state], the latter float32.

    C channels, W = conv kernel - 1. ``convolution`` is the mixer's.
    """

    conv_state: Tensor
    recurrent_state: Tensor
    staged_conv: Tensor
    convolution: ShortConvolution

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, channels: int, conv_kernel: int, state: tuple[int, ...]) -> None:
        super().__init__(sizes, kernels)
        self.conv = kernels.recurrence(ConvWindow)
        self.add_committed("conv_state", conv_kernel - 1, channels, dtype=sizes.dtype)
        self.add_committed("recurrent_state", *state)
        self.add_staged("staged_conv", channels, dtype=sizes.dtype)

    def convolved(self, x: Tensor, *, block: Block, start: int = 0) -> Tensor:
        """Convolve the block: C channels of x [B, T, X] from ``start`` on. Returns [B, T, C]."""
        return self.conv.run(x, self.convolution, self.conv_state, self.staged_conv, block, start)

    def commit(self, count: Tensor) -> None:
        self.conv.commit(self.conv_state, self.staged_conv, count)


class GatedDeltaNetLayer(ConvolvedLayer):
    """recurrent_state [B, H, K, V] of H value heads; C = 2 Hk K + H V channels (query, key, value) with Hk key heads.

    by_channel: each channel of a key has a decay of its own.
    """

    kind: ClassVar[str] = "gated_delta_net"

    def __init__(
        self,
        sizes: CacheSizes,
        kernels: Kernels,
        *,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_kernel: int,
        by_channel: bool = False,
    ) -> None:
        channels, state = 2 * key_heads * key_dim + value_heads * value_dim, (value_heads, key_dim, value_dim)
        super().__init__(sizes, kernels, channels=channels, conv_kernel=conv_kernel, state=state)
        self.rule = kernels.recurrence(GatedDeltaRule)
        self.add_staged("staged_key", key_heads, key_dim, dtype=sizes.dtype)
        self.add_staged("staged_value", value_heads, value_dim, dtype=sizes.dtype)
        self.add_staged("staged_log_decay", value_heads, *([key_dim] if by_channel else []))
        self.add_staged("staged_beta", value_heads)

    def mix(self, x: Tensor, gates: DeltaGates, *, block: Block) -> Tensor:
        """Run the block, x [B, T, C] before the convolution. Returns [B, T, H, V]."""
        mixed = self.convolved(x, block=block)
        return self.rule.run(mixed, gates, self.recurrent_state, self.staged_as(DeltaStaged), block)

    def commit(self, count: Tensor) -> None:
        self.rule.commit(self.recurrent_state, self.staged_as(DeltaStaged), count)
        super().commit(count)


class KimiDeltaAttentionLayer(GatedDeltaNetLayer):
    """recurrent_state [B, H, D, D] of H heads of dim D; C = 3 H D channels (query, key, value)."""

    kind: ClassVar[str] = "kimi_delta_attention"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int, conv_kernel: int) -> None:
        super().__init__(
            sizes,
            kernels,
            key_heads=heads,
            value_heads=heads,
            key_dim=head_dim,
            value_dim=head_dim,
            conv_kernel=conv_kernel,
            by_channel=True,
        )


class Rwkv7Layer(CacheLayer):
    """recurrent_state [B, H, D, D] float32 of H heads of dim D; the shifts by one token are layers of their own."""

    kind: ClassVar[str] = "rwkv7"

    recurrent_state: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int) -> None:
        super().__init__(sizes, kernels)
        self.rule = kernels.recurrence(GeneralizedDeltaRule)
        self.add_committed("recurrent_state", heads, head_dim, head_dim)
        for name in ("log_decay", "rate"):
            self.add_staged(f"staged_{name}", heads, head_dim)
        for name in ("removed", "key", "value"):
            self.add_staged(f"staged_{name}", heads, head_dim, dtype=sizes.dtype)

    def mix(self, query: Tensor, inputs: GeneralizedDeltaInputs, *, block: Block) -> Tensor:
        """Run the block, query [B, T, H, D] and inputs. Returns [B, T, H, D]."""
        staged = self.staged_as(GeneralizedDeltaInputs)
        return self.rule.run(query, inputs, self.recurrent_state, staged, block)

    def commit(self, count: Tensor) -> None:
        self.rule.commit(self.recurrent_state, self.staged_as(GeneralizedDeltaInputs), count)


class MambaLayer(ConvolvedLayer):
    """recurrent_state [B, C, N], or [B, H, P, N] of several heads: C = H P channels in H heads (1 except in Zamba).

    ``rate`` [C, N] (A, negative) and ``skip`` [C] (D) are the mixer's, in float32.
    """

    kind: ClassVar[str] = "mamba"

    rate: Callable[[], Tensor]
    skip: Callable[[], Tensor]

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, channels: int, state_dim: int, conv_kernel: int, heads: int = 1
    ) -> None:
        by_head = (channels,) if heads == 1 else (heads, channels // heads)
        super().__init__(sizes, kernels, channels=channels, conv_kernel=conv_kernel, state=(*by_head, state_dim))
        self.scan = kernels.recurrence(SelectiveScan)
        self.add_staged("staged_x", channels)
        self.add_staged("staged_steps", channels)
        self.add_staged("staged_key", heads, state_dim)

    def mix(self, selected: Selected, *, block: Block) -> Tensor:
        """Scan what the mixer selected after the convolution. Returns [B, T, C]."""
        staged = self.staged_as(ScanStaged)
        return self.scan.run(selected, self.rate(), self.skip(), self.recurrent_state, staged, block)

    def commit(self, count: Tensor) -> None:
        self.scan.commit(self.rate(), self.recurrent_state, self.staged_as(ScanStaged), count)
        super().commit(count)


class Mamba2Layer(ConvolvedLayer):
    """recurrent_state [B, H, P, N] of H heads of dim P; C = H P + 2 G N channels (x, B, C) with G groups.

    ``weights`` are the mixer's.
    """

    kind: ClassVar[str] = "mamba2"

    weights: Callable[[], LinearWeights]

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int, state_dim: int, groups: int, conv_kernel: int
    ) -> None:
        channels, state = heads * head_dim + 2 * groups * state_dim, (heads, head_dim, state_dim)
        super().__init__(sizes, kernels, channels=channels, conv_kernel=conv_kernel, state=state)
        self.groups = groups
        self.attention = kernels.recurrence(LinearAttention)
        self.add_staged("staged_mixed", channels, dtype=sizes.dtype)
        self.add_staged("staged_steps", heads)

    def mix(self, x: Tensor, steps: StepSize, *, block: Block, start: int) -> Tensor:
        """Run the block: C channels of x [B, T, X] from ``start`` on, before the convolution. Returns [B, T, H P]."""
        mixed, staged = self.convolved(x, block=block, start=start), self.staged_as(LinearStaged)
        return self.attention.run(mixed, steps, self.weights(), self.recurrent_state, staged, block)

    def commit(self, count: Tensor) -> None:
        self.attention.commit(self.weights(), self.recurrent_state, self.staged_as(LinearStaged), count)
        super().commit(count)


class LightningAttentionLayer(CacheLayer):
    """recurrent_state [B, H, V, K] float32 of H heads, K = V = D the head dim; no convolution.

    ``weights`` are the mixer's.
    """

    kind: ClassVar[str] = "lightning_attention"

    recurrent_state: Tensor
    weights: Callable[[], LinearWeights]

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, heads: int, head_dim: int) -> None:
        super().__init__(sizes, kernels)
        self.attention = kernels.recurrence(LinearAttention)
        self.add_committed("recurrent_state", heads, head_dim, head_dim)
        self.add_staged("staged_mixed", 3 * heads * head_dim, dtype=sizes.dtype)
        self.add_staged("staged_steps", heads)  # all 1; a commit makes those of rejected tokens 0

    def mix(self, mixed: Tensor, *, block: Block) -> Tensor:
        """Run the block, mixed [B, T, 3 H D]: query, key and value of each head in turn. Returns [B, T, H D]."""
        staged = self.staged_as(LinearStaged)
        return self.attention.run(mixed, None, self.weights(), self.recurrent_state, staged, block)

    def commit(self, count: Tensor) -> None:
        self.attention.commit(self.weights(), self.recurrent_state, self.staged_as(LinearStaged), count)


class RgLruLayer(ConvolvedLayer):
    """recurrent_state [B, C]: a number for each channel of RecurrentGemma's real-gated linear recurrent unit."""

    kind: ClassVar[str] = "rg_lru"

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, channels: int, conv_kernel: int) -> None:
        super().__init__(sizes, kernels, channels=channels, conv_kernel=conv_kernel, state=(channels,))
        self.scan = kernels.recurrence(GatedLinearScan)
        self.add_staged("staged_log_decay", channels)
        self.add_staged("staged_input", channels)

    def mix(self, log_decay: Tensor, x: Tensor, *, block: Block) -> Tensor:
        """Run the block after the convolution, log_decay and x [B, T, C], x gated and normalized. Returns [B, T, C]."""
        return self.scan.run(log_decay, x, self.recurrent_state, self.staged_as(GatedScanStaged), block)

    def commit(self, count: Tensor) -> None:
        self.scan.commit(self.recurrent_state, self.staged_as(GatedScanStaged), count)
        super().commit(count)
