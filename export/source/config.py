"""Read a checkpoint's config.json, and refuse what hybridge cannot run before any weight is read."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families import ATTENTION_ALONE, FAMILIES, family_of, plan, text_config
from hybridge.cache.families.family import summarize
from hybridge.export.pinned.transformers import (
    Glm5NextConfig,
    Glm5NextPreTrainedModel,
    Glm5NextTextConfig,
    Glm5NextTextModel,
    TextWithHead,
    attention_interface,
    build_empty,
    register_text_model,
    tie_head,
)
from hybridge.export.source.files import EXPECTED, check_files, download_again, first_line
from hybridge.export.source.gguf.checkpoint import is_gguf, write_folder
from hybridge.export.source.locate import Named, find_checkpoint, named
from hybridge.export.source.quantization_methods import quantization_of


def read_config(checkpoint: str | Path | Named) -> Any:
    """The config of the checkpoint that ``checkpoint`` names, once it is known to be of a supported family.

    Raises what ``find_checkpoint`` does, CheckpointError where config.json is damaged, UnsupportedModelError where hybridge
    cannot run the model.
    """
    place = find_checkpoint(named(checkpoint).checkpoint)
    if not is_gguf(place):
        return config_in(place)
    with tempfile.TemporaryDirectory(prefix="hybridge-gguf-") as folder:
        write_folder(place, Path(folder), tokenizer=False)
        return config_in(Path(folder))


def config_in(folder: Path) -> Any:
    """The config in ``folder``. Raises what ``read_config`` does."""
    path = folder / "config.json"
    check_files(folder, [path.name])
    content = _read_object(path)
    model_type = content.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(
            f'{path} cannot be read as a transformers config: it has no model_type, such as "model_type": "qwen3". {EXPECTED}'
        )
    text = content.get("text_config")
    known = not {model_type, text.get("model_type") if isinstance(text, dict) else None}.isdisjoint(known_model_types())
    if not known and not _attends_alone(folder):
        raise _unsupported(folder, model_type, content)
    quantization_of(folder, content)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not known:
            setattr(text_config(config), ATTENTION_ALONE, True)
        types = plan(text_config(config))
        _forget_quantization(config)  # its weights are dequantized as they are read, before transformers sees them
    except CheckpointError:
        raise
    except Exception as error:  # transformers' config classes raise whatever their checks ran into
        raise CheckpointError(f"{path} is not a valid {model_type!r} config: {first_line(error)}") from None
    if family_of(text_config(config)) is None:
        raise _unsupported(folder, model_type, {"layer_types": types})
    return config


def _attends_alone(folder: Path) -> bool:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers' config classes raise whatever their checks ran into
        return False
    loadable = {*MODEL_FOR_CAUSAL_LM_MAPPING, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING}
    return type(config) in loadable and is_plain_attention(text_config(config))


def _forget_quantization(config: Any) -> None:
    for part in (config, text_config(config)):
        for name in ("quantization_config", "compression_config"):
            vars(part).pop(name, None)


def known_model_types() -> set[str]:
    """Return top-level model types that a supported text model appears under."""
    return set(FAMILIES) | {name.removesuffix("_text") for name in FAMILIES}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a transformers config: it is not JSON ({first_line(error)}); "
            f"{download_again(path.parent)}."
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} cannot be read as a transformers config: it is JSON, but not an object; {download_again(path.parent)}."
        )
    return content


def _unsupported(folder: Path, model_type: str, content: dict[str, Any]) -> UnsupportedModelError:
    text = content.get("text_config")
    types = content.get("layer_types") or (text.get("layer_types") if isinstance(text, dict) else None)
    layers = f" Its layers: {summarize([str(each) for each in types])}." if isinstance(types, list) else ""
    missing = _what_is_missing(folder)
    return UnsupportedModelError(
        f"model type {model_type!r} is not supported.{layers}\n"
        + (f"{missing}\n" if missing else "")
        + f"Supported model types: {', '.join(sorted(name.removesuffix('_text') for name in FAMILIES))}."
    )


def _what_is_missing(folder: Path) -> str | None:
    """Return what hybridge would need for a model that transformers knows; None for one that transformers does not know."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers' config classes raise whatever their checks ran into
        return None
    if not {type(config), type(text_config(config))} & set(MODEL_FOR_CAUSAL_LM_MAPPING):
        return "It has no text model: transformers has no causal language model for it."
    return what_is_missing(text_config(config))


# Families that nobody entered, but whose layers attend as transformers' own attention does: they need no code of
# their own.


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


# Say what a model of an unknown family is made of, so that whoever wants it knows what is missing.
#
# Token mixers are told by the names of their parameters and modules, which transformers keeps from family to family.


SIGNATURES: tuple[tuple[str, frozenset[str]], ...] = (
    ("Kimi delta attention", frozenset({"A_log", "dt_bias", "conv1d", "f_b_proj"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "in_proj_qkvz"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "in_proj_qkv"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "a_proj", "b_proj"})),
    ("Mamba-2", frozenset({"A_log", "D", "dt_bias", "conv1d", "in_proj"})),
    ("Mamba", frozenset({"A_log", "D", "conv1d", "x_proj", "dt_proj"})),
    ("lightning attention", frozenset({"slope_rate", "qkv_proj", "output_gate"})),
    ("RG-LRU", frozenset({"rg_lru", "conv_1d"})),
    ("short convolution", frozenset({"conv", "in_proj", "out_proj"})),
    ("latent attention", frozenset({"kv_b_proj", "o_proj"})),
    ("attention", frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})),
    ("attention", frozenset({"qkv_proj", "o_proj"})),
)
"""What the modules, parameters and buffers of a token mixer that hybridge has a state for are called, the surest first."""


def what_is_missing(config: Any) -> str | None:
    """Return a sentence or two on the parts of the model that ``config`` describes; None if it cannot be built.

    Builds the model without memory for its weights, and runs nothing of a checkpoint's.
    """
    try:
        with torch.device("meta"):
            layers = list(decoder_of(AutoModelForCausalLM.from_config(config, trust_remote_code=False)).layers)
    except Exception:  # whatever a config that nobody has tried makes transformers run into
        return None
    known, unknown = _parts(layers)
    if not known:
        return None
    found = f"Parts of it that hybridge has: {_counted(known)}."
    if unknown:
        return f"{found} Layers without any: {_counted(unknown)}; their state has to be written first."
    return f"{found} What is missing is an entry in the two tables of families: docs/adding-a-family.md shows how."


def _parts(layers: Iterable[nn.Module]) -> tuple[Counter[str], Counter[str]]:
    """Return how many of which known mixers there are, and how many layers by class have none."""
    known: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for layer in layers:
        mixers = [name for module in layer.modules() if (name := _recognize(module))]
        known.update(mixers)
        if not mixers:
            unknown[type(layer).__name__] += 1
    return known, unknown


def _recognize(module: nn.Module) -> str | None:
    names = {name for name, _ in module.named_children()}
    names |= {name for name, _ in module.named_parameters(recurse=False)}
    names |= {name for name, _ in module.named_buffers(recurse=False)}
    return next((kind for kind, signature in SIGNATURES if signature <= names), None)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in counts.most_common())


# The text model of a multimodal one, as transformers would have loaded it by itself.


PROBE = (1, 2, 3, 5)
"""Tokens of a text for which the text model of an untried family has to compute what the whole does."""


def text_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal language model in ``model``, with its own weights and without those for pictures and sounds."""
    decoder = text_decoder(model)
    if model.config is text_config(model.config):
        return model
    text = empty_model(decoder.config)
    empty = decoder_of(text)
    text.set_submodule(next(name for name, module in text.named_modules() if module is empty), decoder)
    text.set_output_embeddings(model.get_output_embeddings())
    text.config, text.generation_config = decoder.config, model.generation_config
    if text.config.model_type not in FAMILIES:
        check_same_text(text.eval(), model.eval())
    return text.eval()


def empty_model(config: Any) -> PreTrainedModel:
    """Return a causal language model of a text config without memory for its weights."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return build_empty(config)
    with torch.device("meta"):
        return TextWithHead(config)


def text_decoder(model: PreTrainedModel) -> Any:
    """Return the decoder over whose config and layers a multimodal model generates text."""
    decoder: Any = model.get_decoder()
    return getattr(decoder, "language_model", decoder)


@torch.no_grad()
def check_same_text(text: PreTrainedModel, whole: PreTrainedModel) -> None:
    """Raises UnsupportedModelError where ``whole`` does more to a text than the text model and a plain output layer."""
    tokens = torch.tensor([PROBE])
    seen = torch.ones_like(tokens)
    want = whole(input_ids=tokens, attention_mask=seen, use_cache=False).logits
    got = text(input_ids=tokens, attention_mask=seen, use_cache=False).logits
    if not torch.allclose(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max())):
        raise UnsupportedModelError(
            f"model type {whole.config.model_type!r} is not supported: its text model by itself computes other logits than the "
            "whole does for a text without pictures."
        )


# The text model under a causal language model's head.


def decoder_of(model: PreTrainedModel) -> Any:
    """Return the text model under the head."""
    decoder: Any = model.get_decoder()
    return decoder if hasattr(decoder, "layers") else decoder.model  # Llama 4 does not know its own


# GLM-5.3-Flash's text model with its head: the class that transformers has for other multimodal models, but not for
# this one.
#
# Importing this module lets ``AutoModelForCausalLM`` load it, from a checkpoint of the whole model too.


class Glm5NextTextForCausalLM(Glm5NextPreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """Text model and head of transformers 5.23 ``Glm5NextForConditionalGeneration``, whose forward for text this is."""

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


def register() -> None:
    """Register the class for the text config, the whole model's config, and the weights' names in a checkpoint of that."""
    tie_head(Glm5NextTextForCausalLM, {"lm_head.weight": "model.embed_tokens.weight"}, ignored=[r"^model\.visual\."])
    configs = (Glm5NextConfig, Glm5NextTextConfig)
    register_text_model(Glm5NextTextForCausalLM, configs, like="glm5_next", prefix="language_model")


register()
