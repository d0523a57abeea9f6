"""transformers 5.23: where its models can be given other functions, and what it keeps under private or undocumented names.

A model's own methods are replaced on the instance, so that no other model of the process changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import PrefixChange
from transformers.generation import BaseStreamer
from transformers.initialization import no_init_weights
from transformers.integrations.moe import ExpertsInterface, batched_mm_experts_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.auto_factory import _get_model_class
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

Streamer = BaseStreamer
"""Has ``put`` for token ids and ``end``."""

activations: Mapping[str, Any] = ACT2FN
"""Activation functions by their name in a config."""

attention_interface = "ALL_ATTENTION_FUNCTIONS"
"""What an attention's own source calls the functions that ``AttentionInterface`` has, to choose one of them."""

tokenizer_classes: Mapping[str, str | None] = TOKENIZER_MAPPING_NAMES
"""The name of each model type's tokenizer class, with or without ``Fast`` at its end."""

replaceable: Mapping[str, str] = {
    "recomposition_frequencies": "cos or sin [3, 1, T, D / 2] of time, height and width to [1, T, D], in its rotary module",
    "expand_kv": "latents and shared keys to what attention gets as keys and values, in latent attention",
    "build_attention_mask_from_topk": "keyword arguments to the mask of an indexer's selection, in GLM-5's attention",
    "_short_conv": "x [B, T, C] and a transformers cache to [B, T, C], in Qwen4's layer of n-grams",
}
"""Methods that a model's own forward calls on itself, so that an attribute of an instance takes their place."""


def replace_method(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Let ``module`` call ``function`` where its forward calls its own method ``name``, one of ``replaceable``."""
    assert name in replaceable, f"{name} is not among the methods of export/pinned/transformers.py"
    assert hasattr(type(module), name), f"transformers' {type(module).__name__} has no method {name} any more to be replaced"
    setattr(module, name, function)


def choose_attention(config: Any, name: str) -> None:
    """Let every attention that has ``config`` call what ``AttentionInterface`` has under ``name``, and so its masks.

    Not ``set_attn_implementation``, which refuses models that call other functions than the interface's in some layers.
    """
    config._attn_implementation = name


def choose_experts(config: Any, name: str) -> None:
    """Let every experts module that has ``config`` call the function registered under ``name``; each asks it at every call."""
    config._experts_implementation = name


def chosen_attention(model: PreTrainedModel) -> str:
    """Return the name under which ``AttentionInterface`` has the function that ``model`` calls."""
    return str(model.config._attn_implementation)


def attention_function(name: str, plain: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the attention function ``name``, for "eager" the one ``plain`` of the model's own file."""
    found: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(name, plain)
    return found


def mask_function(name: str) -> Callable[..., Any]:
    """Return what makes the masks for the attention function ``name``."""
    found: Callable[..., Any] = ALL_MASK_ATTENTION_FUNCTIONS[name]
    return found


def register_experts(name: str, function: Callable[..., Tensor]) -> None:
    """Make ``function(module, hidden_states [T, H], top_k_index [T, N], top_k_weights [T, N])`` known under ``name``."""
    ExpertsInterface.register(name, function)


def is_experts(module: nn.Module) -> bool:
    """Return whether ``module`` calls a registered function.

    Then it has ``num_experts``, ``has_gate``, ``has_bias``, ``is_transposed`` and ``has_post_expert_norm``, and stacked weights
    ``gate_up_proj`` (``up_proj`` without a gate) and ``down_proj``.
    """
    return hasattr(module, "has_gate") and isinstance(getattr(module, "down_proj", None), Tensor)


def gated(module: Any, inner: Tensor) -> Tensor:
    """Return gate and up halves [..., 2 I] of an experts module with a gate as [..., I], by the module's own activation."""
    out: Tensor = module._apply_gate(inner)
    return out


def gather_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Run transformers' own experts function that gathers the weights each token chose, for T tokens: [T, H]."""
    out: Tensor = batched_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
    return out


def rope_types(module: nn.Module) -> Mapping[str, str]:
    """Return the kinds of a rotary module's angles by the prefix of their attributes, "" where there is one for all layers.

    Empty for other modules. "dynamic" and "longrope" in a kind is what ``dynamic_rope_update`` looks for.
    """
    kinds = getattr(module, "rope_type", None)
    if isinstance(kinds, Mapping):
        return {f"{layers}_": kind for layers, kind in kinds.items()}
    return {"": kinds} if isinstance(kinds, str) else {}


def keep_first_angles(module: Any, prefix: str) -> None:
    """Give the angles under ``prefix`` their first values back and let no call change them any more."""
    if prefix:
        module.rope_type = {**module.rope_type, prefix.removesuffix("_"): "default"}
    else:
        module.rope_type = "default"
    # A copy, not in place: a copied model shares its buffers with the one it was copied from.
    setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").clone())


def build_empty(config: Any) -> PreTrainedModel:
    """Return a causal language model of ``config`` on the meta device: no memory, and nothing is initialized."""
    with torch.device("meta"), no_init_weights():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return model


def model_class(auto: Any, config: Any) -> tuple[Any, Any]:
    """Return the class that ``auto`` loads for ``config``, and the config that it takes: of the text alone where that is all.

    For tensors without a file: ``auto.from_pretrained`` looks for an adapter where the file would be.
    """
    found = _get_model_class(config, auto._model_mapping)
    text = config.sub_configs.get("text_config")
    return found, config.get_text_config() if text is not None and found.config_class == text else config


def register_text_model(kind: type, configs: Collection[type], like: str, prefix: str) -> None:
    """Let ``AutoModelForCausalLM`` load ``kind`` for ``configs``, with the names of weights that model type ``like`` has.

    ``prefix`` is taken off behind ``model``. Not by ``AutoModelForCausalLM.register``, which refuses a text class for the
    config of a whole model.
    """
    names = get_checkpoint_conversion_mapping(like)
    moved = PrefixChange(prefix_to_remove=prefix, model_prefix="model")
    register_checkpoint_conversion_mapping(kind.__name__, [*names, moved], overwrite=True)
    for config in configs:
        AutoModelForCausalLM._model_mapping.register(config, kind, exist_ok=True)


def tie_head(kind: Any, tied: Mapping[str, str], ignored: Collection[str]) -> Any:
    """Tell a model class which weight the head shares, and patterns of names in a checkpoint that it does not want."""
    kind._tied_weights_keys = dict(tied)
    kind._keys_to_ignore_on_load_unexpected = [*(kind._keys_to_ignore_on_load_unexpected or ()), *ignored]
    return kind


def generation_defaults() -> dict[str, Any]:
    """Return what generation does where nobody says anything, of all options; a new GenerationConfig has None for most."""
    defaults: dict[str, Any] = GenerationConfig._get_default_generation_params()
    blank: dict[str, Any] = GenerationConfig().to_dict()
    return blank | defaults


ORIGIN = frozenset({"transformers_version", "_from_model_config"})
"""Keys of a generation config about itself."""
