"""Define the adaptation of a model family, by which transformers' own forward runs over our cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.recurrences.short_conv import ShortConvolution
from hybridge.export.pinned.transformers import activations

Mixer = Callable[[Any, HybridCache], nn.Module]
"""Builds what takes the place of a token mixer, from the mixer itself and the cache."""

Layer = TypeVar("Layer", bound=CacheLayer)


ACTIVATION_NAMES = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "swish": "silu"}
"""The kernels' names of some of transformers' activations; others have the same name."""


def short_convolution(conv: nn.Conv1d, activation: str | None) -> ShortConvolution:
    """Return a checkpoint's depthwise convolution, with transformers' activation of that name."""
    return ShortConvolution(
        weight=lambda: conv.weight,
        bias=lambda: conv.bias,
        activation=activations[activation] if activation else None,
        name=ACTIVATION_NAMES.get(activation or "", activation),
    )


def nothing(model: PreTrainedModel, cache: HybridCache) -> None:
    """Do nothing, for families that need no more than their mixers."""


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """mixers: which attribute of a decoder layer (dots reach deeper) is replaced by which mixer, if the layer has it.

    prepare: what else must change in the model, once, after the mixers are in place.
    """

    mixers: Mapping[str, Mixer] = field(default_factory=dict)
    prepare: Callable[[PreTrainedModel, HybridCache], None] = nothing


class Unregistered:
    """Holds the cache for a module without making it a submodule: its buffers have one owner and one name."""

    def __init__(self, cache: HybridCache) -> None:
        self.cache = cache


class StatefulMixer(nn.Module):
    """A token mixer over a cache layer, around the checkpoint's own module.

    It keeps the original module's parameters and its place in the model; only the way through the state is ours. ``forward``
    takes and ignores transformers' own cache and mask arguments.
    """

    original: Any

    def __init__(self, original: Any, cache: HybridCache) -> None:
        super().__init__()
        self.original = original
        self.state = Unregistered(cache)

    @property
    def cache(self) -> HybridCache:
        return self.state.cache

    def cache_layer(self, kind: type[Layer], name: str = "") -> Layer:
        """Return the cache layer of this mixer's decoder layer; ``name`` selects one if it has several."""
        return self.cache.part(self.original.layer_idx, kind, name)


# Routers of experts in fewer operators than transformers' own, with the same answers.


class UngroupedRouter(nn.Module):
    """A sigmoid router whose experts are one group: transformers chooses the best groups among them all the same.

    Source: transformers 5.23 ``KimiLinearTopkRouter``, which is that of DeepSeek-V3.
    """

    original: Any

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map hidden_states [..., hidden] of T tokens to logits [T, E], weights and indices of the chosen experts [T, N]."""
        m = self.original
        logits = F.linear(hidden_states.view(-1, m.hidden_dim).float(), m.weight.float())
        scores = logits.sigmoid()
        indices = (scores + m.e_score_correction_bias).topk(m.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, indices)
        if m.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * m.routed_scaling_factor, indices
