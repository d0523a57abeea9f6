"""Make a transformers model run over a ``HybridCache``: its forward stays its own, its token mixers read and write our state.

Attention needs no code for a family: transformers calls whatever attention function the config names, and ours
(``hybridge``) looks up the cache layer by the module's ``layer_idx``. Recurrent mixers are replaced (``FAMILY_MIXERS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from hybridge.cache.full_attention import FullAttentionLayer
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.export.experts import EXPERTS
from hybridge.export.mixers import GatedDeltaNet, PackedGatedDeltaNet, Unregistered

ATTENTION = "hybridge"

Mixer = Callable[[nn.Module, HybridCache], nn.Module]


def _text_positions_only(model: Any) -> None:
    """Qwen3.5 mixes the frequencies of time, height and width; for text the three positions are the same."""
    model.get_decoder().rotary_emb.recomposition_frequencies = lambda freq: torch.cat((freq[0], freq[0]), dim=-1)


FAMILY_MIXERS: Mapping[str, Mapping[str, Mixer]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_next": {"linear_attn": PackedGatedDeltaNet},
    "qwen3_5_text": {"linear_attn": GatedDeltaNet},
}
"""For each model type, which attribute of a decoder layer is replaced by which mixer."""

SIMPLIFICATIONS: Mapping[str, Callable[[PreTrainedModel], None]] = {"qwen3_5_text": _text_positions_only}
"""What a family computes that is constant for text and need not be exported."""


def adapt(model: PreTrainedModel, cache: HybridCache) -> PreTrainedModel:
    """Bind ``model`` to ``cache``, in place; run it with ``use_cache=False`` and explicit ``position_ids`` inside a block."""
    model.config._attn_implementation = ATTENTION
    model.config._experts_implementation = EXPERTS
    mixers = FAMILY_MIXERS[model.config.model_type]
    for layer in decoder_layers(model):
        if hasattr(layer, "self_attn"):
            layer.self_attn.hybridge = Unregistered(cache)
        for name, mixer in mixers.items():
            if hasattr(layer, name):
                setattr(layer, name, mixer(getattr(layer, name), cache))
    if simplify := SIMPLIFICATIONS.get(model.config.model_type):
        simplify(model)
    return model


def decoder_layers(model: PreTrainedModel) -> Iterator[Any]:
    """The decoder layers in order."""
    yield from model.get_decoder().layers


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """transformers' attention function: query [B, H, T, D], key, value [B, G, T, D] to [B, T, H, D]."""
    cache: HybridCache = module.hybridge.cache
    layer = cache.cache_layers()[module.layer_idx]
    assert isinstance(layer, FullAttentionLayer)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return layer.attend(query, key, value, cache.block, scaling), None


def _no_mask(*_: Any, **__: Any) -> Tensor | None:
    """Our attention reads visibility off the block's positions."""
    return None


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, _no_mask)


def positions(cache: HybridCache) -> Tensor:
    """position_ids [1, T] of the block that is being run."""
    return cache.block.positions[None, :]


def run_block(model: PreTrainedModel, cache: HybridCache, tokens: Tensor) -> Tensor:
    """Hidden states [1, T, hidden] after the last norm, for tokens [1, T] over ``cache.block``."""
    output = model.get_decoder()(input_ids=tokens, position_ids=positions(cache), use_cache=False)
    hidden: Tensor = output.last_hidden_state
    return hidden
