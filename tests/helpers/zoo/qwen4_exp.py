"""Qwen4."""

from zoo.gated_delta import EXPERTS, LINEAR, OTHER
from zoo.sizes import SIZES, Sizes

QWEN4: Sizes = {
    **SIZES,
    **LINEAR,
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

VARIANTS: dict[str, tuple[Sizes, Sizes]] = {
    "qwen4_exp_text": (
        QWEN4,
        {
            **QWEN4,
            **OTHER,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "indexed_attention"],
            "indexer_budget": 20,
            "indexer_compress_ratio": 5,
            "ple_layer_ids": [],
            "output_gate_type": "sigmoid",
            "hc_count": 3,
            "tie_word_embeddings": True,
        },
    )
}
