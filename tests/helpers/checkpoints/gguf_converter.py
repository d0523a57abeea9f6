"""llama.cpp's converter (``conversion/*.py``): what it does to weights, and what it writes of a model; see ``gguf_files``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

Tensors = Iterator[tuple[str, Tensor]]


def converted(architecture: str, model: PreTrainedModel, mtp: Mapping[str, Tensor]) -> Tensors:
    """The tensors by llama.cpp's names for transformers' modules, or by the file's own. mtp: as a checkpoint names them."""
    c = model.config
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    yield from EXTRA.get(architecture, lambda c: ())(c)
    yield from stacked(architecture, _converted(architecture, model, mtp, tied))


def _converted(architecture: str, model: PreTrainedModel, mtp: Mapping[str, Tensor], tied: bool) -> Tensors:
    c = model.config
    for name, tensor in (*model.state_dict().items(), *((_next(name, c), each) for name, each in mtp.items())):
        if name == "lm_head.weight" and tied:
            continue
        for old, new in RENAMED.get(architecture, {}).items():
            name = re.sub(old, new, name)
        yield from CONVERTED.get(architecture, _plain)(name, tensor.detach(), c)


NEXTN = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}


def _next(name: str, c: Any) -> str:
    """``_QwenMtpMixin``: layers of multi-token prediction are numbered after the others."""
    if ".nextn." in name or not name.startswith("mtp."):
        return name
    if layer := re.fullmatch(r"mtp\.layers\.(\d+)\.(.+)", name):
        return f"model.layers.{c.num_hidden_layers + int(layer[1])}.{layer[2]}"
    return f"blk.{c.num_hidden_layers}.nextn.{NEXTN[name.split('.')[1]]}.weight"


RENAMED: dict[str, dict[str, str]] = {
    "nemotron_h": {r"^model\.": "backbone."},
    "nemotron_h_moe": {
        r"^model\.": "backbone.",
        r"^backbone(.*)mixer\.experts\.(\w+)$": r"model\1mlp.experts.\2.weight",
        r"e_score_correction_bias$": "e_score_correction.bias",
    },
    "kimi-linear": {r"forget_gate\.": ""},
    "lfm2moe": {r"expert_bias$": "expert_bias.bias"},
    "gemma4": {r"layer_scalar$": "layer_scalar.weight"},
    "bailingmoe3": {
        r"\.attention\.": ".self_attn.",
        r"forget_gate\.": "",
        r"self_attn\.dense\.": "self_attn.o_proj.",
        r"expert_bias$": "e_score_correction_bias",
        r"model\.layers\.(\d+)\.(eh_proj|enorm|hnorm)\.": r"blk.\1.nextn.\2.",
        r"model\.layers\.(\d+)\.final_layernorm\.": r"blk.\1.layer_output_norm.",
    },
    "deepseek2": {r"e_score_correction_bias$": "e_score_correction.bias"},
    "rwkv7": {
        r"\.attn\.": ".attention.",
        r"\.ffn\.": ".feed_forward.",
        r"ffn_norm": "ln2",
        r"attn_norm": "attention_norm",
        r"g_norm": "ln_x",
        r"_lora\.lora\.0\.weight": "1.weight",
        r"_lora\.lora\.2\.weight": "2.weight",
        r"_lora\.lora\.2\.bias": "0.weight",
        r"(k_k|k_a|r_k|feed_forward\.x_k)$": r"\1.weight",
    },
}


def _phi3_factors(c: Any) -> Tensors:
    for part in ("long", "short") if c.rope_parameters["rope_type"] == "longrope" else ():
        yield f"rope_factors_{part}.weight", torch.tensor(c.rope_parameters[f"{part}_factor"])


def _gemma4_angles(c: Any) -> Tensors:
    """The part of a head that is turned comes first; the rest hardly turns."""
    wide = max(each["head_dim"] for each in c.to_dict()["per_layer_config"].values())
    turned = int(wide * c.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    yield "rope_freqs.weight", torch.tensor([1.0] * turned + [1e30] * (wide // 2 - turned))


EXTRA: dict[str, Callable[[Any], Tensors]] = {"phi3": _phi3_factors, "minicpm3": _phi3_factors, "gemma4": _gemma4_angles}


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
        tensor = tensor + 1  # enorm and hnorm, too
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


def _bailing_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.startswith("blk."):
        yield name, tensor
    elif name.endswith("A_log"):
        yield name, torch.exp(tensor).reshape(-1, 1)
    elif name.endswith("f_proj.weight"):
        yield name.replace("f_proj", "f_a_proj"), tensor
    elif name.endswith("g_proj.weight"):
        layer = int(name.split(".")[2])
        full = layer >= c.num_hidden_layers or c.layer_types[layer] == "full_attention"
        yield (f"blk.{layer}.attn_gate.weight" if full else name.replace("g_proj", "g_a_proj")), tensor
    else:
        yield from _kimi_weights(name, tensor, c)


def _gemma4_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    """Its norms multiply with their weights themselves, and gate and up of experts stay together."""
    if name.endswith("router.scale"):
        yield f"blk.{name.split('.')[2]}.ffn_gate_inp.scale", tensor
    elif name.endswith("per_expert_scale"):
        yield f"blk.{name.split('.')[2]}.ffn_down_exps.scale", tensor
    else:
        yield (f"{name}.weight" if ".experts." in name else name), tensor


def _granite_moe_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if "shared_mlp" in name:
        yield from _granite_weights(name, tensor, c)
        return
    for renamed, each in _llama(name.replace("router.weight", "router.layer.weight"), tensor, c):
        yield from _split_experts(renamed, each)


def _lfm2_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    yield from _split_experts(name, tensor.squeeze(1) if "conv.conv" in name else tensor)


def _granite_swa_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if name.endswith("sinks"):
        yield f"blk.{name.split('.')[2]}.attn_sinks.weight", tensor
    else:
        yield from _llama(name, tensor, c)


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


def _gemma3n_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    """The matrices between the streams are stacked, which ``save_gguf`` does."""
    yield (f"{name}.weight" if name.endswith("correct_output_scale") else name), tensor


def _rwkv7_weights(name: str, tensor: Tensor, c: Any) -> Tensors:
    if mix := re.search(r"layers\.(\d+)\.attention\.x_(\w)$", name):
        yield f"blk.{mix[1]}.time_mix_lerp_fused.{'rwkvag'.index(mix[2])}", tensor
    elif name.startswith("model.layers.0.attention.a") and re.search(r"a[012]\.weight$", name):
        yield name, tensor.squeeze()
        yield name.replace("attention.a", "attention.v"), tensor.squeeze()  # without use
    else:
        yield name, tensor.flatten() if name.endswith("r_k.weight") else tensor.squeeze()


STACKED = {
    "gemma3n": {r"^(model\.altup_(?:unembed_)?projections)\.(\d)\.weight$": r"\1.weight"},
    "rwkv7": {r"^(blk\.\d+\.time_mix_lerp_fused)\.(\d)$": r"\1.weight"},
}
"""Tensors that become one, by a number in their names."""


def stacked(architecture: str, tensors: Tensors) -> Tensors:
    """Stack the tensors that ``STACKED`` names."""
    found: dict[str, list[Tensor]] = {}
    for name, tensor in tensors:
        whole = next((re.sub(old, new, name) for old, new in STACKED.get(architecture, {}).items() if re.match(old, name)), "")
        if whole:
            found.setdefault(whole, []).append(tensor)
        else:
            yield name, tensor
    yield from ((name, torch.stack(parts)) for name, parts in found.items())


CONVERTED: dict[str, Callable[[str, Tensor, Any], Tensors]] = {
    "llama": _llama, "gemma3": _gemma, "gpt-oss": _gpt_oss_weights, "qwen35": _qwen35, "qwen35moe": _qwen35,
    "qwen3next": _qwen_next, "kimi-linear": _kimi_weights, "lfm2": _lfm2_weights, "lfm2moe": _lfm2_weights,
    "mamba2": lambda name, tensor, c: _mamba(name, tensor, c, c.n_groups), "granitehybrid": _granite_weights,
    "falcon-h1": _falcon_weights, "nemotron_h": _nemotron_weights, "nemotron_h_moe": _nemotron_weights,
    "jamba": _jamba_weights, "mamba": _jamba_weights, "granite": _llama, "smollm3": _llama, "granitemoe": _granite_moe_weights,
    "granite_swa": _granite_swa_weights,
    "gemma4": _gemma4_weights, "gemma3n": _gemma3n_weights, "deepseek2": _kimi_weights, "rwkv7": _rwkv7_weights,
    "bailingmoe3": _bailing_weights,
}  # fmt: skip


ATTENTION_FREE = ("mamba", "mamba2", "rwkv7")


def metadata(architecture: str, model: PreTrainedModel) -> dict[str, Any]:
    c = model.config
    heads, sizes = getattr(c, "num_attention_heads", 0), c.to_dict()  # Gemma 4's differ by layer
    found: dict[str, Any] = {
        "block_count": c.num_hidden_layers,
        "context_length": getattr(c, "max_position_embeddings", 1 << 20),
        "embedding_length": c.hidden_size,
        "feed_forward_length": getattr(c, "intermediate_size", 0) if architecture not in ("mamba", "mamba2") else 0,
        "attention.head_count": heads,
        "attention.layer_norm_rms_epsilon": float(
            getattr(c, "rms_norm_eps", None) or getattr(c, "norm_eps", None) or c.layer_norm_epsilon
        ),
    }
    if architecture not in ATTENTION_FREE:
        found["attention.head_count_kv"] = sizes["num_key_value_heads"]
        dim = sizes.get("head_dim") or c.hidden_size // heads
        found |= {"attention.key_length": dim, "attention.value_length": dim}
        rope = getattr(c, "rope_parameters", None) or {}
        rope = rope.get("full_attention", rope)
        if "rope_theta" in rope:
            partial = rope.get("partial_rotary_factor") or 1.0
            found |= {"rope.freq_base": float(rope["rope_theta"]), "rope.dimension_count": int(dim * partial)}
        if rope.get("mscale_all_dim"):
            found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
        if rope.get("rope_type") in ("linear", "yarn"):
            found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
        if rope.get("rope_type") == "yarn":
            found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    more = MORE.get(architecture, lambda c: {})(c)
    return {name: value for name, value in (found | more).items() if value is not None}


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
    if sections := c.rope_parameters.get("mrope_section"):
        return {"rope.dimension_sections": [*sections, 0]}
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
    found = {"attention.head_count_kv": _kv_heads(c), "shortconv.l_cache": c.conv_L_cache}
    if getattr(c, "block_auto_adjust_ff_dim", False):
        width, unit = int(c.block_ffn_dim_multiplier * int(2 * c.intermediate_size / 3)), c.block_multiple_of
        found["feed_forward_length"] = -(-width // unit) * unit
    return found


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
        "attention.layer_norm_rms_epsilon": None,  # its config has another name for it, by which it is no number of RMS norms
        "attention.layer_norm_epsilon": c.layer_norm_epsilon,
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


def _mamba1(c: Any) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": c.conv_kernel,
        "ssm.inner_size": c.intermediate_size,
        "ssm.state_size": c.state_size,
        "ssm.time_step_rank": c.time_step_rank,
        "ssm.dt_b_c_rms": c.model_type == "falcon_mamba",
    }


def _scales(c: Any) -> dict[str, Any]:
    return {
        "attention.scale": float(c.attention_multiplier),
        "embedding_scale": float(c.embedding_multiplier),
        "residual_scale": float(c.residual_multiplier),
        "logit_scale": float(c.logits_scaling),
    }


def _granite_moe(c: Any) -> dict[str, Any]:
    return {
        **_scales(c),
        "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_shared_feed_forward_length": c.shared_intermediate_size,
    }


def _phi3(c: Any) -> dict[str, Any]:
    original = c.original_max_position_embeddings
    scale = c.max_position_embeddings / original
    return {
        "attention.sliding_window": c.sliding_window or 0,
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(scale) / math.log(original)),
    }


def _gemma4(c: Any) -> dict[str, Any]:
    sizes, first_shared = c.to_dict(), c.num_hidden_layers - c.num_kv_shared_layers
    full = next(iter(sizes["per_layer_config"].values()))
    slides = [kind == "sliding_attention" for kind in c.layer_types]
    more: dict[str, Any] = {}
    if c.use_double_wide_mlp:
        width = c.intermediate_size
        more["feed_forward_length"] = [width if i < first_shared else 2 * width for i in range(c.num_hidden_layers)]
    if "num_key_value_heads" in full:
        more["attention.head_count_kv"] = [
            sizes["num_key_value_heads"] if each else full["num_key_value_heads"] for each in slides
        ]
    if c.final_logit_softcapping:
        more["final_logit_softcapping"] = c.final_logit_softcapping
    if c.enable_moe_block:
        more |= {"expert_count": c.num_experts, "expert_used_count": c.top_k_experts}
        more["expert_feed_forward_length"] = c.moe_intermediate_size
    return {
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": sizes["head_dim"],
        "attention.value_length_swa": sizes["head_dim"],
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": c.num_kv_shared_layers,
        "embedding_length_per_layer_input": c.hidden_size_per_layer_input,
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": sizes["head_dim"],
        "rope.freq_base_swa": float(c.rope_parameters["sliding_attention"]["rope_theta"]),
        **more,
    }


def _hunyuan(c: Any) -> dict[str, Any]:
    """Put what stretches the angles for a long text into their base."""
    base, alpha = c.rope_parameters["rope_theta"], c.rope_parameters.get("alpha", 1.0)
    return {"rope.freq_base": float(base * alpha ** (c.head_dim / (c.head_dim - 2)))}


def _latent(c: Any) -> dict[str, Any]:
    return {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": c.q_lora_rank,
        "attention.kv_lora_rank": c.kv_lora_rank,
        "attention.key_length": c.kv_lora_rank + c.qk_rope_head_dim,
        "attention.key_length_mla": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length": c.kv_lora_rank,
        "attention.value_length_mla": c.v_head_dim,
        "rope.dimension_count": c.qk_rope_head_dim,
    }


def _deepseek2(c: Any) -> dict[str, Any]:
    return {
        **_latent(c),
        **_experts(c),
        "expert_shared_count": c.n_shared_experts,
        "expert_weights_scale": float(c.routed_scaling_factor),
        "leading_dense_block_count": c.first_k_dense_replace,
    }


def _minicpm3(c: Any) -> dict[str, Any]:
    return {
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.q_lora_rank": c.q_lora_rank,
        "attention.kv_lora_rank": c.kv_lora_rank,
        "attention.key_length": c.qk_nope_head_dim + c.qk_rope_head_dim,
        "attention.value_length": None,
        "rope.dimension_count": c.qk_rope_head_dim,
    }


def _gemma3n(c: Any) -> dict[str, Any]:
    normal = torch.distributions.Normal(0, 1)
    return {
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in c.layer_types],
        "attention.shared_kv_layers": c.num_kv_shared_layers,
        "rope.freq_base_swa": float(c.rope_parameters["sliding_attention"]["rope_theta"]),
        "altup.num_inputs": c.altup_num_inputs,
        "altup.active_idx": c.altup_active_idx,
        "embedding_length_per_layer_input": c.hidden_size_per_layer_input,
        "activation_sparsity_scale": normal.icdf(torch.tensor(c.activation_sparsity_pattern)).tolist(),
    }


def _rwkv7(c: Any) -> dict[str, Any]:
    return {
        "attention.layer_norm_epsilon": c.norm_eps,
        "wkv.head_size": c.head_dim,
        "attention.decay_lora_rank": c.decay_low_rank_dim,
        "attention.iclr_lora_rank": c.a_low_rank_dim,
        "attention.value_residual_mix_lora_rank": c.v_low_rank_dim,
        "attention.gate_lora_rank": c.gate_low_rank_dim,
    }


def _bailing(c: Any) -> dict[str, Any]:
    kinds = [*c.layer_types, *["full_attention"] * c.num_mtp_layers]
    return {
        **_kimi(c),
        "attention.head_count_kv": [1 if kind == "full_attention" else 0 for kind in kinds],
        "kda.safe_gate": True,
        "kda.gate_lower_bound": c.kda_lower_bound,
        "rope.freq_base": float(c.rope_parameters["rope_theta"]),
        "expert_weights_norm": c.norm_topk_prob,
        "expert_group_count": c.n_group,
        "expert_group_used_count": c.topk_group,
    }


def _granite_swa(c: Any) -> dict[str, Any]:
    return {
        **_scales(c),
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in c.layer_types],
        "attention.rope_pattern": [bool(theta) for theta in c.layer_rope_theta],
    }


MORE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "qwen35": lambda c: {**_delta(c), **_sections(c)}, "qwen35moe": lambda c: {**_delta(c), **_sections(c), **_shared(c)},
    "qwen3next": lambda c: {**_delta(c), **_shared(c)}, "kimi-linear": _kimi, "lfm2": _lfm2, "lfm2moe": _lfm2_moe,
    "mamba2": lambda c: _ssm(c.num_heads, c.head_dim, c.state_size, c.n_groups, c.conv_kernel), "granitehybrid": _granite,
    "falcon-h1": _mamba_d, "nemotron_h": _nemotron, "nemotron_h_moe": lambda c: {**_nemotron(c), **_nemotron_experts(c)},
    "jamba": _jamba, "qwen3moe": _experts, "gemma3": lambda c: {"attention.sliding_window": c.sliding_window},
    "gpt-oss": _gpt_oss, "mamba": _mamba1, "granite": _scales, "granitemoe": _granite_moe, "phi3": _phi3, "gemma4": _gemma4,
    "bailingmoe3": _bailing, "hunyuan-dense": _hunyuan, "deepseek2": _deepseek2, "minicpm3": _minicpm3, "gemma3n": _gemma3n,
    "rwkv7": _rwkv7, "granite_swa": _granite_swa,
}  # fmt: skip
