"""What a GGUF file says of its model, by llama.cpp's converter (``conversion/*.py``); see ``gguf_files``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel


def metadata(architecture: str, model: PreTrainedModel) -> dict[str, Any]:
    c = model.config
    heads = getattr(c, "num_attention_heads", 0)
    found: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "context_length": getattr(c, "max_position_embeddings", 1 << 20),
        "embedding_length": c.hidden_size,
        "feed_forward_length": getattr(c, "intermediate_size", 0) if architecture != "mamba2" else 0,
        "attention.head_count": heads,
        "attention.layer_norm_rms_epsilon": float(
            getattr(c, "rms_norm_eps", None) or getattr(c, "norm_eps", None) or c.layer_norm_epsilon
        ),
    }
    if architecture != "mamba2":
        found["attention.head_count_kv"] = c.num_key_value_heads
        dim = getattr(c, "head_dim", None) or c.hidden_size // heads
        found |= {"attention.key_length": dim, "attention.value_length": dim}
        rope = getattr(c, "rope_parameters", None) or {}
        rope = rope.get("full_attention", rope)
        if "rope_theta" in rope:
            partial = rope.get("partial_rotary_factor") or 1.0
            found |= {"rope.freq_base": float(rope["rope_theta"]), "rope.dimension_count": int(dim * partial)}
        if rope.get("rope_type") in ("linear", "yarn"):
            found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        if rope.get("rope_type") == "yarn":
            found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return found | MORE.get(architecture, lambda c: {})(c)


def _experts(c: Any) -> dict[str, Any]:
    return {
        "expert_count": c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": c.moe_intermediate_size,
    }


def _delta(c: Any) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": c.linear_value_head_dim * c.linear_num_value_heads,
        "full_attention_interval": c.layer_types.index("full_attention") + 1,
    }


def _sections(c: Any) -> dict[str, Any]:
    """Time, height and width; a text has the same places in all."""
    turned = int(c.head_dim * c.rope_parameters["partial_rotary_factor"]) // 2
    return {"rope.dimension_sections": [turned - 2 * (turned // 3), turned // 3, turned // 3, 0]}


def _shared(c: Any) -> dict[str, Any]:
    return {**_experts(c), "expert_shared_feed_forward_length": c.shared_expert_intermediate_size}


def _kv_heads(c: Any) -> list[int]:
    return [c.num_key_value_heads if kind in ("attention", "full_attention") else 0 for kind in c.layer_types]


def _kimi(c: Any) -> dict[str, Any]:
    return {
        **_experts(c),
        "attention.head_count_kv": [1 if kind == "full_attention" else 0 for kind in c.layer_types],
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "kda.head_dim": c.linear_head_dim,
        "attention.kv_lora_rank": c.kv_lora_rank,
        "rope.dimension_count": c.qk_rope_head_dim,
        "attention.key_length": c.kv_lora_rank + c.qk_rope_head_dim,
        "attention.key_length_mla": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length_mla": c.v_head_dim,
        "expert_shared_count": c.n_shared_experts,
        "leading_dense_block_count": sum(kind == "dense" for kind in c.mlp_layer_types),
        "expert_weights_scale": float(c.routed_scaling_factor),
    }


def _lfm2(c: Any) -> dict[str, Any]:
    return {"attention.head_count_kv": _kv_heads(c), "shortconv.l_cache": c.conv_L_cache}


def _lfm2_moe(c: Any) -> dict[str, Any]:
    return {**_lfm2(c), **_experts(c), "leading_dense_block_count": c.num_dense_layers}


def _ssm(heads: int, head_dim: int, states: int, groups: int, kernel: int) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": heads * head_dim,
        "ssm.state_size": states,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }


def _mamba_d(c: Any) -> dict[str, Any]:
    return _ssm(c.mamba_n_heads, c.mamba_d_head, c.mamba_d_state, c.mamba_n_groups, c.mamba_d_conv)


def _granite(c: Any) -> dict[str, Any]:
    return {
        **_mamba_d(c),
        "attention.head_count_kv": _kv_heads(c),
        "rope.scaling.finetuned": False,
        "attention.scale": float(c.attention_multiplier),
        "embedding_scale": float(c.embedding_multiplier),
        "residual_scale": float(c.residual_multiplier),
        "logit_scale": float(c.logits_scaling),
        "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_shared_feed_forward_length": c.shared_intermediate_size,
    }


def _nemotron(c: Any) -> dict[str, Any]:
    return {
        **_ssm(c.mamba_num_heads, c.mamba_head_dim, c.ssm_state_size, c.n_groups, c.conv_kernel),
        "attention.head_count_kv": _kv_heads(c),
        "feed_forward_length": [c.intermediate_size if kind == "mlp" else 0 for kind in c.layers_block_type],
    }


def _nemotron_experts(c: Any) -> dict[str, Any]:
    return {
        "feed_forward_length": [c.moe_intermediate_size if kind == "moe" else 0 for kind in c.layers_block_type],
        "expert_count": c.n_routed_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": c.moe_intermediate_size,
        "expert_shared_feed_forward_length": c.moe_shared_expert_intermediate_size,
        "expert_shared_count": c.n_shared_experts,
        "expert_weights_norm": c.norm_topk_prob,
        "expert_weights_scale": float(c.routed_scaling_factor),
        "expert_group_count": c.n_group,
    }


def _jamba(c: Any) -> dict[str, Any]:
    attends = range(c.attn_layer_offset, c.num_hidden_layers, c.attn_layer_period)
    return {
        "attention.head_count_kv": [c.num_key_value_heads if i in attends else 0 for i in range(c.num_hidden_layers)],
        "ssm.conv_kernel": c.mamba_d_conv,
        "ssm.inner_size": c.mamba_expand * c.hidden_size,
        "ssm.state_size": c.mamba_d_state,
        "ssm.time_step_rank": c.mamba_dt_rank,
        "expert_count": c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
    }


def _gpt_oss(c: Any) -> dict[str, Any]:
    return {
        "attention.sliding_window": c.sliding_window,
        "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": c.intermediate_size,
    }


MORE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "qwen35": lambda c: {**_delta(c), **_sections(c)},
    "qwen35moe": lambda c: {**_delta(c), **_sections(c), **_shared(c)},
    "qwen3next": lambda c: {**_delta(c), **_shared(c)},
    "kimi-linear": _kimi,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    "mamba2": lambda c: _ssm(c.num_heads, c.head_dim, c.state_size, c.n_groups, c.conv_kernel),
    "granitehybrid": _granite,
    "falcon-h1": _mamba_d,
    "nemotron_h": _nemotron,
    "nemotron_h_moe": lambda c: {**_nemotron(c), **_nemotron_experts(c)},
    "jamba": _jamba,
    "qwen3moe": _experts,
    "gemma3": lambda c: {"attention.sliding_window": c.sliding_window},
    "gpt-oss": _gpt_oss,
}
