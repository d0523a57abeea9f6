"""Make the model to export of the one that transformers loaded: take the text model out of a multimodal one, merge adapters.

Importing this module registers the text models of GLM-5.3-Flash, which transformers has no class for, and of Gemma 3n.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    Gemma3nConfig,
    Gemma3nForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

import hybridge.export.source.rwkv7  # noqa: F401  transformers has no RWKV-7
from hybridge.cache.families import FAMILIES, text_config
from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.pinned.transformers import (
    Glm5NextConfig,
    Glm5NextPreTrainedModel,
    Glm5NextTextConfig,
    Glm5NextTextModel,
    TextWithHead,
    build_empty,
    choose_experts_like,
    load_text_alone,
    register_text_model,
    tie_head,
)
from hybridge.export.source.files import ADAPTER, base_model, check_files, check_kinds, first_line, read_object

PROBE = (1, 2, 3, 5)
"""Tokens on which the text model of an untried family must compute the same logits as the whole model."""


def text_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal language model in ``model``, sharing its weights, without the parts for images and sound."""
    decoder = text_decoder(model)
    if model.config is text_config(model.config):
        return model
    if decoder.get_output_embeddings() is not None:  # a causal language model inside of the whole one, as in Nemotron-H Omni
        decoder.generation_config = model.generation_config
        text: PreTrainedModel = decoder.eval()
        return text
    text = empty_model(decoder.config)
    empty = decoder_of(text)
    text.set_submodule(next(name for name, module in text.named_modules() if module is empty), decoder)
    text.set_output_embeddings(model.get_output_embeddings())
    text.config, text.generation_config = decoder.config, model.generation_config
    if text.config.model_type not in FAMILIES:
        check_same_text(text.eval(), model.eval())
    return text.eval()


def empty_model(config: Any) -> PreTrainedModel:
    """Return a causal language model of a text config on the meta device, without memory for its weights."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return build_empty(config)
    with torch.device("meta"):
        return TextWithHead(config)


def text_decoder(model: PreTrainedModel) -> Any:
    """Return the decoder that generates text in a model, which may be multimodal."""
    decoder: Any = model.get_decoder()
    return getattr(decoder, "language_model", decoder)


def decoder_of(model: PreTrainedModel) -> Any:
    """Return the decoder under the head of a causal language model."""
    decoder: Any = model.get_decoder()
    return decoder if hasattr(decoder, "layers") else decoder.model  # Llama 4's get_decoder() returns the whole model


@torch.no_grad()
def check_same_text(text: PreTrainedModel, whole: PreTrainedModel) -> None:
    """Raise UnsupportedModelError if ``whole`` computes other logits for a text than its text model alone."""
    tokens = torch.tensor([PROBE])
    mask = torch.ones_like(tokens)
    want = whole(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    got = text(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    if not torch.allclose(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max())):
        raise UnsupportedModelError(
            f"model type {whole.config.model_type!r} is not supported: its text model by itself computes other logits than the "
            "whole does for a text without pictures."
        )


# LoRA adapters, as peft saves them

ADAPTER_FILE = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
PEFT_PARTS = (".lora_", ".modules_to_save.", ".base_layer.", ".token_adapter.")
"""Separators that peft puts between a module's name and the adapter's own weight in it."""


def merge_adapters(model: PreTrainedModel, folders: Iterable[Path]) -> PreTrainedModel:
    """Merge the adapters in ``folders`` into ``model`` in place, one after the other, and return it.

    Raises:
        UsageError: peft is not installed, or a folder has no adapter.
        UnsupportedModelError: an adapter is of another kind than LoRA.
        CheckpointError: an adapter is damaged or was trained for another model.
    """
    for folder in folders:
        model = _merged(model, folder)
    return model.eval().requires_grad_(False)


def check_adapters(folders: Iterable[Path]) -> None:
    """Raise what ``merge_adapters`` raises for folders without a LoRA adapter, before any weight is read."""
    for folder in folders:
        _read_config(folder)


@torch.no_grad()
def _merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    peft = _peft()
    weights = _read_weights(folder)
    options = {field.name for field in fields(peft.LoraConfig)} - {"auto_mapping", "inference_mode"}
    config = {name: value for name, value in _read_config(folder).items() if name in options}
    _check_names(model, weights, folder)
    if not config.get("target_parameters"):
        # Full names in the text model, because the config's may be patterns for a whole multimodal one.
        modules = {name.partition(".lora_")[0] for name in weights if ".lora_" in name}
        config |= {"target_modules": sorted(modules), "layers_to_transform": None, "exclude_modules": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns about the options that it was given
            adapted = peft.PeftModel(model, peft.LoraConfig(**config, inference_mode=True))
            found = peft.set_peft_model_state_dict(adapted, {f"{PEFT_PREFIX}{name}": each for name, each in weights.items()})
            unused = [name for name in found.unexpected_keys if "lora" in name or "modules_to_save" in name]
            if not unused:
                merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(_other_model(folder, model, first_line(error))) from error
    if unused:
        raise CheckpointError(_other_model(folder, model, f"nothing takes {unused[0]}"))
    return merged


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UsageError("--adapter needs the package peft: pip install 'hybridge[checkpoints]'.") from None
    return peft


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the adapter's config. Raises UsageError without one, UnsupportedModelError for another kind than LoRA."""
    check_kinds(folder)
    if not (folder / ADAPTER).is_file():
        raise UsageError(f"{folder} has no {ADAPTER}, so it is no adapter; give the folder that peft saved.")
    config = read_object(folder / ADAPTER)
    if (kind := config.get("peft_type")) != "LORA":
        raise UnsupportedModelError(
            f"{folder} is an adapter of the kind {kind!r}; hybridge merges LORA (with DoRA and rsLoRA)."
        )
    return config


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the adapter's weights in float32, by their names in the text model."""
    path = folder / ADAPTER_FILE
    if not path.exists() and not path.is_symlink():
        others = [each.name for each in sorted(folder.glob("adapter_model*"))]
        pickles = f" ({others[0]} is a pickle or a part, which hybridge does not load)" if others else ""
        raise CheckpointError(f"{folder} has no {ADAPTER_FILE}{pickles}; save the adapter again with peft.")
    check_files(folder, [ADAPTER_FILE])
    try:
        stored = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged or only a part of it is there ({first_line(error)}).") from None
    if broken := [name for name, each in stored.items() if not bool(each.isfinite().all())]:
        raise CheckpointError(f"{broken[0]} in {path} is not finite (NaN or infinity); the adapter is damaged.")
    return {name.removeprefix(PEFT_PREFIX).replace(".language_model.", "."): each.float() for name, each in stored.items()}


def _check_names(model: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raise CheckpointError if the adapter changes a module that the model does not have."""
    modules = {name for name, _ in model.named_modules()}
    for name in weights:
        module = min((name.partition(part)[0] for part in PEFT_PARTS), key=len)
        module = module if module != name else name.rpartition(".")[0]
        if module not in modules:
            raise CheckpointError(_other_model(folder, model, f"it changes {module}, which this model does not have"))


def _other_model(folder: Path, model: PreTrainedModel, reason: str) -> str:
    base = base_model(folder)
    return (
        f"{folder} is an adapter for {base or 'another model'}, and cannot be merged into this "
        f"{model.config.model_type!r} model ({reason}). Give the checkpoint that it was trained on."
    )


# GLM-5.3-Flash


class Glm5NextTextForCausalLM(Glm5NextPreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """Text model and head of transformers 5.23 ``Glm5NextForConditionalGeneration``, with its forward for text."""

    config: Glm5NextTextConfig
    config_class = Glm5NextTextConfig

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = Glm5NextTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> MoeCausalLMOutputWithPast:
        """Return logits [B, T, vocabulary] of input_ids [B, T], or of inputs_embeds [B, T, hidden]."""
        outputs = self.model(input_ids=input_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        return MoeCausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)


def _register_glm5_next() -> None:
    """Let ``AutoModelForCausalLM`` load the class, from a checkpoint of the whole model too."""
    tie_head(Glm5NextTextForCausalLM, {"lm_head.weight": "model.embed_tokens.weight"}, ignored=[r"^model\.visual\."])
    choose_experts_like(Glm5NextTextForCausalLM, Glm5NextTextModel)
    configs = (Glm5NextConfig, Glm5NextTextConfig)
    register_text_model(Glm5NextTextForCausalLM, configs, like="glm5_next", prefix="language_model")


_register_glm5_next()
load_text_alone(Gemma3nForCausalLM, Gemma3nConfig)  # transformers needs one more package for the whole model
