"""The text model of a multimodal one, as transformers would have loaded it by itself."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from hybridge.cache.families import text_config
from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.pinned.transformers import build_empty


def text_model(model: PreTrainedModel) -> PreTrainedModel:
    """Return the causal language model in ``model``, with its own weights and without those for pictures and sounds."""
    decoder = text_decoder(model)
    if model.config is text_config(model.config):
        return model
    text = build_empty(decoder.config)
    empty = decoder_of(text)
    text.set_submodule(next(name for name, module in text.named_modules() if module is empty), decoder)
    text.set_output_embeddings(model.get_output_embeddings())
    text.config, text.generation_config = decoder.config, model.generation_config
    return text.eval()


def text_decoder(model: PreTrainedModel) -> Any:
    """Return the decoder over whose config and layers a multimodal model generates text."""
    decoder: Any = model.get_decoder()
    return getattr(decoder, "language_model", decoder)
