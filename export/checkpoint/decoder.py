"""The text model under a causal language model's head."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel


def decoder_of(model: PreTrainedModel) -> Any:
    """Return the text model under the head."""
    decoder: Any = model.get_decoder()
    return decoder if hasattr(decoder, "layers") else decoder.model  # Llama 4 does not know its own
