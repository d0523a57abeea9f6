"""Weights in floating-point numbers of 8 and 4 bits: FP8, MXFP4, and what NVIDIA's ModelOpt writes."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.source.forms.form import ORIGINAL, Form, Method, Parts, Quantization
from hybridge.export.source.forms.integers import e8m0, fp4, grouped, scaled, unpack_words

OF_ACTIVATIONS = ("*.input_scale", "*.activation_scale", "*.k_scale", "*.v_scale", "*.input_scale_ub", "*.input_global_scale")


def _fp8(parts: Parts, quantization: Quantization) -> Tensor:
    """Blocks of weight_block_size, usually 128 by 128, or the whole weight share a scale; also of stacked experts [E, N, K]."""
    block = quantization.config.get("weight_block_size")
    scale = parts["_scale_inv"]
    scale = e8m0(scale) if scale.dtype in (torch.uint8, torch.float8_e8m0fnu) else scale
    if scale.dim() == 1 and parts[""].dim() == 3:
        scale = scale.view(-1, 1, 1)  # one for each expert
    return scaled(parts[""], scale, block if scale.numel() > 1 and scale.shape[-1] > 1 else None)


def _mxfp4(parts: Parts, quantization: Quantization) -> Tensor:
    """Stacked experts, [E, N, G, 16] bytes and [E, N, G] scales to [E, K, N], as gpt-oss multiplies from the left.

    Source: transformers 5.23 integrations/mxfp4.py ``convert_moe_packed_tensors``.
    """
    blocks = fp4(parts["_blocks"]) * e8m0(parts["_scales"]).unsqueeze(-1)
    return blocks.flatten(-2).transpose(1, 2).contiguous()


def _scaled_weight(parts: Parts, quantization: Quantization) -> Tensor:
    return scaled(parts[".weight"], parts[".weight_scale"])


def _nvfp4(parts: Parts, quantization: Quantization) -> Tensor:
    """Float4 in groups of 16 with an FP8 scale each, and a float32 scale for all. Source: ModelOpt's NVFP4QTensor."""
    weight, scale = parts[".weight"], parts[".weight_scale"].float() * parts[".weight_scale_2"].float()
    return scaled(fp4(weight), scale)


def _modelopt(parts: Parts, quantization: Quantization) -> Tensor:
    return (_nvfp4 if ".weight_scale_2" in parts and parts[".weight"].dtype == torch.uint8 else _scaled_weight)(
        parts, quantization
    )


def _algorithm(quantization: Quantization) -> str:
    return str(quantization.config.get("quant_algo") or quantization.config.get("quantization", {}).get("quant_algo"))


def _check_modelopt(quantization: Quantization) -> None:
    """Raises UnsupportedModelError for algorithms of ModelOpt that change more than the weights' numbers."""
    algorithm = _algorithm(quantization)
    if algorithm not in ("FP8", "NVFP4"):
        raise UnsupportedModelError(
            f"the weights are quantized by NVIDIA ModelOpt's {algorithm}, of which hybridge reads FP8 and NVFP4. {ORIGINAL}"
        )


FP8 = Method(
    name="FP8",
    forms=(Form(marker="_scale_inv", parts=("",), weight="", decode=_fp8),),
    beside=OF_ACTIVATIONS,
    bits=lambda quantization: 8,
)
FBGEMM_FP8 = Method(
    name="FP8 (FBGEMM)",
    forms=(Form(marker=".weight_scale", parts=(".weight",), weight=".weight", decode=_scaled_weight),),
    beside=OF_ACTIVATIONS,
    bits=lambda quantization: 8,
)
MXFP4 = Method(name="MXFP4", forms=(Form(marker="_blocks", parts=("_scales",), weight="", decode=_mxfp4),))
MODELOPT = Method(
    name="NVIDIA ModelOpt",
    forms=(
        Form(
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


# compressed-tensors, which llm-compressor and vLLM write: whole numbers in 32-bit words, or int8, FP8 and float4 as
# they are.
#
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


def _packed(parts: Parts, quantization: Quantization) -> Tensor:
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


def _packed_floats(packed: Tensor, scale: Tensor, parts: Parts) -> Tensor:
    """Float4: NVIDIA's with groups of 16 and a global scale to divide by, MX with powers of two for groups of 32."""
    if scale.dtype == torch.uint8:
        return scaled(fp4(packed), e8m0(scale))
    return scaled(fp4(packed), scale.float() / parts[".weight_global_scale"].float())


def _plain(parts: Parts, quantization: Quantization) -> Tensor:
    weight, scale, zeros = parts[".weight"], parts[".weight_scale"], parts.get(".weight_zero_point")
    if zeros is not None and zeros.any():
        return grouped(weight.int(), scale.reshape(-1, scale.shape[-1]), zeros.int(), parts.get(".weight_g_idx"))
    block = _block(quantization) if scale.dim() == 2 and min(scale.shape) > 1 else None
    return scaled(weight, scale, block)


def _block(quantization: Quantization) -> list[int] | None:
    """Rows and columns that share a scale, of the first group of layers that says so."""
    groups = quantization.config.get("config_groups") or {}
    blocks = ((group.get("weights") or {}).get("block_structure") for group in groups.values())
    return next((block for block in blocks if isinstance(block, list) and len(block) == 2), None)


def _check(quantization: Quantization) -> None:
    """Raises UnsupportedModelError for formats with sparse weights, and for rotated ones, which need a rotated model."""
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


def _bits(quantization: Quantization) -> int:
    groups = quantization.config.get("config_groups") or {}
    found = [(group.get("weights") or {}).get("num_bits") for group in groups.values()]
    return max((each for each in found if isinstance(each, int)), default=4)


COMPRESSED_TENSORS = Method(
    name="compressed-tensors",
    forms=(
        Form(
            marker=".weight_packed",
            parts=(".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale"),
            weight=".weight",
            decode=_packed,
            check=_check,
        ),
        Form(
            marker=".weight_scale",
            parts=(".weight", ".weight_zero_point", ".weight_g_idx"),
            weight=".weight",
            decode=_plain,
            check=_check,
        ),
    ),
    beside=(*OF_ACTIVATIONS, "*.input_zero_point", "*.k_zero_point", "*.v_zero_point", "*.q_scale"),
    bits=_bits,
)
