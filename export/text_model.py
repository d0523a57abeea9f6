"""The text model of a multimodal one, as transformers would have loaded it by itself."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from hybridge.cache.families import text_config
from hybridge.export.families.family import decoder_of


def text_model(model: PreTrainedModel) -> PreTrainedModel:
    """The causal language model in ``model``, with its own weights and without those for pictures and sounds."""
    decoder = _text_decoder(model)
    if model.config is text_config(model.config):
        return model
    with torch.device("meta"), no_init_weights():
        text: PreTrainedModel = AutoModelForCausalLM.from_config(decoder.config, trust_remote_code=False)
    empty = decoder_of(text)
    text.set_submodule(next(name for name, module in text.named_modules() if module is empty), decoder)
    text.set_output_embeddings(model.get_output_embeddings())
    text.config, text.generation_config = decoder.config, model.generation_config
    return text.eval()


def _text_decoder(model: PreTrainedModel) -> Any:
    """The decoder over whose config and layers a multimodal model generates text."""
    decoder: Any = model.get_decoder()
    return getattr(decoder, "language_model", decoder)
