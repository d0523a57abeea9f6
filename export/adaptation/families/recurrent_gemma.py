"""RecurrentGemma's recurrent block. Source: transformers 5.23 ``RecurrentGemmaRecurrentBlock`` and ``RecurrentGemmaRglru``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.rg_lru import RgLruLayer
from hybridge.export.adaptation.families.family import Adaptation, StatefulMixer, short_convolution


class RecurrentBlock(StatefulMixer):
    """A conv and a real-gated linear recurrent unit, times a gate."""

    def __init__(self, original: nn.Module, cache: HybridCache) -> None:
        super().__init__(original, cache)
        m: Any = original
        self.cache_layer(RgLruLayer).convolution = short_convolution(m.conv_1d, None)

    def forward(self, input_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        m: Any = self.original
        layer = self.cache_layer(RgLruLayer)
        log_decay, gated = self._gates(layer.convolved(m.linear_x(input_states), block=self.cache.block))
        out = layer.mix(log_decay, gated, block=self.cache.block).to(input_states.dtype)
        return m.linear_out(out * m.act_fn(m.linear_y(input_states))), None

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, C] to the log decay and the gated and normalized input, [B, T, C] each."""
        m: Any = self.original.rg_lru
        input_gate = self._by_head(x, m.input_gate_weight, m.input_gate_bias)
        recurrent_gate = self._by_head(x, m.recurrent_gate_weight, m.recurrent_gate_bias)
        log_decay = -8.0 * recurrent_gate * F.softplus(m.recurrent_param)
        # The first token of a text starts the state: nothing fades, so nothing is made up for.
        first = (self.cache.block.positions == 0)[:, None]
        norm = torch.where(first, 1.0, (1.0 - (2.0 * log_decay).exp()).sqrt())
        return log_decay.float(), (x * input_gate * norm).float()

    def _by_head(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """The gate [B, T, C] of x, whose heads have a matrix [C / H, C / H] each."""
        heads = x.unflatten(-1, (len(weight), -1)).transpose(1, 2) @ weight + bias.unsqueeze(1)
        gate: Tensor = heads.transpose(1, 2).flatten(2).sigmoid()
        return gate


def one_of_several(mixer: nn.Module, cache: HybridCache) -> nn.Module:
    """Return the mixer for the kind of block: RecurrentGemma calls attention and recurrence temporal blocks."""
    return RecurrentBlock(mixer, cache) if hasattr(mixer, "rg_lru") else mixer


FAMILIES: Mapping[str, Adaptation] = {"recurrent_gemma": Adaptation(mixers={"temporal_block": one_of_several})}
