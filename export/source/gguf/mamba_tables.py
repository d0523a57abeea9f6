"""Map GGUF's architectures with Mamba or Mamba-2 to config.json and names of weights."""

from __future__ import annotations

from typing import Any

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.gguf.architecture import (
    Architecture,
    Weight,
    attention,
    beside,
    common,
    conv,
    decay,
    decay_of_channels,
    flat,
    has,
    layers,
    mlp,
    of_layers,
    one,
    rope,
    same,
    unpaired,
)
from hybridge.export.source.gguf.attention_tables import MODEL, NORMS, PAIRED, QUERY_AND_KEY, VALUE_AND_OUT
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.source.gguf.transformer_tables import GRANITE_EXPERTS, granite_experts, granite_scales, shared_mlp


def _mamba2_mixer(place: str) -> tuple[Weight, ...]:
    return (
        *same({"ssm_in": f"{place}.in_proj", "ssm_out": f"{place}.out_proj"}),
        *same({"ssm_norm": f"{place}.norm"}, flat),
        one(f"{place}.conv1d.weight", "ssm_conv1d.weight", conv),
        one(f"{place}.conv1d.bias", "ssm_conv1d.bias", flat),
        one(f"{place}.dt_bias", "ssm_dt.bias", flat),
        one(f"{place}.A_log", "ssm_a", decay),
        one(f"{place}.D", "ssm_d", flat),
    )


def _mamba2(file: GgufFile) -> dict[str, Any]:
    heads = file["ssm.time_step_rank"]
    return _pure(file, "mamba2") | {
        "num_heads": heads,
        "head_dim": file["ssm.inner_size"] // heads,
        "n_groups": file["ssm.group_count"],
        "chunk_size": 256,
    }


def _mamba(file: GgufFile) -> dict[str, Any]:
    """Return the config of Mamba, or of Falcon Mamba, which norms steps and states."""
    return _pure(file, "falcon_mamba" if file.get("ssm.dt_b_c_rms") else "mamba") | {
        "time_step_rank": file["ssm.time_step_rank"],
        "intermediate_size": file["ssm.inner_size"],
    }


def _pure(file: GgufFile, model_type: str) -> dict[str, Any]:
    """Return what configs of models of Mamba layers alone share."""
    return common(file, model_type) | {
        "state_size": file["ssm.state_size"],
        "conv_kernel": file["ssm.conv_kernel"],
        "expand": file["ssm.inner_size"] // file["embedding_length"],
        "use_conv_bias": has(file, ".ssm_conv1d.bias"),
        "use_bias": has(file, ".ssm_in.bias"),
        "layer_norm_epsilon": file["attention.layer_norm_rms_epsilon"],
    }


def _mamba_mixer(place: str) -> tuple[Weight, ...]:
    return (
        *same({f"ssm_{part}": f"{place}.{part}_proj" for part in ("in", "x", "dt", "out")}),
        one(f"{place}.conv1d.weight", "ssm_conv1d.weight", conv),
        one(f"{place}.conv1d.bias", "ssm_conv1d.bias", flat),
        one(f"{place}.A_log", "ssm_a", decay_of_channels),
        one(f"{place}.D", "ssm_d", flat),
    )


def _mamba_sizes(file: GgufFile) -> dict[str, Any]:
    """Return the sizes of Mamba-2 by the names that most configs of hybrid models share."""
    heads, inner = file["ssm.time_step_rank"], file["ssm.inner_size"]
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_state": file["ssm.state_size"],
        "mamba_n_groups": file["ssm.group_count"],
        "mamba_d_conv": file["ssm.conv_kernel"],
        "mamba_expand": inner // file["embedding_length"],
        "mamba_conv_bias": has(file, ".ssm_conv1d.bias"),
        "mamba_proj_bias": has(file, ".ssm_in.bias"),
    }


def _decoder(file: GgufFile, model_type: str) -> dict[str, Any]:
    return common(file, model_type) | attention(file) | mlp(file)


def _granite(file: GgufFile) -> dict[str, Any]:
    """Return Granite 4's config. Raises UnsupportedModelError for Bamba, which llama.cpp gives the same name."""
    config = _decoder(file, "granitemoehybrid") | _mamba_sizes(file)
    turns = bool(file.get("rope.scaling.finetuned"))
    if turns and file.get("rope.dimension_count", config["head_dim"]) != config["head_dim"]:
        raise UnsupportedModelError(f"{file.path} is of a Bamba model, which hybridge reads as safetensors only.")
    kv_heads = of_layers(file["attention.head_count_kv"], file)
    sizes = granite_experts(file)
    return (
        config
        | (rope(file) if turns else {})
        | granite_scales(file)
        | sizes
        | {
            "layer_types": ["attention" if each else "mamba" for each in kv_heads],
            "position_embedding_type": "rope" if turns else None,
            "shared_intermediate_size": sizes["shared_intermediate_size"] or config["intermediate_size"],
            "attention_bias": has(file, ".attn_q.bias"),
        }
    )


GRANITE = (
    *PAIRED,
    *same(VALUE_AND_OUT | NORMS),
    *_mamba2_mixer("mamba"),
    *shared_mlp(""),
    *GRANITE_EXPERTS,
)


def _falcon_h1(file: GgufFile) -> dict[str, Any]:
    """Return Falcon-H1's config, with multipliers of 1 because llama.cpp multiplies them into the weights."""
    config = _decoder(file, "falcon_h1") | _mamba_sizes(file) | rope(file)
    names = ("attention_in", "attention_out", "ssm_in", "ssm_out", "key", "lm_head", "embedding")
    ones = {f"{name}_multiplier": 1.0 for name in names}
    return (
        config
        | ones
        | {
            "mamba_expand": 2,
            "mamba_d_ssm": file["ssm.inner_size"],
            "mamba_rms_norm": has(file, ".ssm_norm.weight"),
            "mamba_norm_before_gate": False,
            "mlp_multipliers": [1.0, 1.0],
            "ssm_multipliers": [1.0] * 5,
        }
    )


FALCON_H1 = (
    *same(QUERY_AND_KEY | VALUE_AND_OUT | {"attn_norm": "input_layernorm", "ffn_norm": "pre_ff_layernorm"}),
    one("pre_ff_layernorm.weight", "ffn_norm", flat),  # as llama.cpp writes it
    *same({f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}),
    *_mamba2_mixer("mamba"),
)


def _nemotron_h(file: GgufFile) -> dict[str, Any]:
    """Return Nemotron-H's config: a layer with key/value heads is attention, one with a width is dense, others are Mamba-2."""
    kv_heads = of_layers(file["attention.head_count_kv"], file)
    widths = of_layers(file["feed_forward_length"], file)
    wide = "moe" if file.get("expert_count") else "mlp"
    heads = file["ssm.time_step_rank"]
    config = _decoder(file, "nemotron_h")
    return (
        config
        | (_nemotron_experts(file) if wide == "moe" else {})
        | {
            "layers_block_type": [
                "attention" if each else wide if width else "mamba" for each, width in zip(kv_heads, widths, strict=True)
            ],
            "layer_norm_epsilon": config.pop("rms_norm_eps"),
            "ssm_state_size": file["ssm.state_size"],
            "mamba_num_heads": heads,
            "mamba_head_dim": file["ssm.inner_size"] // heads,
            "n_groups": file["ssm.group_count"],
            "conv_kernel": file["ssm.conv_kernel"],
            "use_conv_bias": has(file, ".ssm_conv1d.bias"),
            "mlp_bias": has(file, ".ffn_up.bias"),
        }
    )


def _nemotron_experts(file: GgufFile) -> dict[str, Any]:
    return {
        "n_routed_experts": file["expert_count"],
        "num_experts_per_tok": file["expert_used_count"],
        "moe_intermediate_size": file["expert_feed_forward_length"],
        "moe_shared_expert_intermediate_size": file["expert_shared_feed_forward_length"],
        "n_shared_experts": file["expert_shared_count"],
        "norm_topk_prob": bool(file.get("expert_weights_norm", True)),
        "routed_scaling_factor": file.get("expert_weights_scale", 1.0),
        "n_group": file.get("expert_group_count") or 1,
        "moe_latent_size": file.get("moe_latent_size"),
    }


NEMOTRON_H = (
    *same({"attn_norm": "norm", "attn_v": "mixer.v_proj", "attn_output": "mixer.o_proj"}),
    *same({"attn_q": "mixer.q_proj"}, unpaired("num_attention_heads")),
    *same({"attn_k": "mixer.k_proj"}, unpaired("num_key_value_heads")),
    *_mamba2_mixer("mixer"),
    *same({"ffn_up": "mixer.up_proj", "ffn_down": "mixer.down_proj", "ffn_gate_inp": "mixer.gate"}),
    one("mixer.gate.e_score_correction_bias", "exp_probs_b.bias", flat),
    one("mixer.experts.up_proj", "ffn_up_exps.weight"),
    one("mixer.experts.down_proj", "ffn_down_exps.weight"),
    *same({f"ffn_{part}_shexp": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")}),
    *same({"ffn_latent_down": "mixer.fc1_latent_proj", "ffn_latent_up": "mixer.fc2_latent_proj"}),
)
BACKBONE = same({"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"})


def _jamba(file: GgufFile) -> dict[str, Any]:
    """Return Jamba's config, which names layers with attention and layers with experts by their period."""
    count = layers(file)
    kv_heads = of_layers(file["attention.head_count_kv"], file)
    attends = [i for i in range(count) if kv_heads[i]]
    routed = [i for i in range(count) if f"blk.{i}.ffn_gate_inp.weight" in file.tensors]
    return _decoder(file, "jamba") | {
        "attn_layer_period": _period(file, attends, count),
        "attn_layer_offset": attends[0] if attends else count,
        "expert_layer_period": _period(file, routed, count),
        "expert_layer_offset": routed[0] if routed else count,
        "num_experts": (file.get("expert_count") or 1) if routed else 1,
        "num_experts_per_tok": (file.get("expert_used_count") or 1) if routed else 1,
        "mamba_d_state": file["ssm.state_size"],
        "mamba_d_conv": file["ssm.conv_kernel"],
        "mamba_expand": file["ssm.inner_size"] // file["embedding_length"],
        "mamba_dt_rank": file["ssm.time_step_rank"],
        "mamba_conv_bias": has(file, ".ssm_conv1d.bias"),
        "mamba_proj_bias": has(file, ".ssm_in.bias"),
    }


def _period(file: GgufFile, places: list[int], count: int) -> int:
    """Return the period of layers at ``places``. Raises UnsupportedModelError if they have none."""
    period = places[1] - places[0] if len(places) > 1 else count + 1
    if places and places != list(range(places[0], count, period)):
        raise UnsupportedModelError(f"{file.path} has layers of one kind at {places}, which a Jamba model cannot have.")
    return period


JAMBA = (
    *same(QUERY_AND_KEY | VALUE_AND_OUT | {"attn_norm": "input_layernorm", "ffn_norm": "pre_ff_layernorm"}),
    *same({f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}),
    *_mamba_mixer("mamba"),
    *same({f"ssm_{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")}),
    *same({"ffn_gate_inp": "feed_forward.router"}),
    Weight(name="feed_forward.experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=beside),
    one("feed_forward.experts.down_proj", "ffn_down_exps.weight"),
)

FINAL_NORM = same({"token_embd": "model.embed_tokens", "output_norm": "model.final_layernorm", "output": "lm_head"})
NEMOTRON = Architecture(config=_nemotron_h, layer=NEMOTRON_H, model=BACKBONE, prefix="backbone.layers")

TABLE = {
    "mamba": Architecture(
        config=_mamba, layer=(*same({"attn_norm": "norm"}), *_mamba_mixer("mixer")), model=BACKBONE, prefix="backbone.layers"
    ),
    "mamba2": Architecture(
        config=_mamba2, layer=(*same({"attn_norm": "norm"}), *_mamba2_mixer("mixer")), model=BACKBONE, prefix="backbone.layers"
    ),
    "granitehybrid": Architecture(config=_granite, layer=GRANITE, model=MODEL),
    "falcon-h1": Architecture(config=_falcon_h1, layer=FALCON_H1, model=FINAL_NORM),
    "nemotron_h": NEMOTRON,
    "nemotron_h_moe": NEMOTRON,
    "jamba": Architecture(config=_jamba, layer=JAMBA, model=FINAL_NORM),
}
