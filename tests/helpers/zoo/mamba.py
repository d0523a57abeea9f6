"""Families with Mamba's first version."""

from zoo.sizes import SIZES, Sizes

MAMBA = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "state_size": 11,
    "conv_kernel": 3,
    "time_step_rank": 5,
    "expand": 2,
    "pad_token_id": 0,
}
BIASED = {"conv_kernel": 4, "use_bias": True, "use_conv_bias": False, "expand": 1, "tie_word_embeddings": True}
JAMBA = {
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "mamba_d_state": 11,
    "mamba_d_conv": 3,
    "mamba_dt_rank": 5,
    "use_mamba_kernels": False,
    "pad_token_id": 0,
}
ZAMBA = {
    "num_key_value_heads": 4,
    "mamba_d_state": 11,
    "mamba_d_conv": 3,
    "mamba_dt_rank": 5,
    "n_mamba_heads": 2,
    "use_mamba_kernels": False,
    "pad_token_id": 0,
}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "falcon_mamba": (MAMBA, {**MAMBA, **BIASED, "mixer_rms_eps": 1e-4}),
    "jamba": (
        {**SIZES, **JAMBA},
        {**SIZES, **JAMBA, "mamba_d_conv": 4, "mamba_conv_bias": False, "mamba_proj_bias": True, "tie_word_embeddings": True},
    ),
    "mamba": (MAMBA, {**MAMBA, **BIASED}),
    "zamba": (
        {
            **SIZES,
            **ZAMBA,
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
        },
        {
            **SIZES,
            **ZAMBA,
            "layers_block_type": ["linear_attention", "hybrid"],
            "mamba_d_conv": 4,
            "n_mamba_heads": 3,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "tie_word_embeddings": False,
        },
    ),
}
