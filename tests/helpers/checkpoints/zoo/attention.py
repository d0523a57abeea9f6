"""Families with attention only."""

from zoo.sizes import SIZES, Sizes

OTHER = {"num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NARROW, WIDE = {"sliding_window": 5}, {"sliding_window": 23}
SLIDING_FIRST = {"layer_types": ["sliding_attention", "full_attention"]}
FULL_FIRST = {"layer_types": ["full_attention", "sliding_attention"]}
MIXED: tuple[Sizes, Sizes] = ({**SIZES, **SLIDING_FIRST, **NARROW}, {**SIZES, **OTHER, **FULL_FIRST, **WIDE})
SLIDING_ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 10.0}}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "original_max_position_embeddings": 16}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1, 1.1, 1.2, 1.4, 2, 3], "long_factor": [4] * 6}

LATENT: Sizes = {
    **{name: size for name, size in SIZES.items() if name != "head_dim"},
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "q_lora_rank": 28,
}
OTHER_LATENT = {"qk_rope_head_dim": 6, "v_head_dim": 30, "q_lora_rank": None, "attention_bias": True}
EXPERTS = {"n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 16,
    "type": "yarn",
}
"""As DeepSeek-V2-Lite's config.json says it."""

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "cohere2": (MIXED[0], {**MIXED[1], "logit_scale": 0.25}),
    "deepseek_v2": (
        {**LATENT, **EXPERTS, "num_hidden_layers": 3, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7},
        {
            **LATENT, **OTHER_LATENT, "n_routed_experts": 6, "moe_intermediate_size": 24, "num_experts_per_tok": 2,
            "n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy", "n_shared_experts": 1, "rope_theta": 100.0,
            "rope_scaling": LATENT_YARN,
        },
    ),
    "exaone4": MIXED,
    "gemma2": (
        {**MIXED[0], "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20},
        {**MIXED[1], "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_text": (
        MIXED[0], {**MIXED[1], "query_pre_attn_scalar": 20, "rope_parameters": {"full_attention": LINEAR, **SLIDING_ROPE}},
    ),
    "gemma3n_text": (
        {
            **SIZES, **NARROW, "num_hidden_layers": 6, "num_kv_shared_layers": 2,
            "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 120, "laurel_rank": 5,
            "activation_sparsity_pattern": [0.95, 0.8, 0.5, 0.0, 0.0, 0.0], "altup_num_inputs": 4,
            "intermediate_size": [72, 72, 72, 40, 40, 40],
        },
        {
            **SIZES, **WIDE, **FULL_FIRST, "num_key_value_heads": 2, "head_dim": 24, "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 131, "laurel_rank": 9, "altup_num_inputs": 3,
            "altup_active_idx": 1, "altup_correct_scale": False, "activation_sparsity_pattern": [0.0, 0.95],
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4_text": (
        {
            **SIZES, **NARROW, "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2, "global_head_dim": 24, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 131,
        },
        {
            **SIZES, **WIDE, "num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 24, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2,
            "moe_intermediate_size": 24, "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4_unified_text": (
        {
            **SIZES, **WIDE, "num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 24, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0,
        },
        {
            **SIZES, **NARROW, "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "global_head_dim": 24,
        },
    ),
    "glm4_moe_lite": (
        {**LATENT, **EXPERTS},
        {
            **LATENT, **OTHER_LATENT, "num_hidden_layers": 3, "n_routed_experts": 6, "moe_intermediate_size": 24, "n_group": 2,
            "topk_group": 1, "num_experts_per_tok": 2, "norm_topk_prob": False, "rope_interleave": False, "n_shared_experts": 2,
            "rope_theta": 100.0, "rope_scaling": LATENT_YARN,
        },
    ),
    "gpt_oss": (
        {**MIXED[0], "num_local_experts": 5, "num_experts_per_tok": 2},
        {**MIXED[1], "num_local_experts": 7, "num_experts_per_tok": 3, "tie_word_embeddings": False},
    ),
    "granite_swa": (
        {
            **SIZES, **ENDS, "num_hidden_layers": 4, "sliding_window": 7, "layer_rope_theta": [0, 10000.0, 10000.0, 500.0],
            "attention_multiplier": 0.0625, "logits_scaling": 2.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0,
        },
        {**MIXED[1], **ENDS, "attention_multiplier": 0.3, "attention_bias": True},
    ),
    "hunyuan_v1_dense": (
        {
            **SIZES, "max_position_embeddings": 50, "rope_theta": 100.0,
            "rope_scaling": {
                "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "type": "dynamic",
            },
        },
        {**SIZES, **OTHER, "attention_bias": True},
    ),
    "llama": (SIZES, {**SIZES, **OTHER, "rope_parameters": LINEAR}),
    "llama4_text": (
        {
            **SIZES, "num_hidden_layers": 3, "attention_chunk_size": 5, "no_rope_layers": [1, 0, 1],
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "floor_scale": 7,
            "num_local_experts": 5, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 40, "pad_token_id": 0,
        },
        {
            **SIZES, **OTHER, "attention_chunk_size": 23, "no_rope_layers": [0, 1],
            "layer_types": ["full_attention", "chunked_attention"], "attn_temperature_tuning": False, "use_qk_norm": False,
            "num_local_experts": 7, "num_experts_per_tok": 2, "intermediate_size_mlp": 40, "pad_token_id": 0,
        },
    ),
    "minicpm3": (
        {
            **LATENT, "dim_model_base": 16, "rope_theta": 100.0,
            "rope_scaling": {
                "type": "longrope", "short_factor": [1, 1.1, 1.2, 2], "long_factor": [4] * 4,
                "original_max_position_embeddings": 100,
            },
        },
        {**LATENT, **OTHER_LATENT, "scale_depth": None, "scale_emb": 3, "tie_word_embeddings": False},
    ),
    "ministral": ({**SIZES, **NARROW}, {**SIZES, **OTHER, **WIDE, "rope_parameters": DYNAMIC}),
    "mistral": ({**SIZES, **NARROW}, {**SIZES, **OTHER, **WIDE}),
    "olmo3": (MIXED[0], {**MIXED[1], "rope_parameters": {"full_attention": YARN, **SLIDING_ROPE}}),
    "phi3": (
        {**SIZES, **NARROW, "head_dim": 12, "partial_rotary_factor": 0.5, "pad_token_id": 0},
        {
            **SIZES, "head_dim": 12, "num_key_value_heads": 2, "pad_token_id": 0, "original_max_position_embeddings": 100,
            "rope_parameters": LONG_ROPE,
        },
    ),
    "qwen2": (SIZES, {**SIZES, **OTHER, **WIDE, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": (SIZES, {**SIZES, **OTHER, **WIDE, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3_moe": (
        {**SIZES, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1},
        {
            **SIZES, **OTHER, **WIDE, "use_sliding_window": True, "num_experts": 7, "num_experts_per_tok": 3,
            "moe_intermediate_size": 40, "norm_topk_prob": True, "mlp_only_layers": [1],
        },
    ),
    "smollm3": (
        {**SIZES, "no_rope_layer_interval": 2, "pad_token_id": 0},
        {**SIZES, **OTHER, **WIDE, "use_sliding_window": True, "no_rope_layers": [1, 0], "pad_token_id": 0},
    ),
    "youtu": (
        {**LATENT, "bos_token_id": 1, "eos_token_id": 2},
        {
            **LATENT, **OTHER_LATENT, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
            "rope_interleave": False,
        },
    ),
}  # fmt: skip
