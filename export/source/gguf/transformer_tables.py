"""GGUF's architectures with attention alone: their config.json, and the names of their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.source.gguf import sizes
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.source.gguf.sizes import FULL, SLIDING, Architecture
from hybridge.export.source.gguf.weights import Config, Weight, beside, minus_one, one, same, unpaired

QUERY_AND_KEY = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj"}
VALUE_AND_OUT = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MLP = {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
PAIRED = (
    *same({"attn_q": "self_attn.q_proj"}, unpaired("num_attention_heads")),
    *same({"attn_k": "self_attn.k_proj"}, unpaired("num_key_value_heads")),
)
"""Queries and keys whose rows llama.cpp puts into pairs that are rotated together."""

MODEL = same({"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"})
EXPERTS = (
    *same({"ffn_gate_inp": "mlp.gate"}),
    Weight(name="mlp.experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=beside),
    one("mlp.experts.down_proj", "ffn_down_exps.weight", lambda config, tensor: tensor),
)


def _decoder(file: GgufFile, model_type: str) -> dict[str, Any]:
    return sizes.common(file, model_type) | sizes.attention(file) | sizes.mlp(file) | sizes.rope(file)


def _llama(file: GgufFile) -> dict[str, Any]:
    if file.get("expert_count"):
        raise UnsupportedModelError(f"{file.path} is of a llama with experts (Mixtral), which hybridge does not read as GGUF.")
    return _decoder(file, "llama") | {"attention_bias": sizes.has(file, ".attn_q.bias")}


def _qwen3_moe(file: GgufFile) -> dict[str, Any]:
    more = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return _decoder(file, "qwen3_moe") | sizes.experts(file) | more


def _gemma3(file: GgufFile) -> dict[str, Any]:
    """Every sixth layer attends to everything, with angles of its own. llama.cpp's loader has these numbers too."""
    config = _decoder(file, "gemma3_text")
    angles = {FULL: config["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": 10000.0}}
    largest = file["block_count"] == 62  # the 27B model, which scales by another size
    return config | {
        "rope_parameters": angles,
        "sliding_window": file["attention.sliding_window"],
        "layer_types": [SLIDING if (i + 1) % 6 else FULL for i in range(sizes.layers(file))],
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
        "layer_types": [FULL if i % 2 else SLIDING for i in range(sizes.layers(file))],
    }


def _between(config: Config, gate: Tensor, up: Tensor) -> Tensor:
    """Rows [E, I, H] of gates and of what they gate in turns, for products from the left: [E, H, 2 I]; biases [E, I] alike."""
    if gate.dim() == 2:
        return torch.stack([gate, up], dim=2).flatten(1)
    return torch.stack([gate, up], dim=2).flatten(1, 2).transpose(1, 2)


GPT_OSS_EXPERTS = (
    Weight(name="mlp.experts.gate_up_proj", of=("ffn_gate_exps.weight", "ffn_up_exps.weight"), make=_between),
    Weight(name="mlp.experts.gate_up_proj_bias", of=("ffn_gate_exps.bias", "ffn_up_exps.bias"), make=_between),
    one("mlp.experts.down_proj", "ffn_down_exps.weight", lambda config, tensor: tensor.transpose(1, 2)),
    one("mlp.experts.down_proj_bias", "ffn_down_exps.bias", lambda config, tensor: tensor),
)

PLAIN = same(QUERY_AND_KEY | VALUE_AND_OUT | HEAD_NORMS | NORMS | MLP)
GEMMA_NORMS = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

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
            one("self_attn.sinks", "attn_sinks.weight", lambda config, tensor: tensor),
            *GPT_OSS_EXPERTS,
        ),
        model=MODEL,
    ),
}
