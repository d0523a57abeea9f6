"""Map GGUF's architectures with latent attention to config.json and names of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.gguf.architecture import (
    FULL,
    LINEAR,
    Architecture,
    Config,
    DraftLayers,
    Weight,
    common,
    conv,
    decay,
    decay_of_channels,
    experts,
    flat,
    joined,
    long_rope,
    mlp,
    most,
    of_layers,
    one,
    rope,
    same,
)
from hybridge.export.source.gguf.attention_tables import EXPERTS, MLP, MODEL, NORMS
from hybridge.export.source.gguf.file import GgufFile

if TYPE_CHECKING:  # as in architecture.py
    from torch import Tensor


def _latent(file: GgufFile) -> dict[str, Any]:
    """Return the heads of latent attention, which counts as one head of keys and values in the file."""
    heads, turned = most(file["attention.head_count"]), file["rope.dimension_count"]
    return {
        "rms_norm_eps": file["attention.layer_norm_rms_epsilon"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": file["attention.kv_lora_rank"],
        "q_lora_rank": file.get("attention.q_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": (file.get("attention.key_length_mla") or file["attention.key_length"]) - turned,
        "v_head_dim": _values(file) or file["embedding_length"] // heads,
    }


def _values(file: GgufFile) -> Any:
    """Return the size of a head's values, if the file has it."""
    return file.get("attention.value_length_mla") or file.get("attention.value_length")


def _expanded(config: Config, keys: Tensor, values: Tensor) -> Tensor:
    """Join the expansions of latents to keys [H, rank, D] and to values [H, D, rank]: [H (D + D), rank]."""
    return joined([keys.transpose(1, 2), values], dim=1).flatten(0, 1)


LATENT = (
    *same({"attn_q": "self_attn.q_proj", "attn_output": "self_attn.o_proj"} | NORMS | MLP),
    *same({"attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm"}),
    *same({"attn_q_a": "self_attn.q_a_proj", "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj"}),
    *same({"attn_kv_b": "self_attn.kv_b_proj"}),
    Weight(name="self_attn.kv_b_proj.weight", of=("attn_k_b.weight", "attn_v_b.weight"), make=_expanded),
)
SHARED_EXPERTS = (
    *EXPERTS,
    one("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", flat),
    *same({f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}),
)

# Kimi delta attention


def _kimi(file: GgufFile) -> dict[str, Any]:
    """Return Kimi Linear's config: layers without key/value heads are linear; latent attention counts as one such head."""
    config = common(file, "kimi_linear") | mlp(file) | experts(file) | _latent(file)
    full = of_layers(file["attention.head_count_kv"], file)
    dense = file.get("leading_dense_block_count") or 0
    return config | {
        "layer_types": [FULL if each else LINEAR for each in full],
        "mlp_layer_types": ["dense" if i < dense else "sparse" for i in range(len(full))],
        "linear_head_dim": file["kda.head_dim"],
        "linear_num_heads": _numbers(file, ".ssm_a"),
        "linear_conv_kernel_dim": file["ssm.conv_kernel"],
        "num_shared_experts": file["expert_shared_count"],
        "routed_scaling_factor": file["expert_weights_scale"],
    }


def _numbers(file: GgufFile, end: str) -> int:
    return next((max(tensor.shape) for name, tensor in file.tensors.items() if name.endswith(end)), 0)


CONVOLUTIONS = ("ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight")


def _joined_convolutions(config: Config, *parts: Tensor) -> Tensor:
    """Join the convolutions of queries, keys and values, as transformers has them in memory."""
    return conv(config, joined([each.flatten(0, -2) for each in parts], dim=0))


KIMI = (
    *LATENT,
    *same({"attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}),
    *same({f"ssm_{part}": f"self_attn.{part}_proj" for part in ("f_a", "f_b", "g_a", "g_b")}),
    *same({"ssm_beta": "self_attn.b_proj", "ssm_norm": "self_attn.o_norm"}),
    Weight(name="self_attn.conv1d.weight", of=CONVOLUTIONS, make=_joined_convolutions),
    one("self_attn.A_log", "ssm_a", lambda config, tensor: decay(config, tensor).view(1, 1, -1, 1)),
    one("self_attn.dt_bias", "ssm_dt.bias", flat),
    *SHARED_EXPERTS,
)

# Ling 3, of Kimi delta attention too


def _bailing(file: GgufFile) -> dict[str, Any]:
    """Return Ling 3's config. Raises UnsupportedModelError for experts whose activations are clamped."""
    if any(each for name in ("exp", "shexp") for each in file.get(f"swiglu_clamp_{name}") or ()):
        raise UnsupportedModelError(f"{file.path} is of a model that clamps its experts' activations, which hybridge does not.")
    config = {name: each for name, each in _kimi(file).items() if name != "q_lora_rank"}
    return config | {
        "model_type": "bailing_hybrid",
        "head_dim": file["kda.head_dim"],
        "short_conv_kernel_size": file["ssm.conv_kernel"],
        "kda_lower_bound": file["kda.gate_lower_bound"],
        "rope_parameters": {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 6e6)},
        "n_group": file.get("expert_group_count") or 1,
        "topk_group": file.get("expert_group_used_count") or 1,
        "norm_topk_prob": bool(file.get("expert_weights_norm", True)),
        "num_mtp_layers": file.get("nextn_predict_layers") or 0,
    }


BAILING = (
    *same({f"attn_{part}": f"attention.{part}_proj" for part in "qkv"}),
    *same({"attn_output": "attention.dense", "attn_gate": "attention.g_proj"} | NORMS | MLP),
    *same({"ssm_f_a": "attention.f_proj", "ssm_g_a": "attention.g_proj", "ssm_beta": "attention.b_proj"}),
    *same({"ssm_norm": "attention.o_norm"}),
    Weight(name="attention.conv1d.weight", of=CONVOLUTIONS, make=_joined_convolutions),
    *same({"attn_kv_a_mqa": "attention.kv_a_proj_with_mqa", "attn_kv_a_norm": "attention.kv_a_layernorm"}),
    Weight(name="attention.kv_b_proj.weight", of=("attn_k_b.weight", "attn_v_b.weight"), make=_expanded),
    one("attention.A_log", "ssm_a", lambda config, tensor: decay_of_channels(config, -tensor).flatten()),
    one("attention.dt_bias", "ssm_dt.bias", flat),
    *EXPERTS,
    one("mlp.gate.expert_bias", "exp_probs_b.bias", flat),
    *same({f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}),
)
BAILING_MTP = DraftLayers(
    around=(
        *same({f"nextn.{part}": part for part in ("eh_proj", "enorm", "hnorm")}),
        *same({"layer_output_norm": "final_layernorm"}),
    ),
    place="model.layers.{index}.",
    layer="model.layers.{index}.",
)

# DeepSeek-V2, GLM-4 MoE Lite, Youtu and MiniCPM3: latent attention in every layer

SIGMOID = 2
"""llama.cpp's number of the function that turns a router's logits into scores."""
GLM_LITE = ((47, 154880), (48, 154880))
"""Layers and tokens of files that are older than this number: GLM-4.7-Flash's."""


def _deepseek2(file: GgufFile) -> dict[str, Any]:
    """Return the config of DeepSeek-V2, of GLM-4 MoE Lite, whose scores are sigmoids, or of Youtu, which has no experts."""
    config = common(file, "youtu") | mlp(file) | _latent(file) | _scaled_rope(file)
    if not file.get("expert_count"):
        return config
    sizes = experts(file)
    config |= {
        "n_routed_experts": sizes["num_experts"],
        "num_experts_per_tok": sizes["num_experts_per_tok"],
        "moe_intermediate_size": sizes["moe_intermediate_size"],
        "n_shared_experts": file["expert_shared_count"],
        "routed_scaling_factor": file.get("expert_weights_scale") or 1.0,
        "n_group": file.get("expert_group_count") or 1,
        "topk_group": file.get("expert_group_used_count") or 1,
    }
    dense, count = file.get("leading_dense_block_count") or 0, config["num_hidden_layers"]
    if file.get("expert_gating_func") == SIGMOID or (count, config["vocab_size"]) in GLM_LITE:
        kinds = ["dense" if i < dense else "sparse" for i in range(count)]
        norms = bool(file.get("expert_weights_norm", False))
        return config | {"model_type": "glm4_moe_lite", "mlp_layer_types": kinds, "norm_topk_prob": norms}
    method = "group_limited_greedy" if config["n_group"] > 1 else "greedy"
    return config | {"model_type": "deepseek_v2", "first_k_dense_replace": dense, "topk_method": method}


def _scaled_rope(file: GgufFile) -> dict[str, Any]:
    """Return RoPE's parameters; llama.cpp has one number for both of YaRN's, and a tenth of it in the file."""
    angles = rope(file)
    if scale := file.get("rope.scaling.yarn_log_multiplier"):
        angles["rope_parameters"] |= {"mscale": scale / 0.1, "mscale_all_dim": scale / 0.1}
    return angles


def _minicpm3(file: GgufFile) -> dict[str, Any]:
    """Return MiniCPM3's config, whose multipliers are constants in llama.cpp."""
    config = common(file, "minicpm3") | mlp(file) | _latent(file)
    return config | {
        "rope_parameters": long_rope(file, {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 10000.0)}),
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }


TABLE = {
    "bailingmoe3": Architecture(config=_bailing, layer=BAILING, model=MODEL, drafter=BAILING_MTP),
    "kimi-linear": Architecture(config=_kimi, layer=KIMI, model=MODEL),
    "deepseek2": Architecture(config=_deepseek2, layer=(*LATENT, *SHARED_EXPERTS), model=MODEL),
    "minicpm3": Architecture(config=_minicpm3, layer=LATENT, model=MODEL),
}
