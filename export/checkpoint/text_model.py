"""The text model of a multimodal one, as transformers would have loaded it by itself."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from hybridge.cache.errors import UnsupportedModelError
from hybridge.cache.families import FAMILIES, text_config
from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.pinned.text_with_head import TextWithHead
from hybridge.export.pinned.transformers import build_empty

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
