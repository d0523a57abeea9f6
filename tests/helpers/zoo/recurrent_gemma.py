"""RecurrentGemma."""

from zoo.sizes import SIZES, Sizes

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "recurrent_gemma": (
        {**SIZES, "num_hidden_layers": 3, "attention_window_size": 5, "conv1d_width": 3},
        {
            **SIZES,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "attention_window_size": 23,
            "conv1d_width": 4,
            "block_types": ["recurrent", "attention"],
            "lru_width": 48,
            "logits_soft_cap": 2.0,
            "tie_word_embeddings": False,
        },
    )
}
