"""Families with gated delta nets."""

from zoo.sizes import SIZES, Sizes

LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}

PLAN = {"layer_types": ["linear_attention", "full_attention"]}
OTHER = {**LINEAR, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 4, "num_key_value_heads": 2}
TIED = {"tie_word_embeddings": True}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "olmo_hybrid": (
        {**SIZES, **LINEAR, **PLAN, "pad_token_id": 0},
        {**SIZES, **OTHER, **PLAN, **TIED, "linear_allow_neg_eigval": False, "rope_parameters": None, "pad_token_id": 0},
    ),
    "qwen3_5_moe_text": ({**SIZES, **LINEAR, **PLAN, **EXPERTS}, {**SIZES, **OTHER, **PLAN, **EXPERTS, **TIED}),
    "qwen3_5_text": ({**SIZES, **LINEAR, **PLAN}, {**SIZES, **OTHER, **PLAN, **TIED}),
    "qwen3_next": ({**SIZES, **LINEAR, **PLAN, "num_experts": 0}, {**SIZES, **OTHER, **PLAN, **EXPERTS}),
}
