"""What llama.cpp's converter (``conversion/*.py``) does to weights, by names of transformers' modules; see ``gguf_files``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

Tensors = Iterator[tuple[str, Tensor]]


def converted(architecture: str, model: PreTrainedModel) -> Tensors:
    c = model.config
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        for old, new in RENAMED.get(architecture, {}).items():
            name = re.sub(old, new, name)
        yield from CONVERTED.get(architecture, _plain)(name, tensor.detach(), c)


RENAMED: dict[str, dict[str, str]] = {
    "nemotron_h": {r"^model\.": "backbone."},
    "nemotron_h_moe": {
        r"^model\.": "backbone.",
        r"^backbone(.*)mixer\.experts\.(\w+)$": r"model\1mlp.experts.\2.weight",
        r"e_score_correction_bias$": "e_score_correction.bias",
    },
    "kimi-linear": {r"forget_gate\.": ""},
    "lfm2moe": {r"expert_bias$": "expert_bias.bias"},
}


def _plain(name: str, tensor: Tensor, c: Any) -> Tensors:
    yield from _split_experts(name, tensor)


def _split_experts(name: str, tensor: Tensor) -> Tensors:
    """Gate above up, and stacked experts, each under names of their own."""
    if name.endswith("experts.gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        stem = name.removesuffix("gate_up_proj").replace("block_sparse_moe.", "mlp.").replace("feed_forward.", "mlp.")
        yield from ((f"{stem}gate_proj.weight", gate), (f"{stem}up_proj.weight", up))
    elif name.endswith("experts.down_proj"):
        yield f"{name.replace('feed_forward.', 'mlp.').replace('block_sparse_moe.', 'mlp.')}.weight", tensor
    else:
        yield name, tensor


def _pairs(tensor: Tensor, heads: int) -> Tensor:
    """llama.cpp's ``permute``."""
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _llama(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.endswith("q_proj.weight"):
        tensor = _pairs(tensor, c.num_attention_heads)
    if name.endswith("k_proj.weight"):
        tensor = _pairs(tensor, c.num_key_value_heads)
    yield name, tensor


def _gemma(name: str, tensor: Tensor, c: Any) -> Tensors:
    yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def _qwen_next(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.endswith(".A_log"):
        tensor = -torch.exp(tensor)
    elif name.endswith(".dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    elif "conv1d" in name:
        tensor = tensor.squeeze()
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor + 1
    if "in_proj_qkvz" not in name:
        yield from _split_experts(name, tensor.squeeze(0) if "shared_expert_gate" in name else tensor)
        return
    value = c.linear_num_value_heads // c.linear_num_key_heads * c.linear_value_head_dim
    parts = tensor.view(c.linear_num_key_heads, -1, c.hidden_size).split(
        [c.linear_key_head_dim, c.linear_key_head_dim, value, value], dim=1
    )
    q, k, v, z = (part.reshape(-1, c.hidden_size) for part in parts)
    yield name.replace("in_proj_qkvz", "in_proj_qkv"), torch.cat([q, k, v])
    yield name.replace("in_proj_qkvz", "in_proj_z"), z


def _tiled(tensor: Tensor, dim: int, c: Any, head: int) -> Tensor:
    """llama.cpp's ``_reorder_v_heads``."""
    keys, each = c.linear_num_key_heads, c.linear_num_value_heads // c.linear_num_key_heads
    return tensor.unflatten(dim, (keys, each, head)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def _qwen35(name: str, tensor: Tensor, c: Any) -> Tensors:
    keys, head = 2 * c.linear_num_key_heads * c.linear_key_head_dim, c.linear_value_head_dim
    if "in_proj_qkv." in name or "conv1d" in name:
        tensor = torch.cat([tensor[:keys], _tiled(tensor[keys:], 0, c, head)])
    elif "in_proj_z." in name:
        tensor = _tiled(tensor, 0, c, head)
    elif any(part in name for part in ("in_proj_a.", "in_proj_b.", "A_log", "dt_bias")):
        tensor = _tiled(tensor, 0, c, 1)
    elif "linear_attn.out_proj" in name:
        tensor = _tiled(tensor, 1, c, head)
    yield from _qwen_next(name, tensor, c)


def _kimi_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.endswith("self_attn.conv1d.weight"):
        for part, each in zip("qkv", tensor.chunk(3), strict=True):
            yield name.replace("conv1d", f"{part}_conv1d"), each.reshape(1, -1, 1, each.shape[-1])
    elif name.endswith("A_log"):
        yield name, -torch.exp(tensor)
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), tensor
    elif name.endswith("e_score_correction_bias"):
        yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor
    elif name.endswith("kv_b_proj.weight"):
        k, v = tensor.view(c.num_attention_heads, -1, tensor.shape[1]).split([c.qk_nope_head_dim, c.v_head_dim], dim=1)
        yield from ((name.replace("kv_b", "k_b"), k.transpose(1, 2)), (name.replace("kv_b", "v_b"), v))
    else:
        yield from _split_experts(name, tensor)


def _lfm2_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    yield from _split_experts(name, tensor.squeeze(1) if "conv.conv" in name else tensor)


def _mamba(name: str, tensor: Tensor, c: Any, groups: int) -> Tensors:
    if name.endswith("A_log"):
        tensor = -torch.exp(tensor)
    if name.endswith(("A_log", ".D")):
        tensor = tensor.reshape(-1, 1)
    elif name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    elif "conv1d" in name:
        tensor = tensor.squeeze()
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        tensor = tensor.reshape(groups, -1)
    yield name, tensor


def _granite_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if "shared_mlp" in name:
        end = "shared_mlp" if c.num_local_experts else ""
        stem = name.partition("shared_mlp")[0]
        place = f"{stem}mlp.shared_expert" if end else f"{stem}mlp"
        if "output_linear" in name:
            yield f"{place}.down_proj.weight", tensor
            return
        gate, up = tensor.chunk(2)
        yield from ((f"{place}.gate_proj.weight", gate), (f"{place}.up_proj.weight", up))
        return
    for renamed, each in _llama(name.replace("router.weight", "router.layer.weight"), tensor, c):
        for final, part in _split_experts(renamed, each):
            yield from _mamba(final, part, c, c.mamba_n_groups)


def _falcon_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    """The multipliers go into the weights."""
    sizes = [c.mamba_d_ssm, c.mamba_d_ssm, *[c.mamba_n_groups * c.mamba_d_state] * 2, c.mamba_n_heads]
    for part, factor in {
        "down_proj": c.mlp_multipliers[1],
        "gate_proj": c.mlp_multipliers[0],
        "k_proj": c.key_multiplier * c.attention_in_multiplier,
        "q_proj": c.attention_in_multiplier,
        "v_proj": c.attention_in_multiplier,
        "o_proj": c.attention_out_multiplier,
        "out_proj": c.ssm_out_multiplier,
        "in_proj": c.ssm_in_multiplier,
        "lm_head": c.lm_head_multiplier,
        "embed_tokens": c.embedding_multiplier,
    }.items():
        if f".{part}." in f".{name}":
            tensor = tensor * factor
    if "in_proj" in name:
        tensor = torch.cat([rows * factor for rows, factor in zip(tensor.split(sizes), c.ssm_multipliers, strict=True)])
    yield from _mamba(name, tensor, c, c.mamba_n_groups)


def _nemotron_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    for renamed, each in _llama(name, tensor, c):
        yield from _mamba(renamed, each, c, c.n_groups)


def _jamba_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.endswith("A_log"):
        tensor = -torch.exp(tensor)
    elif "conv1d" in name:
        tensor = tensor.squeeze()
    yield from _split_experts(name, tensor)


def _gpt_oss_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.endswith("sinks"):
        yield f"{name}.weight", tensor
    elif "gate_up_proj" in name:
        rows = tensor if name.endswith("_bias") else tensor.transpose(1, 2)
        end = "bias" if name.endswith("_bias") else "weight"
        stem = name.partition("gate_up_proj")[0]
        yield from ((f"{stem}gate_proj.{end}", rows[:, ::2]), (f"{stem}up_proj.{end}", rows[:, 1::2]))
    elif name.endswith("down_proj"):
        yield f"{name}.weight", tensor.transpose(1, 2)
    else:
        yield name.replace("down_proj_bias", "down_proj.bias"), tensor


CONVERTED: dict[str, Callable[[str, Tensor, Any], Tensors]] = {
    "llama": _llama,
    "gemma3": _gemma,
    "gpt-oss": _gpt_oss_weights,
    "qwen35": _qwen35,
    "qwen35moe": _qwen35,
    "qwen3next": _qwen_next,
    "kimi-linear": _kimi_weights,
    "lfm2": _lfm2_weights,
    "lfm2moe": _lfm2_weights,
    "mamba2": lambda name, tensor, c: _mamba(name, tensor, c, c.n_groups),
    "granitehybrid": _granite_weights,
    "falcon-h1": _falcon_weights,
    "nemotron_h": _nemotron_weights,
    "nemotron_h_moe": _nemotron_weights,
    "jamba": _jamba_weights,
}
