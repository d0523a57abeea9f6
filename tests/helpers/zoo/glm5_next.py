"""GLM-5.3-Flash."""

import hybridge.export.source.text_model  # noqa: F401  lets transformers make the text model with its head
from zoo.sizes import SIZES, Sizes

INDEXED, LINEAR = "indexed_attention", "linear_attention"

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
OTHER = {
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

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {"glm5_next_text": (GLM, {**GLM, **OTHER})}
