"""The text model of a multimodal one, as transformers would have loaded it by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from hybridge.cache.errors import UnsupportedModelError
from hybridge.cache.families import FAMILIES, text_config
from hybridge.export.pinned.transformers import (
    Glm5NextConfig,
    Glm5NextPreTrainedModel,
    Glm5NextTextConfig,
    Glm5NextTextModel,
    TextWithHead,
    build_empty,
    register_text_model,
    tie_head,
)

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
