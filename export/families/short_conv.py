"""Gated short convolutions: LFM2 and LFM3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.short_conv import ShortConvLayer
from hybridge.export.families.family import Adaptation, StatefulMixer


class ShortConv(StatefulMixer):
    """Gate, convolve, gate: ``C conv(B x)``, without an activation. Source: transformers 5.23 ``Lfm2ShortConv``."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        self.cache_layer(ShortConvLayer).convolve = self._convolve

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        m: Any = self.original
        before, after, x = m.in_proj(hidden_states).transpose(1, 2).chunk(3, dim=1)
        mixed = self.cache_layer(ShortConvLayer).mix(before * x, block=self.cache.block)
        projected: Tensor = m.out_proj((after * mixed).transpose(1, 2))
        return projected

    def _convolve(self, window: Tensor) -> Tensor:
        m: Any = self.original
        return F.conv1d(window, m.conv.weight, m.conv.bias, groups=window.shape[1])


SHORT_CONV = Adaptation(mixers={"conv": ShortConv})

FAMILIES: Mapping[str, Adaptation] = {"lfm2": SHORT_CONV, "lfm2_moe": SHORT_CONV, "lfm3": SHORT_CONV}
