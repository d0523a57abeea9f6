"""Families with Kimi delta attention."""

from zoo.sizes import SIZES, Sizes

FULL, LINEAR = "full_attention", "linear_attention"

KIMI = {
    **SIZES,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "layer_types": [LINEAR, FULL, LINEAR, FULL],
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_experts": 5,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
}
OTHER = {
    "num_hidden_layers": 3,
    "layer_types": [FULL, LINEAR, LINEAR],
    "qk_rope_head_dim": 6,
    "v_head_dim": 30,
    "n_group": 2,
    "num_experts": 6,
    "moe_renormalize": False,
    "attention_bias": True,
    "hidden_act": "gelu",
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "kimi_linear": (
        {**KIMI, "linear_head_dim": 20, "linear_num_heads": 3, "linear_conv_kernel_dim": 3},
        {**KIMI, **OTHER, "linear_head_dim": 12, "linear_num_heads": 2, "linear_conv_kernel_dim": 4, "q_lora_rank": 28},
    ),
    "bailing_hybrid": (
        {**KIMI, "head_dim": 20, "short_conv_kernel_size": 3, "first_k_dense_replace": 2},
        {**KIMI, **OTHER, "head_dim": 12, "first_k_dense_replace": 1, "kda_safe_gate": False, "rope_parameters": YARN},
    ),
}
