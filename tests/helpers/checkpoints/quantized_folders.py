"""Checkpoints as others quantized them: tensor names, layouts, dtypes and configs of public ones, at small sizes.

Each form is a function of a float32 weight [N, K] to the parts that are stored and the numbers that they stand for. Those are
made of the same whole numbers and scales, not by unpacking.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from checkpoint_forms import edit_json
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, save_tokenizer, tiny_config
from torch import Tensor
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Int8WeightOnlyConfig, quantize_

Quantized = tuple[dict[str, Tensor], Tensor]
SIZES = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
GROUP = 128
NF4 = [
    *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.5626170, 0.72295684, 1.0),
]
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@dataclass(frozen=True, kw_only=True)
class PublicForm:
    """config: the quantization config of a public checkpoint; quantize: a weight to parts by the ends of their names."""

    config: dict[str, Any]
    quantize: Callable[[Tensor], Quantized]
    others: dict[str, Tensor] = field(default_factory=dict)


def save_quantized(folder: Path, form: str, layers: int = 2) -> dict[str, Tensor]:
    """Write a checkpoint of that form and return the numbers of all its weights."""
    save_checkpoint(folder, tiny_config("qwen3", **SIZES, num_hidden_layers=layers))
    save_tokenizer(folder)
    public = FORMS[form]
    stored, numbers = {}, load_file(folder / "model.safetensors")
    for name, weight in list(numbers.items()):
        if weight.dim() == 2 and "_proj" in name:
            parts, numbers[name] = public.quantize(weight)
            stored |= {name.removesuffix(".weight") + end: part.contiguous() for end, part in parts.items()}
            stored |= {name.removesuffix(".weight") + end: part.clone() for end, part in public.others.items()}
        else:
            stored[name] = weight.bfloat16()
            numbers[name] = weight.bfloat16().float()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    edit_json(folder / "config.json", quantization_config=public.config)
    return numbers


def save_torchao(folder: Path) -> dict[str, Tensor]:
    """Write a checkpoint of 8-bit weights as torchao stores its tensors in safetensors, and return the numbers of all."""
    model = save_checkpoint(folder, tiny_config("qwen3", **SIZES))
    save_tokenizer(folder)
    quantize_(model, Int8WeightOnlyConfig(version=2))
    numbers = {name: getattr(each, "dequantize", lambda each=each: each)() for name, each in model.state_dict().items()}
    stored, metadata = flatten_tensor_state_dict({name: each.detach() for name, each in model.state_dict().items()})
    save_file(stored, folder / "model.safetensors", metadata={**metadata, "format": "pt"})
    edit_json(folder / "config.json", quantization_config={"quant_method": "torchao", "quant_type": {"default": {}}})
    return numbers


def whole(weight: Tensor, low: int, high: int, group: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor]:
    """Round symmetrically: int32 [N, G, group] and scales [N, G, 1]."""
    groups = weight.unflatten(1, (-1, group))
    scales = (groups.abs().amax(-1, keepdim=True) / high).to(dtype)
    return (groups / scales.float()).round().clamp(low, high).int(), scales


def above_lowest(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Round asymmetrically to 4 bits: int32 [N, G, group], zero points [N, G, 1] of 1 to 15 and float16 scales."""
    groups = weight.unflatten(1, (-1, group))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(1, 15).int()
    return ((groups / scales.float()).round() + zeros).clamp(0, 15).int(), zeros, scales


def words(numbers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers of 4 bits along the last dimension to a 32-bit word, as they are packed one by one."""
    packed = torch.zeros(*numbers.shape[:-1], numbers.shape[-1] // 8, dtype=torch.int64)
    for place, column in enumerate(order):
        packed |= numbers[..., column::8].long() << (4 * place)
    return packed.to(torch.int32)  # wraps, as NumPy's int32 does


def nibbles(numbers: Tensor, *, low_first: bool) -> Tensor:
    first, second = numbers[..., ::2].to(torch.uint8), numbers[..., 1::2].to(torch.uint8)
    return first | second << 4 if low_first else first << 4 | second


# GPTQ and AWQ


def gptq(weight: Tensor) -> Quantized:
    numbers, zeros, scales = above_lowest(weight, GROUP)
    parts = {
        ".qweight": words(numbers.flatten(1)).T,
        ".qzeros": words((zeros.squeeze(-1) - 1).T),
        ".scales": scales.squeeze(-1).T,
        ".g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
    }
    return parts, ((numbers - zeros).float() * scales.float()).flatten(1)


def symmetric_gptq(weight: Tensor) -> Quantized:
    numbers, scales = whole(weight, -8, 7, GROUP)
    zeros = torch.full(scales.shape[:2], 7)
    parts = {
        ".qweight": words(numbers.flatten(1) + 8).T,
        ".qzeros": words(zeros.T),
        ".scales": scales.squeeze(-1).T,
        ".g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
    }
    return parts, (numbers.float() * scales.float()).flatten(1)


def awq(weight: Tensor) -> Quantized:
    numbers, zeros, scales = above_lowest(weight, GROUP)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        ".qweight": words(numbers.flatten(1).T, order),
        ".qzeros": words(zeros.squeeze(-1).T, order),
        ".scales": scales.squeeze(-1).T,
    }
    return parts, ((numbers - zeros).float() * scales.float()).flatten(1)


# compressed-tensors


def compressed_int4(weight: Tensor) -> Quantized:
    numbers, scales = whole(weight, -8, 7, GROUP, torch.bfloat16)
    parts = {
        ".weight_packed": pack_to_int32(numbers.flatten(1).to(torch.int8), 4),
        ".weight_scale": scales.squeeze(-1),
        ".weight_shape": torch.tensor(weight.shape),
    }
    return parts, (numbers.float() * scales.float()).flatten(1)


def compressed_asymmetric(weight: Tensor) -> Quantized:
    numbers, zeros, scales = above_lowest(weight, GROUP)
    parts = {
        ".weight_packed": pack_to_int32((numbers - 8).flatten(1).to(torch.int8), 4),
        ".weight_scale": scales.squeeze(-1),
        ".weight_shape": torch.tensor(weight.shape),
        ".weight_zero_point": pack_to_int32((zeros - 8).squeeze(-1).to(torch.int8), 4, packed_dim=0),
    }
    return parts, ((numbers - zeros).float() * scales.float()).flatten(1)


def compressed_int8(weight: Tensor) -> Quantized:
    numbers, scales = whole(weight, -128, 127, weight.shape[1], torch.bfloat16)
    parts = {".weight": numbers.flatten(1).to(torch.int8), ".weight_scale": scales.squeeze(-1)}
    return parts, (numbers.float() * scales.float()).flatten(1)


def fp8_rows(weight: Tensor) -> Quantized:
    scales = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    numbers = (weight / scales.float()).to(torch.float8_e4m3fn)
    return {".weight": numbers, ".weight_scale": scales}, numbers.float() * scales.float()


# 8 and 4 bits of floating point


def fp8_blocks(weight: Tensor) -> Quantized:
    scales = torch.stack(
        [torch.stack([block.abs().amax() / 448 for block in rows.split(128, dim=1)]) for rows in weight.split(128, dim=0)]
    )
    spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: weight.shape[0], : weight.shape[1]]
    numbers = (weight / spread).to(torch.float8_e4m3fn)
    return {".weight": numbers, ".weight_scale_inv": scales}, numbers.float() * spread


def fp8_whole(weight: Tensor) -> Quantized:
    scale = (weight.abs().max() / 448).bfloat16()
    numbers = (weight / scale.float()).to(torch.float8_e4m3fn)
    return {".weight": numbers, ".weight_scale": scale}, numbers.float() * scale.float()


def nearest_fp4(numbers: Tensor) -> Tensor:
    """Places in the table of 16."""
    place = (numbers.abs().unsqueeze(-1) - torch.tensor(FP4)).abs().argmin(-1)
    return place + 8 * (numbers < 0)


def of_fp4(places: Tensor) -> Tensor:
    return torch.tensor([*FP4, *(-each for each in FP4)])[places]


def nvfp4(weight: Tensor) -> Quantized:
    groups = weight.unflatten(1, (-1, 16))
    whole_scale = weight.abs().max() / (6 * 448)
    scales = (groups.abs().amax(-1, keepdim=True) / 6 / whole_scale).to(torch.float8_e4m3fn)
    step = scales.float() * whole_scale
    places = nearest_fp4(groups / step)
    parts = {
        ".weight": nibbles(places.flatten(1), low_first=True),
        ".weight_scale": scales.squeeze(-1),
        ".weight_scale_2": whole_scale,
    }
    return parts, (of_fp4(places) * step).flatten(1)


def mxfp4_experts(weight: Tensor) -> Quantized:
    """Stacked weights [E, K, N] of gpt-oss, which are stored transposed, in groups of 32 along K."""
    groups = weight.transpose(1, 2).unflatten(2, (-1, 32))
    exponents = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    places = nearest_fp4(groups / 2**exponents)
    parts = {"_blocks": nibbles(places, low_first=True), "_scales": (exponents.squeeze(-1) + 127).to(torch.uint8)}
    return parts, (of_fp4(places) * 2**exponents).flatten(2).transpose(1, 2)


def save_mxfp4(folder: Path) -> dict[str, Tensor]:
    """Write gpt-oss in the only form that it is published in, and return the numbers of all its weights."""
    save_checkpoint(folder, tiny_config("gpt_oss", hidden_size=64, intermediate_size=96))
    save_tokenizer(folder)
    stored, numbers = {}, load_file(folder / "model.safetensors")
    for name, weight in list(numbers.items()):
        if weight.dim() == 3:
            parts, numbers[name] = mxfp4_experts(weight)
            stored |= {name + end: part.contiguous() for end, part in parts.items()}
        else:
            stored[name] = weight
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": kept})
    return numbers


# bitsandbytes


def nf4(weight: Tensor) -> Quantized:
    """Blocks of 64, whose largest absolute values are stored in 8 bits themselves, in blocks of 256."""
    table = torch.tensor(NF4)
    blocks = weight.flatten().view(-1, 64)
    absmax = blocks.abs().amax(1)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    offset, quant_map = absmax.mean(), torch.linspace(-1, 1, 256)
    outer = torch.stack([part.abs().max() for part in (absmax - offset).split(256)])
    spread = outer.repeat_interleave(256)[: len(absmax)]
    inner = ((absmax - offset) / spread).unsqueeze(1).sub(quant_map).abs().argmin(1)
    absmax = quant_map[inner] * spread + float(offset)
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
    places = (blocks / absmax.unsqueeze(1)).unsqueeze(-1).sub(table).abs().argmin(-1)
    parts = {
        ".weight": nibbles(places.flatten(), low_first=False).unsqueeze(1),
        ".weight.quant_map": table,
        ".weight.absmax": inner.to(torch.uint8),
        ".weight.nested_absmax": outer,
        ".weight.nested_quant_map": quant_map,
        ".weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    return parts, (table[places] * absmax.unsqueeze(1)).view(weight.shape)


def llm_int8(weight: Tensor) -> Quantized:
    largest = weight.abs().amax(1)
    numbers = (weight / largest.unsqueeze(1) * 127).round().to(torch.int8)
    parts = {".weight": numbers, ".SCB": largest, ".weight_format": torch.zeros((), dtype=torch.uint8)}
    return parts, numbers.float() * (largest / 127).unsqueeze(1)


def _compressed(bits: int, kind: str, strategy: str, layout: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


SCALE = torch.tensor(0.5)
GPTQ_CONFIG = {"bits": 4, "group_size": GROUP, "desc_act": False, "damp_percent": 0.01, "quant_method": "gptq"}
NF4_CONFIG = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
}
FORMS = {
    "gptq": PublicForm(config={**GPTQ_CONFIG, "sym": False}, quantize=gptq),
    "gptq sym": PublicForm(config={**GPTQ_CONFIG, "sym": True, "checkpoint_format": "gptq"}, quantize=symmetric_gptq),
    "awq": PublicForm(
        config={"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, quantize=awq
    ),
    "auto-round": PublicForm(
        config={"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "packing_format": "auto_round:auto_gptq"},
        quantize=symmetric_gptq,
    ),
    "auto-round awq": PublicForm(
        config={"quant_method": "auto-round", "bits": 4, "group_size": GROUP, "packing_format": "auto_round:auto_awq"},
        quantize=awq,
    ),
    "int4": PublicForm(config=_compressed(4, "int", "group", "pack-quantized", group_size=GROUP), quantize=compressed_int4),
    "int4 asymmetric": PublicForm(
        config=_compressed(4, "int", "group", "pack-quantized", group_size=GROUP, symmetric=False),
        quantize=compressed_asymmetric,
    ),
    "int8": PublicForm(config=_compressed(8, "int", "channel", "int-quantized"), quantize=compressed_int8),
    "compressed fp8": PublicForm(config=_compressed(8, "float", "channel", "float-quantized"), quantize=fp8_rows),
    "fbgemm": PublicForm(config={"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, quantize=fp8_rows),
    "fp8": PublicForm(
        config={"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
        quantize=fp8_blocks,
    ),
    "modelopt fp8": PublicForm(
        config={"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        quantize=fp8_whole,
        others={".input_scale": SCALE},
    ),
    "nvfp4": PublicForm(
        config={"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
        quantize=nvfp4,
        others={".input_scale": SCALE},
    ),
    "nf4": PublicForm(config=NF4_CONFIG, quantize=nf4),
    "llm.int8": PublicForm(config={"quant_method": "bitsandbytes", "load_in_8bit": True}, quantize=llm_int8),
}
