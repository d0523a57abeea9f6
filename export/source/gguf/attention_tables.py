"""Map GGUF's architectures with attention, linear attention or short convolutions to config.json and names of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.gguf.architecture import (
    FULL,
    SLIDING,
    Architecture,
    Config,
    DraftLayers,
    Weight,
    as_column,
    attention,
    beside,
    by_period,
    common,
    conv,
    decay,
    experts,
    flat,
    has,
    joined,
    layers,
    minus_one,
    mlp,
    of_layers,
    one,
    rope,
    same,
    stacked,
    unpaired,
)
from hybridge.export.source.gguf.file import GgufFile

if TYPE_CHECKING:  # as in architecture.py
    from torch import Tensor

QUERY_AND_KEY = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
VALUE_AND_OUT = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MLP = {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
PAIRED = (
    *same({"attn_q": "self_attn.q_proj"}, unpaired("num_attention_heads")),
    *same({"attn_k": "self_attn.k_proj"}, unpaired("num_key_value_heads")),
)
"""Queries and keys, whose rows llama.cpp orders in pairs that are rotated together."""

MODEL = same({"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"})
EXPERTS = (
    *same({"ffn_gate_inp": "mlp.gate"}),
    one("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    Weight(name="mlp.experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=beside),
    one("mlp.experts.down_proj", "ffn_down_exps.weight"),
)


def _decoder(file: GgufFile, model_type: str) -> dict[str, Any]:
    return common(file, model_type) | attention(file) | mlp(file) | rope(file)


def _llama(file: GgufFile) -> dict[str, Any]:
    if file.get("expert_count"):
        raise UnsupportedModelError(f"{file.path} is of a llama with experts (Mixtral), which hybridge does not read as GGUF.")
    return _decoder(file, "llama") | {"attention_bias": has(file, ".attn_q.bias")}


def _qwen3_moe(file: GgufFile) -> dict[str, Any]:
    more = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return _decoder(file, "qwen3_moe") | experts(file) | more


def _gemma3(file: GgufFile) -> dict[str, Any]:
    """Return Gemma 3's config: every sixth layer has full attention and its own RoPE, by numbers as in llama.cpp's loader."""
    config = _decoder(file, "gemma3_text")
    angles = {FULL: config["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}
    largest = file["block_count"] == 62  # the 27B model, which scales by another size
    return config | {
        "rope_parameters": angles,
        "sliding_window": file["attention.sliding_window"],
        "layer_types": [SLIDING if (i + 1) % 6 else FULL for i in range(layers(file))],
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"],
        "final_logit_softcapping": file.get("final_logit_softcapping"),
    }


def _gpt_oss(file: GgufFile) -> dict[str, Any]:
    config = _decoder(file, "gpt_oss")
    config["rope_parameters"] |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    return config | {
        "num_local_experts": file["expert_count"],
        "num_experts_per_tok": file["expert_used_count"],
        "intermediate_size": file["expert_feed_forward_length"],
        "sliding_window": file["attention.sliding_window"],
        "layer_types": [FULL if i % 2 else SLIDING for i in range(layers(file))],
    }


def _between(config: Config, gate: Tensor, up: Tensor) -> Tensor:
    """Interleave rows [E, I, H] of gate and up to [E, H, 2 I], for products from the left; biases [E, I] likewise."""
    if gate.dim() == 2:
        return stacked([gate, up], dim=2).flatten(1)
    return stacked([gate, up], dim=2).flatten(1, 2).transpose(1, 2)


GPT_OSS_EXPERTS = (
    Weight(name="mlp.experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=_between),
    Weight(name="mlp.experts.gate_up_proj_bias", of=("ffn_gate_exps.bias", "ffn_up_exps.bias"), make=_between),
    one("mlp.experts.down_proj", "ffn_down_exps.weight", lambda config, tensor: tensor.transpose(1, 2)),
    one("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
)

PLAIN = same(QUERY_AND_KEY | VALUE_AND_OUT | HEAD_NORMS | NORMS | MLP)
GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


# Gated delta nets


def _gated_delta(file: GgufFile, model_type: str) -> dict[str, Any]:
    value_heads = file["ssm.time_step_rank"]
    angles = rope(file, partial=True)
    if sections := file.get("rope.dimension_sections"):
        angles["rope_parameters"] |= {"mrope_section": sections[:3], "mrope_interleaved": True}
    return (
        common(file, model_type)
        | attention(file)
        | mlp(file)
        | angles
        | {
            "layer_types": by_period(file, file.get("full_attention_interval") or 4),
            "linear_conv_kernel_dim": file["ssm.conv_kernel"],
            "linear_key_head_dim": file["ssm.state_size"],
            "linear_num_key_heads": file["ssm.group_count"],
            "linear_num_value_heads": value_heads,
            "linear_value_head_dim": file["ssm.inner_size"] // value_heads,
        }
    )


def _with_experts(file: GgufFile, model_type: str) -> dict[str, Any]:
    width = file.get("expert_shared_feed_forward_length") or _rows(file, "ffn_gate_shexp.weight")
    more: dict[str, Any] = {
        "shared_expert_intermediate_size": width,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return _gated_delta(file, model_type) | experts(file) | more


def _rows(file: GgufFile, end: str) -> int:
    return next((tensor.shape[0] for name, tensor in file.tensors.items() if name.endswith(f".{end}")), 0)


def _grouped(size: str | None, dim: int = 0, *, after_keys: bool = False) -> Callable[[Config, Tensor], Tensor]:
    """Return a function that puts the value heads of a key head beside each other, which llama.cpp stores far apart.

    size: the config's name for a head's size along ``dim``, None for 1; after_keys: the values' rows are after those
    of queries and keys. Source: llama.cpp's ``_LinearAttentionVReorderBase``.
    """

    def make(config: Config, tensor: Tensor) -> Tensor:
        keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        skipped = 2 * keys * config["linear_key_head_dim"] if after_keys else 0
        before, heads = tensor.tensor_split([skipped], dim=dim)
        apart = heads.unflatten(dim, (values // keys, keys, config[size] if size else 1))
        return joined([before, apart.transpose(dim, dim + 1).flatten(dim, dim + 2)], dim=dim)

    return make


VALUE = "linear_value_head_dim"
QWEN_NORMS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"}
GATED_ATTENTION = (
    *same(QUERY_AND_KEY | VALUE_AND_OUT | MLP),
    *same(QWEN_NORMS | HEAD_NORMS, minus_one),
    *same({"ssm_norm": "linear_attn.norm"}),
)
QWEN_MODEL = (*same({"token_embd": "model.embed_tokens", "output": "lm_head"}), *same({"output_norm": "model.norm"}, minus_one))
QWEN35 = (
    *GATED_ATTENTION,
    *same({"attn_qkv": "linear_attn.in_proj_qkv"}, _grouped(VALUE, after_keys=True)),
    *same({"attn_gate": "linear_attn.in_proj_z"}, _grouped(VALUE)),
    *same({"ssm_alpha": "linear_attn.in_proj_a", "ssm_beta": "linear_attn.in_proj_b"}, _grouped(None)),
    *same({"ssm_out": "linear_attn.out_proj"}, _grouped(VALUE, dim=1)),
    one("linear_attn.A_log", "ssm_a", lambda config, tensor: _grouped(None)(config, decay(config, tensor))),
    one("linear_attn.dt_bias", "ssm_dt.bias", _grouped(None)),
    one(
        "linear_attn.conv1d.weight",
        "ssm_conv1d.weight",
        lambda config, tensor: conv(config, _grouped(VALUE, after_keys=True)(config, tensor)),
    ),
)
SHARED_EXPERT = (
    *EXPERTS,
    *same({f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}),
    one("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", as_column),
)


def _by_key_head(config: Config, qkv: Tensor, gate: Tensor) -> Tensor:
    """Order rows of queries, keys, values and gates by key head."""
    keys, rows = config["linear_num_key_heads"], config["linear_num_key_heads"] * config["linear_key_head_dim"]
    query, key, value = qkv.tensor_split([rows, 2 * rows])
    return joined([each.unflatten(0, (keys, -1)) for each in (query, key, value, gate)], dim=1).flatten(0, 1)


QWEN3_NEXT = (
    *GATED_ATTENTION,
    *SHARED_EXPERT,
    Weight(name="linear_attn.in_proj_qkvz.weight", of=("attn_qkv.weight", "attn_gate.weight"), make=_by_key_head),
    *same({"ssm_ba": "linear_attn.in_proj_ba", "ssm_in": "linear_attn.in_proj_qkvz", "ssm_out": "linear_attn.out_proj"}),
    one("linear_attn.A_log", "ssm_a", decay),
    one("linear_attn.dt_bias", "ssm_dt.bias", flat),
    one("linear_attn.conv1d.weight", "ssm_conv1d.weight", conv),
)
QWEN_MTP = DraftLayers(
    around=(
        *same({"nextn.eh_proj": "fc"}),
        *same({"nextn.enorm": "pre_fc_norm_embedding", "nextn.hnorm": "pre_fc_norm_hidden"}, minus_one),
        *same({"nextn.shared_head_norm": "norm"}, minus_one),
    ),
    place="mtp.",
    layer="mtp.layers.{own}.",
)

# Short convolutions


def _lfm2(file: GgufFile) -> dict[str, Any]:
    """Return LFM2's config: layers without key/value heads are convolutions."""
    kv_heads = of_layers(file["attention.head_count_kv"], file)
    config = common(file, "lfm2") | attention(file) | mlp(file) | rope(file)
    return config | {
        "norm_eps": config.pop("rms_norm_eps"),
        "block_auto_adjust_ff_dim": False,
        "layer_types": [FULL if each else "conv" for each in kv_heads],
        "conv_L_cache": file["shortconv.l_cache"],
        "conv_bias": has(file, ".shortconv.in_proj.bias"),
    }


def _lfm2_moe(file: GgufFile) -> dict[str, Any]:
    return (
        _lfm2(file)
        | experts(file)
        | {
            "model_type": "lfm2_moe",
            "num_dense_layers": file["leading_dense_block_count"],
            "use_expert_bias": has(file, ".exp_probs_b.bias"),
            "norm_topk_prob": True,
        }
    )


LFM2 = (
    *same(QUERY_AND_KEY | {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.out_proj"}),
    *same({"attn_q_norm": "self_attn.q_layernorm", "attn_k_norm": "self_attn.k_layernorm"}),
    *same({"attn_norm": "operator_norm", "ffn_norm": "ffn_norm"}),
    *same({"ffn_gate": "feed_forward.w1", "ffn_down": "feed_forward.w2", "ffn_up": "feed_forward.w3"}),
    *same({"shortconv.in_proj": "conv.in_proj", "shortconv.out_proj": "conv.out_proj"}),
    one("conv.conv.weight", "shortconv.conv.weight", conv),
    one("conv.conv.bias", "shortconv.conv.bias", flat),
)
LFM2_EXPERTS = (
    *same({"ffn_gate_inp": "feed_forward.gate"}),
    one("feed_forward.expert_bias", "exp_probs_b.bias", flat),
    Weight(name="feed_forward.experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=beside),
    one("feed_forward.experts.down_proj", "ffn_down_exps.weight"),
)
LFM2_MODEL = same({"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"})

TABLE = {
    "llama": Architecture(config=_llama, layer=(*PAIRED, *same(VALUE_AND_OUT | NORMS | MLP)), model=MODEL),
    "qwen2": Architecture(config=lambda file: _decoder(file, "qwen2"), layer=PLAIN, model=MODEL),
    "qwen3": Architecture(config=lambda file: _decoder(file, "qwen3"), layer=PLAIN, model=MODEL),
    "qwen3moe": Architecture(
        config=_qwen3_moe, layer=(*same(QUERY_AND_KEY | VALUE_AND_OUT | HEAD_NORMS | NORMS), *EXPERTS), model=MODEL
    ),
    "gemma3": Architecture(
        config=_gemma3,
        layer=(*same(QUERY_AND_KEY | VALUE_AND_OUT | MLP), *same(HEAD_NORMS | GEMMA_NORMS, minus_one)),
        model=(
            *same({"token_embd": "model.embed_tokens", "output": "lm_head"}),
            *same({"output_norm": "model.norm"}, minus_one),
        ),
    ),
    "gpt-oss": Architecture(
        config=_gpt_oss,
        layer=(
            *same(QUERY_AND_KEY | VALUE_AND_OUT | {"attn_norm": "input_layernorm", "ffn_gate_inp": "mlp.router"}),
            *same({"post_attention_norm": "post_attention_layernorm"}),
            one("self_attn.sinks", "attn_sinks.weight"),
            *GPT_OSS_EXPERTS,
        ),
        model=MODEL,
    ),
    "qwen35": Architecture(
        config=lambda file: _gated_delta(file, "qwen3_5_text"), layer=QWEN35, model=QWEN_MODEL, drafter=QWEN_MTP
    ),
    "qwen35moe": Architecture(
        config=lambda file: _with_experts(file, "qwen3_5_moe_text"),
        layer=(*QWEN35, *SHARED_EXPERT),
        model=QWEN_MODEL,
        drafter=QWEN_MTP,
    ),
    "qwen3next": Architecture(
        config=lambda file: _with_experts(file, "qwen3_next"), layer=QWEN3_NEXT, model=QWEN_MODEL, drafter=QWEN_MTP
    ),
    "lfm2": Architecture(config=_lfm2, layer=LFM2, model=LFM2_MODEL),
    "lfm2moe": Architecture(config=_lfm2_moe, layer=(*LFM2, *LFM2_EXPERTS), model=LFM2_MODEL),
}
