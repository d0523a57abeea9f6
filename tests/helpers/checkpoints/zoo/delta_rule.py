"""Families with delta rules: gated delta nets, Kimi delta attention, GLM-5.3-Flash, Qwen4 and RWKV-7."""

import hybridge.export.source.text_model  # noqa: F401  lets transformers make the text model with its head
from zoo.sizes import SIZES, Sizes

DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}

PLAN = {"layer_types": ["linear_attention", "full_attention"]}
OTHER = {**DELTA, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 4, "num_key_value_heads": 2}
TIED = {"tie_word_embeddings": True}

FULL, LINEAR, INDEXED = "full_attention", "linear_attention", "indexed_attention"

KIMI = {
    **SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4, "layer_types": [LINEAR, FULL, LINEAR, FULL],
    "kv_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "num_experts": 5,
    "num_experts_per_token": 2, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1, "pad_token_id": 0,
}  # fmt: skip
OTHER_KIMI = {
    "num_hidden_layers": 3, "layer_types": [FULL, LINEAR, LINEAR], "qk_rope_head_dim": 6, "v_head_dim": 30, "n_group": 2,
    "num_experts": 6, "moe_renormalize": False, "attention_bias": True, "hidden_act": "gelu",
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}


GLM = {
    **SIZES,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "layer_types": [LINEAR, INDEXED, INDEXED],
    "indexer_types": ["full", "full", "shared"],
    "mlp_layer_types": ["dense", "sparse", "dense"],
    "q_lora_rank": 28,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "pad_token_id": 0,
    "linear_head_dim": 20,
    "linear_num_heads": 3,
    "linear_conv_kernel_dim": 3,
    "index_topk": 8,
    "index_kpool": 4,
    "index_head_dim": 12,
    "index_n_heads": 24,  # of few, all may score 0, and which of the equal ones is best is nobody's to say
    "hc_mult": 3,
    "hc_sinkhorn_iters": 2,
}
OTHER_GLM = {
    "num_hidden_layers": 2,
    "layer_types": [LINEAR, INDEXED],  # not the first: there equal tokens make equal pools, which tie as well
    "indexer_types": ["full", "full"],
    "mlp_layer_types": ["sparse", "dense"],
    "n_routed_experts": 6,
    "n_group": 2,
    "norm_topk_prob": False,
    "attention_bias": True,
    "linear_lower_bound": None,
    "linear_conv_kernel_dim": 4,
    "index_topk": 15,
    "index_kpool": 3,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 4,
    "swiglu_limit": 0.5,
}

QWEN4: Sizes = {
    **SIZES,
    **DELTA,
    **EXPERTS,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
    "eos_token_id": 3,
    "hc_count": 2,
    "hc_lowrank": 12,
    "indexer_n_heads": 16,  # of few, all may score 0, and which of the equal ones is best is nobody's to say
    "indexer_kv_heads": 1,
    "indexer_head_dim": 24,
    "indexer_budget": 9,
    "indexer_compress_ratio": 3,
    "ple_layer_ids": [1],
    "ple_embed_dim": 24,
    "ple_conv_kernel_size": 3,
    "heads_per_ngram": 3,
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 8,
}

RWKV7: Sizes = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "head_dim": 16, "num_heads": 3, "intermediate_size": 72,
    "hidden_ratio": 4.0, "decay_low_rank_dim": 9, "gate_low_rank_dim": 11, "a_low_rank_dim": 7, "v_low_rank_dim": 5,
    "value_dim": [48, 48, 48], "max_position_embeddings": 512, "attn": None, "attn_mode": "chunk", "fuse_norm": True,
}  # fmt: skip

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "olmo_hybrid": (
        {**SIZES, **DELTA, **PLAN, "pad_token_id": 0},
        {**SIZES, **OTHER, **PLAN, **TIED, "linear_allow_neg_eigval": False, "rope_parameters": None, "pad_token_id": 0},
    ),
    "qwen3_5_moe_text": ({**SIZES, **DELTA, **PLAN, **EXPERTS}, {**SIZES, **OTHER, **PLAN, **EXPERTS, **TIED}),
    "qwen3_5_text": ({**SIZES, **DELTA, **PLAN}, {**SIZES, **OTHER, **PLAN, **TIED}),
    "qwen3_next": ({**SIZES, **DELTA, **PLAN, "num_experts": 0}, {**SIZES, **OTHER, **PLAN, **EXPERTS}),
    "kimi_linear": (
        {**KIMI, "linear_head_dim": 20, "linear_num_heads": 3, "linear_conv_kernel_dim": 3},
        {**KIMI, **OTHER_KIMI, "linear_head_dim": 12, "linear_num_heads": 2, "linear_conv_kernel_dim": 4, "q_lora_rank": 28},
    ),
    "bailing_hybrid": (
        {**KIMI, "head_dim": 20, "short_conv_kernel_size": 3, "first_k_dense_replace": 2},
        {**KIMI, **OTHER_KIMI, "head_dim": 12, "first_k_dense_replace": 1, "kda_safe_gate": False, "rope_parameters": YARN},
    ),
    "rwkv7": (
        RWKV7,
        {
            **RWKV7, "hidden_size": 40, "head_dim": None, "num_heads": 5, "intermediate_size": None, "hidden_ratio": 2.0,
            "value_dim": None, "norm_first": False, "norm_bias": False, "decay_low_rank_dim": None, "tie_word_embeddings": True,
        },
    ),
    "glm5_next_text": (GLM, {**GLM, **OTHER_GLM}),
    "qwen4_exp_text": (
        QWEN4,
        {
            **QWEN4, **OTHER, "num_hidden_layers": 2, "layer_types": ["linear_attention", "indexed_attention"],
            "indexer_budget": 20, "indexer_compress_ratio": 5, "ple_layer_ids": [], "output_gate_type": "sigmoid",
            "hc_count": 3, "tie_word_embeddings": True,
        },
    ),
}  # fmt: skip
