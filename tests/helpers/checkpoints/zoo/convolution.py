"""Families with short convolutions beside attention: LFM2, LFM3, Inkling and ZAYA, whose layers have delays, too."""

from zoo.sizes import SIZES, Sizes

FULL, SLIDING = "full_attention", "sliding_attention"

LFM = {**SIZES, "layer_types": ["conv", FULL], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OTHER_LFM = {
    "layer_types": [FULL, "conv"],
    "num_key_value_heads": 2,
    "conv_L_cache": 4,
    "conv_bias": True,
    "tie_word_embeddings": False,
}
LFM_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_dense_layers": 1}
PLAIN_ROUTING = {"num_experts": 5, "use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.7}

INKLING: Sizes = {
    **SIZES, "num_hidden_layers": 3, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "swa_num_attention_heads": 6, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "sliding_window_size": 5, "d_rel": 3,
    "rel_extent": 11, "conv_kernel_size": 4, "moe_intermediate_size": 24, "n_routed_experts": 5, "num_experts_per_tok": 2,
    "log_scaling_n_floor": 7,
}  # fmt: skip
OTHER_INKLING: Sizes = {
    **INKLING, "num_hidden_layers": 2, "layer_types": ["hybrid", "hybrid_sliding"], "num_key_value_heads": 2, "head_dim": 24,
    "sliding_window_size": 23, "rel_extent": 100, "conv_kernel_size": 3, "hidden_act": "gelu", "unpadded_vocab_size": 127,
}  # fmt: skip
INKLING_SHARED = {"mlp_layer_types": ["dense", "sparse", "dense"], "n_shared_experts": 2, "logits_mup_width_multiplier": 3.0}
BLOCKS = {
    "n_layers_per_attn_res_block": 2,
    "log_scaling_alpha": 0.4,
    "final_logit_softcapping": 5.0,
    "unpadded_vocab_size": 131,
}

ZAYA = {
    **SIZES, "num_hidden_layers": 3, "num_experts": 5, "moe_intermediate_size": 24, "router_hidden_size": 20,
    "pad_token_id": 0, "initializer_range": 0.1, "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "sliding_window": 5,
}  # fmt: skip
OTHER_ZAYA = {
    "num_key_value_heads": 2, "num_experts": 7, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "sliding_window": 23, "lm_head_bias": True, "head_dim": 24, "tie_word_embeddings": False, "cca_time0": 3, "cca_time1": 4,
}  # fmt: skip

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "lfm2": (LFM, {**LFM, **OTHER_LFM}),
    "lfm2_moe": ({**LFM, **LFM_EXPERTS}, {**LFM, **OTHER_LFM, **LFM_EXPERTS, **PLAIN_ROUTING}),
    "lfm3": (
        {**LFM, "num_hidden_layers": 3, "layer_types": ["conv", SLIDING, FULL], "sliding_window": 9},
        {
            **LFM, **OTHER_LFM, "num_hidden_layers": 3, "layer_types": [SLIDING, "conv", FULL], "sliding_window": 23,
            "attention_bias": True, "use_sandwich_norm": False, "use_attention_gate": False,
        },
    ),
    "inkling_text": (
        {**INKLING, **INKLING_SHARED},
        {**OTHER_INKLING, "log_scaling_n_floor": None, "n_shared_experts": 1, "mlp_layer_types": ["sparse", "dense"]},
    ),
    "inkling2_text": (
        {**INKLING, **BLOCKS},
        {
            **OTHER_INKLING, "n_layers_per_attn_res_block": 3, "qk_l2_clip_threshold": 2.0, "rel_l2_clip_threshold": 0.5,
            "mlp_up_softcap": 1.5,
        },
    ),
    "zaya": (ZAYA, {**ZAYA, **OTHER_ZAYA}),
}  # fmt: skip
