"""Recognize the quantization of a checkpoint by the ``quant_method`` of its config.json, and decode the weights of each method.

Axes: N rows (outputs), K columns (inputs), G groups of columns, E experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridge.errors import UnsupportedModelError
from hybridge.export.pinned.torchao import dequantize_stored
from hybridge.export.source.compressed_tensors import COMPRESSED_TENSORS
from hybridge.export.source.files import mlx_error, read_object, text_part
from hybridge.export.source.integer_methods import AUTO_ROUND, AWQ, GPTQ
from hybridge.export.source.quantization import (
    ORIGINAL,
    Quantization,
    QuantizationMethod,
    WeightEncoding,
    WeightParts,
    e8m0,
    fp4,
    scaled,
    unpack_nibbles,
)

# Floating-point numbers of 8 and 4 bits: FP8, MXFP4, NVIDIA's ModelOpt

BESIDE = ("*.input_scale", "*.activation_scale", "*.k_scale", "*.v_scale", "*.input_scale_ub")
"""Scales of activations and of cached keys and values, which are not rounded here."""
BLOCK = [128, 128]
"""Rows and columns of a block of FP8 where the config says nothing else, as in transformers."""


def _fp8(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode a weight, or stacked experts [E, N, K], with a scale for all, for each row or for each block."""
    scale = parts["_scale_inv"]
    scale = e8m0(scale) if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) else scale
    block = quantization.config.get("weight_block_size", BLOCK)
    return scaled(parts[""], scale, blocks=[block] if block else [])


def _check_fp8(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for experts of another kind of numbers, and for a block of another size."""
    quantization.check_values("expert_dtype", "fp8")
    block = quantization.config.get("weight_block_size")
    sizes = block if isinstance(block, list) else []
    if block is not None and (len(sizes) != 2 or not all(type(each) is int and each > 0 for each in sizes)):
        raise quantization.refused("weight_block_size", block)


def _mxfp4(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode experts of [E, N, G, 16] bytes and [E, N, G] scales to [E, K, N], because gpt-oss multiplies from the left.

    Source: transformers 5.23 integrations/mxfp4.py ``convert_moe_packed_tensors``.
    """
    blocks = scaled(fp4(parts["_blocks"]), e8m0(parts["_scales"]))
    return blocks.flatten(-2).transpose(1, 2).contiguous()


def _scaled_weight(parts: WeightParts, quantization: Quantization) -> Tensor:
    return scaled(parts[".weight"], parts[".weight_scale"])


def _nvfp4(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode float4 in groups of 16 with an FP8 scale each, and a float32 scale for all. Source: ModelOpt's NVFP4QTensor."""
    weight, scale = parts[".weight"], parts[".weight_scale"].float() * parts[".weight_scale_2"].float()
    return scaled(fp4(weight), scale, blocks=[(1, 16)])


def _modelopt(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode FP8 or NVFP4. A scale [K] of the inputs, which AWQ found, is the same as one of the weight's columns."""
    weight = (_nvfp4 if parts[".weight"].dtype == torch.uint8 else _scaled_weight)(parts, quantization)
    inputs = parts.get(".pre_quant_scale")
    return weight if inputs is None else scaled(weight, inputs.reshape(1, -1))


def _check_modelopt(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for algorithms of ModelOpt that change more than the weights' numbers."""
    algorithm = quantization.config.get("quant_algo")
    if algorithm not in ("FP8", "NVFP4", "NVFP4_AWQ"):
        raise UnsupportedModelError(
            f"the weights are quantized by NVIDIA ModelOpt's {algorithm}, of which hybridge reads FP8 and NVFP4. {ORIGINAL}"
        )


FP8 = QuantizationMethod(
    name="FP8",
    encodings=(WeightEncoding(marker="_scale_inv", parts=("",), weight="", decode=_fp8, check=_check_fp8),),
    fields=(
        *("activation_scheme", "weight_block_size", "fmt", "scale_fmt", "expert_dtype", "dequantize", "modules_to_convert"),
        *("modules_to_not_convert", "ignored_layers", "kv_cache_scheme"),
    ),
    beside=BESIDE,
    bits=lambda quantization: 8,
)
FBGEMM_FP8 = QuantizationMethod(
    name="FP8 (FBGEMM)",
    encodings=(WeightEncoding(marker=".weight_scale", parts=(".weight",), weight=".weight", decode=_scaled_weight),),
    fields=("activation_scale_ub", "modules_to_not_convert"),
    beside=BESIDE,
    bits=lambda quantization: 8,
)
MXFP4 = QuantizationMethod(
    name="MXFP4",
    encodings=(WeightEncoding(marker="_blocks", parts=("_scales",), weight="", decode=_mxfp4),),
    fields=("modules_to_not_convert", "dequantize"),
)
MODELOPT = QuantizationMethod(
    name="NVIDIA ModelOpt",
    encodings=(
        WeightEncoding(
            marker=".weight_scale",
            parts=(".weight", ".weight_scale_2", ".pre_quant_scale"),
            weight=".weight",
            decode=_modelopt,
            check=_check_modelopt,
        ),
    ),
    fields=(
        *("quant_algo", "config_groups", "group_size", "has_zero_point", "pre_quant_scale", "ignore", "exclude_modules"),
        *("kv_cache_quant_algo", "kv_cache_scheme", "producer", "version", "quantization_status"),
    ),
    beside=BESIDE,
    bits=lambda quantization: 8 if quantization.config.get("quant_algo") == "FP8" else 4,
)


# bitsandbytes: 4 bits as indices into a table of 16 numbers, 8 bits with a scale for each row (LLM.int8).
# Source: bitsandbytes 0.48 ``functional.py``, ``QuantState.from_dict`` and ``dequantize_4bit``.


def _state_of(kind: str) -> str:
    return f".quant_state.bitsandbytes__{kind}"


def _four_bits(kind: str) -> WeightEncoding:
    """Return the encoding of NF4 or FP4, which has a tensor of that name with the weight's shape as JSON."""

    def decode(parts: WeightParts, quantization: Quantization) -> Tensor:
        state: dict[str, Any] = json.loads(bytes(parts[_state_of(kind)].tolist()))
        numbers = parts[".quant_map"].float()[unpack_nibbles(parts[""].flatten(), low_first=False)]
        largest = _largest(parts, state).repeat_interleave(state["blocksize"])[: numbers.numel()]
        return (numbers * largest).view(state["shape"])

    parts = ("", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
    return WeightEncoding(marker=_state_of(kind), parts=parts, weight="", decode=decode)


def _largest(parts: WeightParts, state: dict[str, Any]) -> Tensor:
    """Return the largest absolute value of each block; it may be quantized to 8 bits itself, in blocks of its own."""
    largest = parts[".absmax"]
    if "nested_blocksize" not in state:
        return largest.float()
    nested = parts[".nested_absmax"].float().repeat_interleave(state["nested_blocksize"])[: largest.numel()]
    return parts[".nested_quant_map"].float()[largest.long()] * nested + float(state["nested_offset"])


def _eight_bits(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode rows whose largest absolute value, SCB [N], is stored as 127."""
    return parts[".weight"].float() * (parts[".SCB"].float() / 127).unsqueeze(1)


EIGHT_BITS = WeightEncoding(marker=".SCB", parts=(".weight",), weight=".weight", decode=_eight_bits)

BITSANDBYTES = QuantizationMethod(
    name="bitsandbytes",
    encodings=(_four_bits("nf4"), _four_bits("fp4"), EIGHT_BITS),
    fields=("*load_in_*bit", "bnb_4bit_*", "llm_int8_*", "modules_to_not_convert"),
    beside=("*.weight_format",),
    bits=lambda quantization: 8 if quantization.config.get("load_in_8bit") else 4,
)


# torchao: several tensors for a weight, whose types and shapes are in the metadata of the safetensors.

MARKER = "._weight_qdata"
BESIDE_IT = ("._weight_scale", "._weight_zero_point", "._weight_act_pre_scale", "._weight_act_quant_scale")


def _torchao(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode by torchao, which leaves out a scale of the inputs: here it is one of the weight's columns."""
    named = {end.removeprefix("._weight_"): part for end, part in parts.items()}
    weight = dequantize_stored(quantization.metadata[quantization.name], named)
    inputs = named.get("act_pre_scale")
    return weight if inputs is None else scaled(weight, inputs.reshape(1, -1))


def _torchao_bits(quantization: Quantization) -> int:
    """Guess the bits by the name of torchao's config, such as Int8WeightOnlyConfig."""
    names = json.dumps(quantization.config.get("quant_type"))
    return 4 if re.search("int4|uint4", names, re.IGNORECASE) else 8


TORCHAO = QuantizationMethod(
    name="torchao",
    encodings=(WeightEncoding(marker=MARKER, parts=BESIDE_IT, weight=".weight", decode=_torchao),),
    fields=("quant_type*", "modules_to_not_convert", "include_input_output_embeddings", "untie_embedding_weights"),
    bits=_torchao_bits,
)


METHODS: Mapping[str, QuantizationMethod] = {
    "auto-round": AUTO_ROUND,
    "awq": AWQ,
    "bitsandbytes": BITSANDBYTES,
    "compressed-tensors": COMPRESSED_TENSORS,
    "fbgemm_fp8": FBGEMM_FP8,
    "fp8": FP8,
    "gptq": GPTQ,
    "modelopt": MODELOPT,
    "mxfp4": MXFP4,
    "torchao": TORCHAO,
}

CONFIG_OF_MODELOPT = "hf_quant_config.json"


def quantization_of(folder: Path, content: dict[str, Any]) -> Quantization | None:
    """Return the quantization of the weights in ``folder``, whose config.json has ``content``; None if they have none.

    Raises:
        NotACheckpointError: MLX wrote the weights, in a format of its own.
        UnsupportedModelError: hybridge does not read this method.
    """
    config = _quantization_config(folder, content)
    if not config:
        return None
    old_bitsandbytes = config.get("load_in_4bit") or config.get("load_in_8bit")
    name = str(config.get("quant_method") or ("bitsandbytes" if old_bitsandbytes else "a method without a name"))
    if name not in METHODS:
        raise UnsupportedModelError(
            f"the weights in {folder} are quantized already, by {name}, which hybridge does not read "
            f"(it reads {', '.join(sorted(METHODS))}). {ORIGINAL}"
        )
    quantization = Quantization(method=METHODS[name], config=config)
    quantization.check_fields()
    return quantization


def _quantization_config(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    for part in (content, text_part(content)):
        if part.get("quantization"):
            raise mlx_error(folder)
        if config := part.get("quantization_config") or part.get("compression_config"):
            return config if isinstance(config, dict) else {"quant_method": None}
    modelopt = read_object(folder / CONFIG_OF_MODELOPT)  # older versions write it beside a config.json without any
    inside = modelopt.get("quantization")
    return {**inside, "quant_method": "modelopt"} if isinstance(inside, dict) and inside else {}
