"""compressed-tensors, which llm-compressor and vLLM write: whole numbers in 32-bit words, or int8, FP8 and float4 as they are.

Source: compressed-tensors 0.20, ``compressors``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.checkpoint.forms.floats import OF_ACTIVATIONS
from hybridge.export.checkpoint.forms.form import ORIGINAL, Form, Method, Parts, Quantization
from hybridge.export.checkpoint.forms.numbers import e8m0, fp4, grouped, scaled, unpack_words

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
