"""Map GGUF's architectures of attention alone whose layers differ from Llama's to config.json and names of weights."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.gguf.architecture import (
    FULL,
    SLIDING,
    Architecture,
    Config,
    Weight,
    attention,
    beside,
    common,
    flat,
    has,
    layers,
    long_rope,
    mlp,
    most,
    of_layers,
    one,
    rope,
    same,
)
from hybridge.export.source.gguf.attention_tables import (
    GEMMA_NORMS,
    HEAD_NORMS,
    MLP,
    MODEL,
    NORMS,
    PAIRED,
    QUERY_AND_KEY,
    VALUE_AND_OUT,
)
from hybridge.export.source.gguf.file import GgufFile

if TYPE_CHECKING:  # as in architecture.py
    from torch import Tensor

LLAMA_LIKE = (*PAIRED, *same(VALUE_AND_OUT | NORMS | MLP))


def _decoder(file: GgufFile, model_type: str) -> dict[str, Any]:
    biases = {"attention_bias": has(file, ".attn_q.bias"), "mlp_bias": has(file, ".ffn_up.bias")}
    return common(file, model_type) | attention(file) | mlp(file) | rope(file) | biases


# Granite


def granite_scales(file: GgufFile) -> dict[str, Any]:
    """Return Granite's four multipliers."""
    return {
        "embedding_multiplier": file.get("embedding_scale") or 1.0,
        "attention_multiplier": file.get("attention.scale") or attention(file)["head_dim"] ** -0.5,
        "residual_multiplier": file.get("residual_scale") or 1.0,
        "logits_scaling": file.get("logit_scale") or 1.0,
    }


def granite_experts(file: GgufFile) -> dict[str, Any]:
    """Return the numbers of Granite's experts, and the width of the dense layer beside them, or alone."""
    shared = file.get("expert_shared_feed_forward_length") or 0
    return {
        "num_local_experts": file.get("expert_count") or 0,
        "num_experts_per_tok": file.get("expert_used_count") or 0,
        "shared_intermediate_size": shared,
    }


def _granite(file: GgufFile, model_type: str) -> dict[str, Any]:
    if file.get("rope.scaling.finetuned") is False:
        raise UnsupportedModelError(
            f"{file.path} is of a Granite model without positions, which hybridge does not read as GGUF."
        )
    return _decoder(file, model_type) | granite_scales(file)


def _granite_swa(file: GgufFile) -> dict[str, Any]:
    slides = of_layers(file["attention.sliding_window_pattern"], file)
    turned = of_layers(file.get("attention.rope_pattern", True), file)
    theta = file.get("rope.freq_base", 10000.0)
    return _granite(file, "granite_swa") | {
        "layer_types": [SLIDING if each else FULL for each in slides],
        "sliding_window": file["attention.sliding_window"],
        "layer_rope_theta": [theta if each else 0.0 for each in turned],
    }


def _granite_moe(file: GgufFile) -> dict[str, Any]:
    shares = has(file, ".ffn_up_shexp.weight")
    return _granite(file, "granitemoeshared" if shares else "granitemoe") | granite_experts(file)


def shared_mlp(end: str) -> tuple[Weight, ...]:
    """Return Granite's dense layers, whose names in the file end with ``end`` if they are beside experts."""
    return (
        Weight(name="shared_mlp.input_linear.weight", of=(f"ffn_gate{end}.weight", f"ffn_up{end}.weight"), make=beside),
        *same({f"ffn_down{end}": "shared_mlp.output_linear"}),
    )


GRANITE_EXPERTS = (
    *same({"ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_down_exps": "block_sparse_moe.output_linear"}),
    *same({"ffn_gate_up_exps": "block_sparse_moe.input_linear"}),
    Weight(name="block_sparse_moe.input_linear.weight", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=beside),
    *shared_mlp("_shexp"),
)

# SmolLM3, Phi-3 and Phi-4


def _smollm3(file: GgufFile) -> dict[str, Any]:
    """Return SmolLM3's config: every fourth layer has no positions, by its number as in llama.cpp's loader."""
    return _decoder(file, "smollm3") | {"no_rope_layers": [int((i + 1) % 4 != 0) for i in range(layers(file))]}


def _phi3(file: GgufFile) -> dict[str, Any]:
    original = file.get("rope.scaling.original_context_length") or file["context_length"]
    angles = rope(file, partial=True)
    angles["rope_parameters"] = long_rope(file, angles["rope_parameters"])
    config = common(file, "phi3") | attention(file) | mlp(file) | angles
    return config | {
        "sliding_window": file.get("attention.sliding_window") or None,
        "original_max_position_embeddings": original,
    }


PHI3 = (
    *same({"attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj"} | NORMS),
    Weight(name="self_attn.qkv_proj.weight", of=("attn_q.weight", "attn_k.weight", "attn_v.weight"), make=beside),
    *same({"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}),
)

# Gemma 4


def _gemma4(file: GgufFile) -> dict[str, Any]:
    """Return Gemma 4's config. Layers with a window and those without have heads of their own."""
    count, wide = layers(file), file["attention.key_length"]
    slides = of_layers(file["attention.sliding_window_pattern"], file)
    kv_heads, widths = of_layers(file["attention.head_count_kv"], file), of_layers(file["feed_forward_length"], file)
    own_values = [i for i in range(count) if f"blk.{i}.attn_v.weight" in file.tensors]
    turned = file.tensors.get("rope_freqs.weight")
    share = 1.0 if turned is None else float((turned.floats() == 1).mean())
    config, own_inputs = common(file, "gemma4_text") | attention(file), file.get("embedding_length_per_layer_input") or 0
    return config | {
        "num_key_value_heads": next((heads for heads, slide in zip(kv_heads, slides, strict=True) if slide), kv_heads[0]),
        "num_global_key_value_heads": next((heads for heads, slide in zip(kv_heads, slides, strict=True) if not slide), None),
        "head_dim": file["attention.key_length_swa"],
        "global_head_dim": wide,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": max(widths) > widths[0],
        "layer_types": [SLIDING if each else FULL for each in slides],
        "sliding_window": file["attention.sliding_window"],
        "rope_parameters": {
            FULL: {"rope_type": "proportional", "rope_theta": file.get("rope.freq_base", 1e6), "partial_rotary_factor": share},
            SLIDING: {"rope_type": "default", "rope_theta": file.get("rope.freq_base_swa", 10000.0)},
        },
        "attention_k_eq_v": any(not slide and i not in own_values for i, slide in enumerate(slides) if i < _own_keys(file)),
        "num_kv_shared_layers": count - _own_keys(file),
        "hidden_size_per_layer_input": own_inputs,
        "vocab_size_per_layer_input": _rows(file, "per_layer_token_embd.weight") or config["vocab_size"],
        "use_bidirectional_attention": None if own_inputs else "vision",  # as published; llama.cpp goes by the sizes of both
        "final_logit_softcapping": file.get("final_logit_softcapping"),
        "enable_moe_block": has(file, ".ffn_gate_inp.weight"),
        "num_experts": file.get("expert_count"),
        "top_k_experts": file.get("expert_used_count"),
        "moe_intermediate_size": most(file.get("expert_feed_forward_length") or 0) or None,
    }


def _own_keys(file: GgufFile) -> int:
    """Return how many layers have keys and values of their own."""
    return layers(file) - int(file.get("attention.shared_kv_layers") or 0)


def _rows(file: GgufFile, name: str) -> int:
    return file.tensors[name].rows if name in file.tensors else 0


GEMMA4 = (
    *same(QUERY_AND_KEY | VALUE_AND_OUT | MLP | HEAD_NORMS | GEMMA_NORMS),
    *same({"inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm"}),
    one("layer_scalar", "layer_output_scale.weight", flat),
    *same({"ffn_gate_inp": "router.proj"}),
    one("router.scale", "ffn_gate_inp.scale", flat),
    one("router.per_expert_scale", "ffn_down_exps.scale", flat),
    *same({"pre_ffw_norm_2": "pre_feedforward_layernorm_2"}),
    *same({f"post_ffw_norm_{i}": f"post_feedforward_layernorm_{i}" for i in (1, 2)}),
    one("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    Weight(name="experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=beside),
    one("experts.down_proj", "ffn_down_exps.weight"),
)
GEMMA4_MODEL = (
    *MODEL,
    *same(
        {
            "per_layer_token_embd": "model.embed_tokens_per_layer",
            "per_layer_model_proj": "model.per_layer_model_projection",
            "per_layer_proj_norm": "model.per_layer_projection_norm",
        }
    ),
)

# Gemma 3n


def _gemma3n(file: GgufFile) -> dict[str, Any]:
    """Return Gemma 3n's config. The file has the shares of activations that are dropped as deviations from their mean."""
    slides = of_layers(file["attention.sliding_window_pattern"], file)
    config = common(file, "gemma3n_text") | attention(file) | mlp(file)
    return config | {
        "layer_types": [SLIDING if each else FULL for each in slides],
        "sliding_window": file["attention.sliding_window"],
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 1e6)},
            SLIDING: {"rope_type": "default", "rope_theta": file.get("rope.freq_base_swa", 10000.0)},
        },
        "num_kv_shared_layers": int(file.get("attention.shared_kv_layers") or 0),
        "activation_sparsity_pattern": [round(NormalDist().cdf(each), 6) for each in file["activation_sparsity_scale"]],
        "altup_num_inputs": file["altup.num_inputs"],
        "altup_active_idx": file["altup.active_idx"],
        "laurel_rank": _rows(file, "blk.0.laurel_l.weight"),
        "hidden_size_per_layer_input": file["embedding_length_per_layer_input"],
        "vocab_size_per_layer_input": _rows(file, "per_layer_token_embd.weight") or config["vocab_size"],
        "final_logit_softcapping": file.get("final_logit_softcapping", 30.0),
    }


def _matrix(index: int) -> Callable[[Config, Tensor], Tensor]:
    """Return a function that takes one of several stacked matrices."""
    return lambda config, stack: stack[index]


ALTUP_STREAMS = 4
"""llama.cpp's converter takes no other number."""
GEMMA3N = (
    *same(QUERY_AND_KEY | VALUE_AND_OUT | MLP | HEAD_NORMS | GEMMA_NORMS),
    *same({"inp_gate": "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm"}),
    *same({"laurel_l": "laurel.linear_left", "laurel_r": "laurel.linear_right", "laurel_post_norm": "laurel.post_laurel_norm"}),
    *same({"altup_correct_coef": "altup.correction_coefs", "altup_predict_coef": "altup.prediction_coefs"}),
    *same({"altup_router": "altup.modality_router", "altup_router_norm": "altup.router_norm"}),
    one("altup.correct_output_scale", "altup_correct_scale.weight", flat),
)
GEMMA3N_MODEL = (
    *GEMMA4_MODEL,
    *(one(f"model.altup_projections.{i}.weight", "altup_proj.weight", _matrix(i)) for i in range(ALTUP_STREAMS - 1)),
    *(
        one(f"model.altup_unembed_projections.{i}.weight", "altup_unembd_proj.weight", _matrix(i))
        for i in range(ALTUP_STREAMS - 1)
    ),
)

# Hunyuan

HUNYUAN = (
    *same(QUERY_AND_KEY | VALUE_AND_OUT | NORMS | MLP),
    *same({"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}),
)

TABLE = {
    "granite": Architecture(config=lambda file: _granite(file, "granite"), layer=LLAMA_LIKE, model=MODEL),
    "granite_swa": Architecture(
        config=_granite_swa,
        layer=(*LLAMA_LIKE, one("self_attn.sinks", "attn_sinks.weight")),
        model=MODEL,
    ),
    "granitemoe": Architecture(
        config=_granite_moe, layer=(*PAIRED, *same(VALUE_AND_OUT | NORMS), *GRANITE_EXPERTS), model=MODEL
    ),
    "smollm3": Architecture(config=_smollm3, layer=LLAMA_LIKE, model=MODEL),
    "phi3": Architecture(config=_phi3, layer=PHI3, model=MODEL),
    "hunyuan-dense": Architecture(config=lambda file: _decoder(file, "hunyuan_v1_dense"), layer=HUNYUAN, model=MODEL),
    "gemma3n": Architecture(config=_gemma3n, layer=GEMMA3N, model=GEMMA3N_MODEL),
    "gemma4": Architecture(config=_gemma4, layer=GEMMA4, model=GEMMA4_MODEL),
}
