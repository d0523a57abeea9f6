"""Gated short convolutions: LFM2 and LFM3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer, short_convolution


class ShortConv(StatefulMixer):
    """Gate, convolve, gate: ``C conv(B x)``, without an activation. Source: transformers 5.23 ``Lfm2ShortConv``."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        self.cache_layer(ShortConvLayer).convolution = short_convolution(m.conv, None)

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        before, after, x = m.in_proj(hidden_states).chunk(3, dim=-1)
        mixed = self.cache_layer(ShortConvLayer).mix(before * x, block=self.cache.block)
        projected: Tensor = m.out_proj(after * mixed)
        return projected


SHORT_CONV = Adaptation(mixers={"conv": ShortConv})

FAMILIES: Mapping[str, Adaptation] = {"lfm2": SHORT_CONV, "lfm2_moe": SHORT_CONV, "lfm3": SHORT_CONV}
