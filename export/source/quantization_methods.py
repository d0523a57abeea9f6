"""Recognize the quantization of a checkpoint by the ``quant_method`` of its config.json, and decode the weights of each method.

Axes: N rows (outputs), K columns (inputs), G groups of columns, E experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.pinned.torchao import dequantize_stored
from hybridge.export.source.files import mlx_error, read_object, text_part
from hybridge.export.source.quantization import (
    ORIGINAL,
    Quantization,
    QuantizationMethod,
    WeightEncoding,
    WeightParts,
    e8m0,
    fp4,
    grouped,
    scaled,
    unpack_nibbles,
    unpack_words,
)

# Floating-point numbers of 8 and 4 bits: FP8, MXFP4, NVIDIA's ModelOpt

OF_ACTIVATIONS = ("*.input_scale", "*.activation_scale", "*.k_scale", "*.v_scale", "*.input_scale_ub", "*.input_global_scale")


def _fp8(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode a weight, or stacked experts [E, N, K], with a scale for all or for each block, usually of 128 by 128."""
    block = quantization.config.get("weight_block_size")
    scale = parts["_scale_inv"]
    scale = e8m0(scale) if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) else scale
    if scale.dim() == 1 and parts[""].dim() == 3:
        scale = scale.view(-1, 1, 1)  # one for each expert
    return scaled(parts[""], scale, block if scale.numel() > 1 and scale.shape[-1] > 1 else None)


def _mxfp4(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode experts of [E, N, G, 16] bytes and [E, N, G] scales to [E, K, N], because gpt-oss multiplies from the left.

    Source: transformers 5.23 integrations/mxfp4.py ``convert_moe_packed_tensors``.
    """
    blocks = fp4(parts["_blocks"]) * e8m0(parts["_scales"]).unsqueeze(-1)
    return blocks.flatten(-2).transpose(1, 2).contiguous()


def _scaled_weight(parts: WeightParts, quantization: Quantization) -> Tensor:
    return scaled(parts[".weight"], parts[".weight_scale"])


def _nvfp4(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode float4 in groups of 16 with an FP8 scale each, and a float32 scale for all. Source: ModelOpt's NVFP4QTensor."""
    weight, scale = parts[".weight"], parts[".weight_scale"].float() * parts[".weight_scale_2"].float()
    return scaled(fp4(weight), scale)


def _modelopt(parts: WeightParts, quantization: Quantization) -> Tensor:
    return (_nvfp4 if ".weight_scale_2" in parts and parts[".weight"].dtype == torch.uint8 else _scaled_weight)(
        parts, quantization
    )


def _algorithm(quantization: Quantization) -> str:
    return str(quantization.config.get("quant_algo") or quantization.config.get("quantization", {}).get("quant_algo"))


def _check_modelopt(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for algorithms of ModelOpt that change more than the weights' numbers."""
    algorithm = _algorithm(quantization)
    if algorithm not in ("FP8", "NVFP4"):
        raise UnsupportedModelError(
            f"the weights are quantized by NVIDIA ModelOpt's {algorithm}, of which hybridge reads FP8 and NVFP4. {ORIGINAL}"
        )


FP8 = QuantizationMethod(
    name="FP8",
    encodings=(WeightEncoding(marker="_scale_inv", parts=("",), weight="", decode=_fp8),),
    beside=OF_ACTIVATIONS,
    bits=lambda quantization: 8,
)
FBGEMM_FP8 = QuantizationMethod(
    name="FP8 (FBGEMM)",
    encodings=(WeightEncoding(marker=".weight_scale", parts=(".weight",), weight=".weight", decode=_scaled_weight),),
    beside=OF_ACTIVATIONS,
    bits=lambda quantization: 8,
)
MXFP4 = QuantizationMethod(
    name="MXFP4", encodings=(WeightEncoding(marker="_blocks", parts=("_scales",), weight="", decode=_mxfp4),)
)
MODELOPT = QuantizationMethod(
    name="NVIDIA ModelOpt",
    encodings=(
        WeightEncoding(
            marker=".weight_scale",
            parts=(".weight", ".weight_scale_2"),
            weight=".weight",
            decode=_modelopt,
            check=_check_modelopt,
        ),
    ),
    beside=OF_ACTIVATIONS,
    bits=lambda quantization: 8 if _algorithm(quantization) == "FP8" else 4,
)


# compressed-tensors, written by llm-compressor and vLLM: integers in 32-bit words, or int8, FP8 and float4 as they are.
# Source: compressed-tensors 0.20, ``compressors``.

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "naive-quantized",
    "float-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
)


def _compressed_packed(parts: WeightParts, quantization: Quantization) -> Tensor:
    packed, scale = parts[".weight_packed"], parts[".weight_scale"]
    if packed.dtype == torch.uint8:
        return _packed_floats(packed, scale, parts)
    rows, columns = parts[".weight_shape"].tolist()
    bits = 32 * packed.shape[1] // columns
    if 32 % bits:
        raise ValueError(f"{bits} bits, of which some cross the borders of words; hybridge reads 2, 4 and 8")
    middle = 1 << (bits - 1)  # is stored for 0
    numbers = unpack_words(packed, bits, 1)[:rows, :columns] - middle
    zeros = parts.get(".weight_zero_point")
    if zeros is not None and zeros.dtype == torch.int32:
        zeros = unpack_words(zeros, bits, 0)[:rows] - middle
    return grouped(numbers, scale, zeros, parts.get(".weight_g_idx"))


def _packed_floats(packed: Tensor, scale: Tensor, parts: WeightParts) -> Tensor:
    """Decode float4: NVIDIA's in groups of 16 with a global scale to divide by, MX in groups of 32 with powers of two."""
    if scale.dtype == torch.uint8:
        return scaled(fp4(packed), e8m0(scale))
    return scaled(fp4(packed), scale.float() / parts[".weight_global_scale"].float())


def _compressed_plain(parts: WeightParts, quantization: Quantization) -> Tensor:
    weight, scale, zeros = parts[".weight"], parts[".weight_scale"], parts.get(".weight_zero_point")
    if zeros is not None and zeros.any():
        return grouped(weight.int(), scale.reshape(-1, scale.shape[-1]), zeros.int(), parts.get(".weight_g_idx"))
    block = _compressed_block(quantization) if scale.dim() == 2 and min(scale.shape) > 1 else None
    return scaled(weight, scale, block)


def _compressed_block(quantization: Quantization) -> list[int] | None:
    """Return the rows and columns that share a scale, of the first group of layers that has blocks."""
    groups = quantization.config.get("config_groups") or {}
    blocks = ((group.get("weights") or {}).get("block_structure") for group in groups.values())
    return next((block for block in blocks if isinstance(block, list) and len(block) == 2), None)


def _check_compressed(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for sparse weights, and for rotated ones, which need a rotated model."""
    config = quantization.config
    groups = config.get("config_groups") or {}
    sparsity = (config.get("sparsity_config") or {}).get("format") or "dense"
    for each in (config.get("format") or "dense", sparsity, *(group.get("format") or "dense" for group in groups.values())):
        if each not in FORMATS:
            raise UnsupportedModelError(
                f"the weights are quantized by compressed-tensors in its format {each!r}, which hybridge does not read "
                f"(it reads {', '.join(FORMATS)}). {ORIGINAL}"
            )
    if (config.get("transform_config") or {}).get("config_groups"):
        raise UnsupportedModelError(
            f"the weights are quantized by compressed-tensors after a transform (such as SpinQuant's). {ORIGINAL}"
        )


def _compressed_bits(quantization: Quantization) -> int:
    groups = quantization.config.get("config_groups") or {}
    found = [(group.get("weights") or {}).get("num_bits") for group in groups.values()]
    return max((each for each in found if isinstance(each, int)), default=4)


COMPRESSED_TENSORS = QuantizationMethod(
    name="compressed-tensors",
    encodings=(
        WeightEncoding(
            marker=".weight_packed",
            parts=(".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale"),
            weight=".weight",
            decode=_compressed_packed,
            check=_check_compressed,
        ),
        WeightEncoding(
            marker=".weight_scale",
            parts=(".weight", ".weight_zero_point", ".weight_g_idx"),
            weight=".weight",
            decode=_compressed_plain,
            check=_check_compressed,
        ),
    ),
    beside=(*OF_ACTIVATIONS, "*.input_zero_point", "*.k_zero_point", "*.v_zero_point", "*.q_scale"),
    bits=_compressed_bits,
)


# GPTQ, AutoRound and AWQ: integers [K, N] with zero points, several in a 32-bit word.
# Sources: AutoGPTQ's ``qlinear``, AutoAWQ's ``awq/utils/packing_utils.py``.

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each of a word's eight columns, which are stored in the order 0, 2, 4, 6, 1, 3, 5, 7."""


def _gptq(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode qweight [K / 8, N], qzeros [G, N / 8], scales [G, N], g_idx [K]. All but version 2 store zero points minus one."""
    bits = quantization.number("bits", 4)
    numbers, zeros = unpack_words(parts[".qweight"], bits, 0), unpack_words(parts[".qzeros"], bits, 1)
    if quantization.config.get("checkpoint_format") != "gptq_v2":
        zeros = (zeros + 1) & ((1 << bits) - 1)
    return grouped(numbers.T, parts[".scales"].T, zeros.T, parts.get(".g_idx"))


def _check_gptq(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for bits of which a number may cross the border of two words."""
    if (bits := quantization.number("bits", 4)) not in (2, 4, 8):
        raise UnsupportedModelError(
            f"the weights are quantized by GPTQ in {bits} bits, of which hybridge reads 2, 4 and 8. {ORIGINAL}"
        )


def _awq(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]."""
    numbers, zeros = (_in_order(unpack_words(parts[name], 4, 1)) for name in (".qweight", ".qzeros"))
    return grouped(numbers.T, parts[".scales"].T, zeros.T, None)


def _in_order(numbers: Tensor) -> Tensor:
    ordered: Tensor = numbers.unflatten(1, (-1, 8))[:, :, torch.tensor(AWQ_ORDER)].flatten(1)
    return ordered


def _check_awq(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for layouts of other kernels than GEMM's, and for other bits than 4."""
    version, bits = str(quantization.config.get("version") or "gemm").lower(), quantization.number("bits", 4)
    if version != "gemm" or bits != 4:
        raise UnsupportedModelError(
            f"the weights are quantized by AWQ in its layout {version!r} with {bits} bits, of which hybridge reads 'gemm' with "
            f"4 bits. {ORIGINAL}"
        )


def _auto_round(parts: WeightParts, quantization: Quantization) -> Tensor:
    return (_awq if _packs_as_awq(quantization) else _gptq)(parts, quantization)


def _check_auto_round(quantization: Quantization) -> None:
    (_check_awq if _packs_as_awq(quantization) else _check_gptq)(quantization)


def _packs_as_awq(quantization: Quantization) -> bool:
    return "awq" in str(quantization.config.get("packing_format"))


def _integers(
    name: str, decode: Callable[[WeightParts, Quantization], Tensor], check: Callable[[Quantization], None]
) -> QuantizationMethod:
    encoding = WeightEncoding(
        marker=".qweight", parts=(".qzeros", ".scales", ".g_idx"), weight=".weight", decode=decode, check=check
    )
    return QuantizationMethod(name=name, encodings=(encoding,), bits=lambda quantization: quantization.number("bits", 4))


GPTQ = _integers("GPTQ", _gptq, _check_gptq)
AWQ = _integers("AWQ", _awq, _check_awq)
AUTO_ROUND = _integers("AutoRound", _auto_round, _check_auto_round)


# bitsandbytes: 4 bits as indices into a table of 16 numbers, 8 bits with a scale for each row.
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
    beside=("*.weight_format",),
    bits=lambda quantization: 8 if quantization.config.get("load_in_8bit") else 4,
)


# torchao: several tensors for a weight, whose types and shapes are in the metadata of the safetensors.

MARKER = "._weight_qdata"
BESIDE_IT = ("._weight_scale", "._weight_zero_point", "._weight_act_pre_scale", "._weight_act_quant_scale")


def _torchao(parts: WeightParts, quantization: Quantization) -> Tensor:
    return dequantize_stored(
        quantization.metadata[quantization.name], {end.removeprefix("._weight_"): part for end, part in parts.items()}
    )


def _torchao_bits(quantization: Quantization) -> int:
    """Guess the bits by the name of torchao's config, such as Int8WeightOnlyConfig."""
    names = json.dumps(quantization.config.get("quant_type"))
    return 4 if re.search("int4|uint4", names, re.IGNORECASE) else 8


TORCHAO = QuantizationMethod(
    name="torchao",
    encodings=(WeightEncoding(marker=MARKER, parts=BESIDE_IT, weight=".weight", decode=_torchao),),
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
    return Quantization(method=METHODS[name], config=config)


def _quantization_config(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    for part in (content, text_part(content)):
        if part.get("quantization"):
            raise mlx_error(folder)
        if config := part.get("quantization_config") or part.get("compression_config"):
            return config if isinstance(config, dict) else {"quant_method": None}
    modelopt = read_object(folder / CONFIG_OF_MODELOPT)  # older versions write it beside a config.json without any
    return {**modelopt, "quant_method": "modelopt"} if modelopt.get("quantization") else {}
