"""Sizes that are no multiple of anything, by the names that most configs share."""

from typing import Any

Sizes = dict[str, Any]
"""A config's arguments, by transformers' own names."""

SIZES: Sizes = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 72, "max_position_embeddings": 512,
}  # fmt: skip
