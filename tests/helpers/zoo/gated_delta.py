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

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "qwen3_next": ({**SIZES, **LINEAR, "num_experts": 0}, {**SIZES, **LINEAR, **EXPERTS, "linear_conv_kernel_dim": 4}),
    "qwen3_5_text": (
        {**SIZES, **LINEAR, "full_attention_interval": 2},
        {**SIZES, **LINEAR, "num_hidden_layers": 4, "linear_num_value_heads": 2, "tie_word_embeddings": True},
    ),
}
