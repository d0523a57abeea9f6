"""transformers 5.23: the places where its models take other functions, and names that are private or undocumented.

A model's own methods are replaced on the instance, so that no other model of the process changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Protocol, Self, TypeVar
from unittest import mock

import safetensors
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    core_model_loading,
    modeling_utils,
)
from transformers.activations import ACT2FN
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.core_model_loading import PrefixChange
from transformers.initialization import no_init_weights
from transformers.integrations.moe import ExpertsInterface, batched_mm_experts_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.auto_factory import _get_model_class
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gemma4 import modeling_gemma4
from transformers.models.gemma4_unified import modeling_gemma4_unified
from transformers.models.glm5_next import configuration_glm5_next, modeling_glm5_next
from transformers.models.qwen3 import configuration_qwen3, modeling_qwen3
from transformers.models.qwen4_exp import modeling_qwen4_exp

activations: Mapping[str, Any] = ACT2FN
"""Activation functions by their name in a config."""

attention_interface = "ALL_ATTENTION_FUNCTIONS"
"""The name by which an attention module's source looks up one of the functions of ``AttentionInterface``."""

tokenizer_classes: Mapping[str, str | None] = TOKENIZER_MAPPING_NAMES
"""The name of each model type's tokenizer class, with or without ``Fast`` at its end."""

replaceable: Mapping[str, str] = {
    "recomposition_frequencies": "cos or sin [3, 1, T, D / 2] of time, height and width to [1, T, D], in its rotary module",
    "expand_kv": "latents and shared keys to what attention gets as keys and values, in latent attention",
    "build_attention_mask_from_topk": "keyword arguments to the mask of an indexer's selection, in GLM-5's attention",
    "_gaussian_topk": "x [B, T, intermediate] to the same without all but the largest, in Gemma 3n's MLP",
    "_short_conv": "x [B, T, C] and a transformers cache to [B, T, C], in Qwen4's layer of n-grams",
}
"""Methods that a model's own forward calls on itself, so that an attribute of an instance takes their place."""


def replace_method(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Let the forward of ``module`` call ``function`` in place of its own method ``name``, one of ``replaceable``."""
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
    """Return the kinds of a rotary module's angles by the prefix of their attributes, "" if there is one for all layers.

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
    """Return the class that ``auto`` loads for ``config``, and the config that it takes, which may be that of the text alone.

    For tensors without a file: ``auto.from_pretrained`` would look for an adapter beside a file.
    """
    found = _get_model_class(config, auto._model_mapping)
    text = config.sub_configs.get("text_config")
    return found, config.get_text_config() if text is not None and found.config_class == text else config


def register_text_model(kind: type, configs: Collection[type], like: str, prefix: str) -> None:
    """Let ``AutoModelForCausalLM`` load ``kind`` for ``configs``, with the names of weights that model type ``like`` has.

    ``prefix`` is taken off after ``model``. Not by ``AutoModelForCausalLM.register``, which refuses a text class for the
    config of a whole model.
    """
    names = get_checkpoint_conversion_mapping(like)
    moved = PrefixChange(prefix_to_remove=prefix, model_prefix="model")
    register_checkpoint_conversion_mapping(kind.__name__, [*names, moved], overwrite=True)
    for config in configs:
        AutoModelForCausalLM._model_mapping.register(config, kind, exist_ok=True)


def load_text_alone(kind: type, config: type) -> None:
    """Let ``AutoModelForCausalLM`` load the text model ``kind`` of a checkpoint whose whole model has that ``config``."""
    AutoModelForCausalLM._model_mapping.register(config, kind, exist_ok=True)


def choose_experts_like(kind: Any, decoder: Any) -> None:
    """Let models of ``kind`` compute experts in all the ways in which its decoder's class can.

    transformers looks for a call of experts in the source of a class, and would find none in ours.
    """
    kind._can_set_experts_implementation = decoder._can_set_experts_implementation


def tie_head(kind: Any, tied: Mapping[str, str], ignored: Collection[str]) -> Any:
    """Tell a model class which weight the head shares, and patterns of names in a checkpoint that it does not want."""
    kind._tied_weights_keys = dict(tied)
    kind._keys_to_ignore_on_load_unexpected = [*(kind._keys_to_ignore_on_load_unexpected or ()), *ignored]
    return kind


# Weights on their way into a model: patches of ``from_pretrained`` to work on each and to refuse unfit ones


class Reader(Protocol):
    """Is told of each weight of a model that is being read."""

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Return whether weight ``name`` stays in the type that its file has, rather than become the model's."""
        ...

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Take notice that weight ``name`` is in its place; its module may be replaced by another."""
        ...


@contextmanager
def read_one_by_one(reader: Reader) -> Iterator[None]:
    """Let ``from_pretrained`` read one weight after the other, in the type of its file, and tell ``reader`` of each.

    By default its threads read ahead, and all weights are in memory in the model's type before anyone sees them. Patches the
    functions of its loop: ``_materialize_copy`` reads a weight, ``set_param_for_module`` assigns it, and
    ``is_env_variable_true`` switches threads off. Files are read, not mapped, because a mapped file stays resident.
    """
    place = core_model_loading.set_param_for_module

    def set_and_tell(model: PreTrainedModel, name: str, value: Tensor, *others: Any) -> None:
        if not reader.keeps(model, name):
            value = _like(value, weight_of(model, name))
        place(model, name, value, *others)
        reader.loaded(model, name)

    with (
        mock.patch.object(core_model_loading, "set_param_for_module", set_and_tell),
        mock.patch.object(core_model_loading, "_materialize_copy", _as_it_is),
        mock.patch.object(core_model_loading, "is_env_variable_true", return_value=True),
        mock.patch.object(modeling_utils, "safe_open", _open_to_read),
    ):
        yield


@contextmanager
def remember_origins() -> Iterator[None]:
    """Let the parameters of a model that ``from_pretrained`` reads keep the origins of their tensors.

    A tensor that transformers makes of others has none. Patches the function that assigns each weight.
    """
    place = core_model_loading.set_param_for_module

    def place_with_origin(model: PreTrainedModel, name: str, value: Tensor, *others: Any) -> None:
        place(model, name, value, *others)
        if (origin := origin_of(value)) is not None:
            with_origin(weight_of(model, name), origin)

    with mock.patch.object(core_model_loading, "set_param_for_module", place_with_origin):
        yield


class Origin(Protocol):
    """The stored form of a tensor's numbers."""

    def blocks(self) -> Any:
        """Return the numbers in the blocks that the file has, or None if it has no such blocks for them."""
        ...

    def without_kernels(self) -> list[str]:
        """Return the names of the file's types without kernels."""
        ...

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the origin of what ``change`` makes of the tensor."""
        ...


def with_origin(tensor: Tensor, origin: Origin | None) -> Tensor:
    """Mark ``tensor`` with its origin and return it; tensors computed from it have none."""
    setattr(tensor, "_hybridge_origin", origin)  # noqa: B010  which no tensor declares
    return tensor


def origin_of(tensor: Tensor) -> Origin | None:
    """Return the origin of a tensor, if it has one."""
    origin: Origin | None = getattr(tensor, "_hybridge_origin", None)
    return origin


class UnfitWeightsError(Exception):
    """A checkpoint's weights are not those of its config. missing: names; misshapen: name, shape there and shape asked for."""

    def __init__(self, missing: set[str], misshapen: set[tuple[str, Any, Any]]) -> None:
        super().__init__(f"{len(missing)} weights are missing, {len(misshapen)} have another shape")
        self.missing, self.misshapen = sorted(missing), sorted(misshapen)


@contextmanager
def refuse_unfit_weights() -> Iterator[None]:
    """Inside, ``from_pretrained`` raises UnfitWeightsError for weights that are missing or have another shape.

    It would make random ones in their place, and a config can ask for any size: 70 s and 19 GB with one number changed. Patches
    what it calls once it has read the file.
    """
    finalize = PreTrainedModel._finalize_model_loading

    def finalize_if_fit(model: PreTrainedModel, load_config: Any, loading_info: Any) -> Any:
        model.mark_tied_weights_as_initialized(loading_info)
        found = copy(loading_info)
        model._adjust_missing_and_unexpected_keys(found)  # leaves out what a class may do without
        missing = _missing(model, found.missing_keys)
        if missing or loading_info.mismatched_keys:
            raise UnfitWeightsError(missing, loading_info.mismatched_keys)
        return finalize(model, load_config, loading_info)

    with mock.patch.object(PreTrainedModel, "_finalize_model_loading", staticmethod(finalize_if_fit)):
        yield


def _missing(model: PreTrainedModel, names: set[str]) -> set[str]:
    """Return the names without those that are tied to another of them."""
    together = defaultdict[str, set[str]](set)
    for target, source in model.all_tied_weights_keys.items():
        together[source] |= {target, source}
    return names - {name for group in together.values() if not group <= names for name in group}


def weight_of(model: PreTrainedModel, name: str) -> Any:
    """Return the parameter or buffer ``name`` of a model, on the meta device before it has been read."""
    path, _, own = name.rpartition(".")
    return getattr(model.get_submodule(path), own)


def tied_weights(model: PreTrainedModel) -> set[str]:
    """Return the names of weights that may be tied to others once all have been read, and of those they are tied to."""
    tied = model.all_tied_weights_keys
    return {*tied, *tied.values()}


Initialized = TypeVar("Initialized", Tensor, nn.Module)


def initialized(made: Initialized) -> Initialized:
    """Mark a tensor or a module, but not what is in it, as one that needs no random numbers, though no file has it."""
    setattr(made, "_is_hf_initialized", True)  # noqa: B010  transformers' own mark, which no tensor declares
    return made


def _as_it_is(tensor: Any, device: Any = None, dtype: Any = None) -> Tensor:
    read: Tensor = tensor[...]
    both_float = dtype is not None and dtype.is_floating_point and read.is_floating_point()
    return read if both_float else read.to(device=device, dtype=dtype)


def _like(value: Tensor, meta: Any) -> Tensor:
    return value.to(meta.dtype) if isinstance(meta, torch.Tensor) else value


def _open_to_read(*args: Any, **options: Any) -> Any:
    return safetensors.safe_open(*args, **options | {"backend": "pread"})


# A text model under a plain output layer, for multimodal models without a causal language model in transformers


class TextWithHead(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """Any text model of transformers, and an output layer without scales or caps of its own."""

    config_class = PreTrainedConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def _can_set_experts_implementation(self) -> bool:
        """Ask the text model's class: transformers looks for a call of experts in its source, and would find none in ours."""
        return bool(MODEL_MAPPING[type(self.config)]._can_set_experts_implementation())

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = AutoModel.from_config(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> CausalLMOutputWithPast:
        """Return logits [B, T, vocabulary] of input_ids [B, T], or of inputs_embeds [B, T, hidden]."""
        outputs = self.model(input_ids=input_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)


# Parts of families' own files, which the documentation does not list


Glm5NextConfig = configuration_glm5_next.Glm5NextConfig
Glm5NextTextConfig = configuration_glm5_next.Glm5NextTextConfig
"""The config of the whole model, and the one of its text model in it."""

Glm5NextPreTrainedModel = modeling_glm5_next.Glm5NextPreTrainedModel
Glm5NextTextModel = modeling_glm5_next.Glm5NextTextModel
"""The text model without a head."""

rotate = modeling_qwen4_exp.apply_rotary_pos_emb
"""Turns queries and keys [B, T, H, D] together, or one of them alone, by cos and sin [B, T, R], with ``unsqueeze_dim=2``."""


MASKING = {"gemma3_text": modeling_gemma3, "gemma4_text": modeling_gemma4, "gemma4_unified_text": modeling_gemma4_unified}


def block_masks(config: Any, ids: Tensor, counts: Sequence[int]) -> dict[str, Tensor | None]:
    """Return the masks by layer type of a Gemma text in which the rows of a picture see each other.

    Args:
        config: of the text model of Gemma 3 or 4.
        ids: int64 [1, T], below 0 for rows of pictures.
        counts: rows of each picture.
    """
    blocks = torch.full(ids.shape, -1)
    blocks[ids < 0] = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.long))
    masks: dict[str, Tensor | None] = MASKING[config.model_type].create_masks_for_vision_model(
        config=config, inputs_embeds=torch.zeros(*blocks.shape, 1), attention_mask=None, past_key_values=None,
        position_ids=None, block_sequence_ids=blocks,
    )  # fmt: skip
    return masks


def rope_frequencies(sizes: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Return the frequencies [D / 2] of a rotary embedding of Qwen 3, and the factor of its cos and sin.

    sizes: ``head_dim``, ``hidden_size``, ``num_attention_heads``, ``max_position_embeddings`` and ``rope_parameters`` as in a
    config. Raises whatever transformers' checks of a config run into.
    """
    rope = modeling_qwen3.Qwen3RotaryEmbedding(configuration_qwen3.Qwen3Config(**sizes))
    return rope.inv_freq, float(rope.attention_scaling)
