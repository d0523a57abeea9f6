"""Weights in floating-point numbers of 8 and 4 bits: FP8, MXFP4, and what NVIDIA's ModelOpt writes."""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.checkpoint.forms.form import ORIGINAL, Form, Method, Parts, Quantization
from hybridge.export.checkpoint.forms.numbers import e8m0, fp4, scaled

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
