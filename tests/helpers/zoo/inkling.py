"""Inkling and Inkling 2. Sliding layers have heads of their own."""

from zoo.sizes import SIZES, Sizes

COMMON: Sizes = {
    **SIZES,
    "num_hidden_layers": 3,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "swa_num_attention_heads": 6,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "sliding_window_size": 5,
    "d_rel": 3,
    "rel_extent": 11,
    "conv_kernel_size": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "log_scaling_n_floor": 7,
}
OTHER: Sizes = {
    **COMMON,
    "num_hidden_layers": 2,
    "layer_types": ["hybrid", "hybrid_sliding"],
    "num_key_value_heads": 2,
    "head_dim": 24,
    "sliding_window_size": 23,
    "rel_extent": 100,
    "conv_kernel_size": 3,
    "hidden_act": "gelu",
    "unpadded_vocab_size": 127,
}
SHARED = {
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "n_shared_experts": 2,
    "logits_mup_width_multiplier": 3.0,
}
BLOCKS = {
    "n_layers_per_attn_res_block": 2,
    "log_scaling_alpha": 0.4,
    "final_logit_softcapping": 5.0,
    "unpadded_vocab_size": 131,
}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "inkling_text": (
        {**COMMON, **SHARED},
        {
            **OTHER,
            "log_scaling_n_floor": None,
            "n_shared_experts": 1,
            "mlp_layer_types": ["sparse", "dense"],
        },
    ),
    "inkling2_text": (
        {**COMMON, **BLOCKS},
        {
            **OTHER,
            "n_layers_per_attn_res_block": 3,
            "qk_l2_clip_threshold": 2.0,
            "rel_l2_clip_threshold": 0.5,
            "mlp_up_softcap": 1.5,
        },
    ),
}
