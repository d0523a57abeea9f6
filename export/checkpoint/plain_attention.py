"""Families that nobody entered, but whose layers attend as transformers' own attention does: they need no code of their own."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers import MODEL_MAPPING

from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.checkpoint.text_model import empty_model
from hybridge.export.pinned.transformers import attention_interface

STATES = (nn.Conv1d, nn.Conv2d)
"""Modules that a token mixer with a state of another kind has."""

UNKNOWN = (
    "attention_chunk_size",
    "kv_lora_rank",
    "q_lora_rank",
    "num_kv_shared_layers",
    "cross_attention_layers",
    "index_topk",
)
"""Options of attention that sees or keeps something else than keys and values by position."""


def is_plain_attention(config: Any) -> bool:
    """Return whether each decoder layer of a text config's model has one attention through the interface, and no other state.

    What this cannot see, a validation does: an artifact of such a model is always held against the uncached one.
    """
    if type(config) not in MODEL_MAPPING or any(getattr(config, name, None) for name in UNKNOWN):
        return False
    if not set(getattr(config, "layer_types", None) or ()) <= {"full_attention", "sliding_attention"}:
        return False
    try:
        layers = list(decoder_of(empty_model(config)).layers)
    except Exception:  # whatever a config that nobody has tried makes transformers run into
        return False
    return len(layers) == config.num_hidden_layers and all(map(_attends_once, layers))


def _attends_once(layer: nn.Module) -> bool:
    mixers = [module for module in layer.modules() if hasattr(module, "layer_idx") and _calls_interface(type(module))]
    return len(mixers) == 1 and not any(isinstance(module, STATES) for module in layer.modules())


def _calls_interface(kind: type) -> bool:
    return kind.__module__.startswith("transformers.") and attention_interface in inspect.getsource(kind)
