"""Families with attention only."""

from zoo.sizes import SIZES, Sizes

OTHER = {"num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True}
WINDOW = {"sliding_window": 5}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "llama": (SIZES, {**SIZES, **OTHER}),
    "qwen3": (SIZES, {**SIZES, **OTHER}),
    "mistral": ({**SIZES, **WINDOW}, {**SIZES, **OTHER, "sliding_window": 23}),
}
