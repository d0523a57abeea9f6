"""Families with lightning attention."""

from zoo.sizes import SIZES, Sizes

MINIMAX = {**SIZES, "num_local_experts": 5, "num_experts_per_tok": 2, "block_size": 7}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "minimax": (
        {
            **MINIMAX,
            "num_hidden_layers": 3,
            # The heads of the last layer hardly fade: the one in the middle shows whether the decay is right.
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "sliding_window": None,
            "full_attn_alpha_factor": 0.7,
            "mlp_beta_factor": 1.3,
        },
        {
            **MINIMAX,
            "num_attention_heads": 3,
            "num_local_experts": 7,
            "layer_types": ["linear_attention", "full_attention"],
            "sliding_window": 23,
            "linear_attn_beta_factor": 0.6,
            "tie_word_embeddings": True,
        },
    )
}
