"""Families with short convolutions."""

from zoo.sizes import SIZES, Sizes

FULL, SLIDING = "full_attention", "sliding_attention"

LFM = {**SIZES, "layer_types": ["conv", FULL], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OTHER = {
    "layer_types": [FULL, "conv"],
    "num_key_value_heads": 2,
    "conv_L_cache": 4,
    "conv_bias": True,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_dense_layers": 1}
PLAIN_ROUTING = {"num_experts": 5, "use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.7}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "lfm2": (LFM, {**LFM, **OTHER}),
    "lfm2_moe": ({**LFM, **EXPERTS}, {**LFM, **OTHER, **EXPERTS, **PLAIN_ROUTING}),
    "lfm3": (
        {**LFM, "num_hidden_layers": 3, "layer_types": ["conv", SLIDING, FULL], "sliding_window": 9},
        {
            **LFM,
            **OTHER,
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, "conv", FULL],
            "sliding_window": 23,
            "attention_bias": True,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
        },
    ),
}
