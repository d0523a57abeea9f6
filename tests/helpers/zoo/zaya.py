"""ZAYA."""

from zoo.sizes import SIZES, Sizes

ZAYA = {
    **SIZES,
    "num_hidden_layers": 3,
    "num_experts": 5,
    "moe_intermediate_size": 24,
    "router_hidden_size": 20,
    "pad_token_id": 0,
    "initializer_range": 0.1,
    "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
    "sliding_window": 5,
}
OTHER = {
    "num_key_value_heads": 2,
    "num_experts": 7,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "sliding_window": 23,
    "lm_head_bias": True,
    "head_dim": 24,
    "tie_word_embeddings": False,
    "cca_time0": 3,
    "cca_time1": 4,
}

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {"zaya": (ZAYA, {**ZAYA, **OTHER})}
