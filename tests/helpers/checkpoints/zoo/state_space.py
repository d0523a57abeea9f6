"""Families with diagonal recurrences: Mamba, Mamba-2, lightning attention and RG-LRU."""

from zoo.sizes import SIZES, Sizes

MAMBA = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "state_size": 11, "conv_kernel": 3, "time_step_rank": 5,
    "expand": 2, "pad_token_id": 0,
}  # fmt: skip
BIASED_MAMBA = {"conv_kernel": 4, "use_bias": True, "use_conv_bias": False, "expand": 1, "tie_word_embeddings": True}
JAMBA = {
    "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 5,
    "num_experts_per_tok": 2, "mamba_d_state": 11, "mamba_d_conv": 3, "mamba_dt_rank": 5, "use_mamba_kernels": False,
    "pad_token_id": 0,
}  # fmt: skip
ZAMBA = {
    "num_key_value_heads": 4, "mamba_d_state": 11, "mamba_d_conv": 3, "mamba_dt_rank": 5, "n_mamba_heads": 2,
    "use_mamba_kernels": False, "pad_token_id": 0,
}  # fmt: skip

BAMBA = {
    "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 11, "mamba_n_groups": 2, "mamba_d_conv": 3,
    "mamba_chunk_size": 7, "pad_token_id": 0,
}  # fmt: skip
OTHER = {"mamba_n_heads": 4, "mamba_d_head": 24, "mamba_n_groups": 1, "mamba_d_conv": 4, "num_key_value_heads": 2}
BIASED = {"mamba_proj_bias": True, "mamba_conv_bias": False, "tie_word_embeddings": True}
BAMBA_PLAN = {"attn_layer_indices": [1]}
PLAN = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA2 = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 6, "head_dim": 16, "state_size": 11,
    "n_groups": 2, "conv_kernel": 3, "chunk_size": 7,
}  # fmt: skip
NEMOTRON = {
    "mamba_num_heads": 6, "mamba_head_dim": 16, "ssm_state_size": 11, "n_groups": 2, "conv_kernel": 3, "chunk_size": 7,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 24,
    "n_group": 2, "topk_group": 1,
}  # fmt: skip
ZAMBA2 = {
    "mamba_d_state": 11, "mamba_d_conv": 3, "n_mamba_heads": 6, "mamba_ngroups": 2, "chunk_size": 7, "num_key_value_heads": 4,
    "head_dim": 24, "pad_token_id": 0,
}  # fmt: skip

MINIMAX = {**SIZES, "num_local_experts": 5, "num_experts_per_tok": 2, "block_size": 7}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "falcon_mamba": (MAMBA, {**MAMBA, **BIASED_MAMBA, "mixer_rms_eps": 1e-4}),
    "jamba": (
        {**SIZES, **JAMBA},
        {**SIZES, **JAMBA, "mamba_d_conv": 4, "mamba_conv_bias": False, "mamba_proj_bias": True, "tie_word_embeddings": True},
    ),
    "mamba": (MAMBA, {**MAMBA, **BIASED_MAMBA}),
    "zamba": (
        {**SIZES, **ZAMBA, "num_hidden_layers": 3, "layers_block_type": ["hybrid", "linear_attention", "hybrid"]},
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
    "bamba": ({**SIZES, **BAMBA, **BAMBA_PLAN}, {**SIZES, **BAMBA, **OTHER, **BIASED, **BAMBA_PLAN}),
    "falcon_h1": (
        {**SIZES, **BAMBA, "mamba_d_ssm": 96, "mamba_rms_norm": True, "ssm_in_multiplier": 0.7},
        {
            **SIZES,
            **BAMBA,
            **OTHER,
            **BIASED,
            "mamba_rms_norm": False,
            "mamba_d_ssm": 96,
            "ssm_multipliers": [0.5, 0.7, 1.1, 1.3, 0.9],
            "lm_head_multiplier": 0.3,
        },
    ),
    "granitemoehybrid": (
        {**SIZES, **BAMBA, **PLAN, "num_local_experts": 0, "shared_intermediate_size": 40, "logits_scaling": 3.0},
        {
            **SIZES,
            **BAMBA,
            **OTHER,
            **BIASED,
            **PLAN,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            "position_embedding_type": "rope",
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
        },
    ),
    "mamba2": (MAMBA2, {**MAMBA2, "n_groups": 1, "conv_kernel": 4, "use_bias": True, "time_step_limit": (0.4, 0.7)}),
    "nemotron_h": (
        {**SIZES, **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
        {
            **SIZES,
            **NEMOTRON,
            "layers_block_type": ["full_attention", "linear_attention", "moe", "linear_attention"],
            "num_key_value_heads": 2,
            "n_groups": 1,
            "conv_kernel": 4,
            "use_bias": True,
            "moe_latent_size": 20,
            "time_step_min": 0.5,
            "tie_word_embeddings": True,
        },
    ),
    "zamba2": (
        {
            **SIZES,
            **ZAMBA2,
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
            "num_mem_blocks": 1,
            "use_mem_rope": True,
        },
        {
            **SIZES,
            **ZAMBA2,
            "mamba_ngroups": 1,
            "mamba_d_conv": 4,
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "hybrid", "linear_attention", "hybrid"],
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "adapter_rank": 8,
            "time_step_min": 0.5,
            "tie_word_embeddings": True,
        },
    ),
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
    ),
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
    ),
}
