"""Decode compressed-tensors, written by llm-compressor and vLLM: integers in 32-bit words, or int8, FP8 and float4 as they are.

Source: compressed-tensors 0.20, ``compressors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.quantization import (
    ORIGINAL,
    Block,
    Quantization,
    QuantizationMethod,
    WeightEncoding,
    WeightParts,
    e8m0,
    fp4,
    scaled,
    unpack_words,
)

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
BITS = (2, 4, 8)
"""Bits of a packed weight that divide a word. Others have two packings: with unused bits in each word, and without."""

OF_ACTIVATIONS = ("*.input_scale", "*.input_zero_point", "*.input_global_scale", "*.q_scale")
OF_CACHES = ("*.k_scale", "*.v_scale", "*.k_zero_point", "*.v_zero_point")

FIELDS = (
    *("config_groups", "format", "ignore", "kv_cache_scheme", "quantization_status", "global_compression_ratio", "version"),
    *("sparsity_config", "transform_config", "run_compressed", "dequantize", "producer"),
)
FIELDS_OF_WEIGHTS = (
    *("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder"),
    *("scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
)


def _packed(parts: WeightParts, quantization: Quantization) -> Tensor:
    packed, scale = parts[".weight_packed"], parts[".weight_scale"]
    if packed.dtype == torch.uint8:
        return _packed_floats(packed, scale, parts)
    rows, columns = parts[".weight_shape"].tolist()
    bits = 32 * packed.shape[1] // columns
    if bits not in {each.get("num_bits") for each in _weights(quantization)}:
        raise ValueError(f"{packed.shape[1]} words for {columns} columns")
    middle = 1 << (bits - 1)  # is stored for 0
    numbers = unpack_words(packed, bits, 1)[:rows, :columns] - middle
    zeros = parts.get(".weight_zero_point")
    if zeros is not None and zeros.dtype == torch.int32:
        zeros = unpack_words(zeros, bits, 0)[:rows] - middle
    return scaled(numbers, scale, zeros, blocks=_blocks(quantization), groups=parts.get(".weight_g_idx"))


def _packed_floats(packed: Tensor, scale: Tensor, parts: WeightParts) -> Tensor:
    """Decode float4: NVIDIA's in groups of 16 with a global scale to divide by, MX in groups of 32 with powers of two."""
    if scale.dtype == torch.uint8:
        return scaled(fp4(packed), e8m0(scale), blocks=[(1, 32)])
    return scaled(fp4(packed), scale.float() / parts[".weight_global_scale"].float(), blocks=[(1, 16)])


def _plain(parts: WeightParts, quantization: Quantization) -> Tensor:
    zeros, groups = parts.get(".weight_zero_point"), parts.get(".weight_g_idx")
    return scaled(parts[".weight"], parts[".weight_scale"], zeros, blocks=_blocks(quantization), groups=groups)


def _weights(quantization: Quantization) -> list[Mapping[str, Any]]:
    """Return what the config says of the weights of each group of layers. Raises UnsupportedModelError if it is no object."""
    groups = quantization.config.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(each, dict) for each in groups.values()):
        raise quantization.refused("config_groups", groups)
    found = [each.get("weights") or {} for each in groups.values()]
    if not all(isinstance(each, dict) for each in found):
        raise quantization.refused("weights", found)
    return found


def _blocks(quantization: Quantization) -> list[Block]:
    """Return the sizes of the blocks and groups that share a scale, of all groups of layers."""
    weights = _weights(quantization)
    groups: list[Block] = [(1, size) for each in weights if type(size := each.get("group_size")) is int and size > 0]
    return [*groups, *(block for each in weights if (block := _block(each.get("block_structure"))))]


def _block(structure: Any) -> Block | None:
    """Return rows and columns of a block, which older versions write as text: ``128x128``."""
    sizes = structure.split("x") if isinstance(structure, str) else structure
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(str(each).isdecimal() and int(each) > 0 for each in sizes):
        return None
    return int(sizes[0]), int(sizes[1])


def _check(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for formats and bits that are not read, sparse weights, and rotated ones.

    The last need a rotated model.
    """
    config = quantization.config
    sparsity = (config.get("sparsity_config") or {}).get("format") or "dense"
    weights = _weights(quantization)
    groups = [group.get("format") or "dense" for group in (config.get("config_groups") or {}).values()]
    for each in (config.get("format") or "dense", sparsity, *groups):
        if each not in FORMATS:
            raise UnsupportedModelError(
                f"the weights are quantized by compressed-tensors in its format {each!r}, which hybridge does not read "
                f"(it reads {', '.join(FORMATS)}). {ORIGINAL}"
            )
    if (config.get("transform_config") or {}).get("config_groups"):
        raise UnsupportedModelError(
            f"the weights are quantized by compressed-tensors after a transform (such as SpinQuant's). {ORIGINAL}"
        )
    for each in weights:
        if each.get("num_bits", 8) not in BITS:
            raise quantization.refused("num_bits", each["num_bits"], f" (it reads {', '.join(map(str, BITS))})")
        if unknown := [name for name, value in each.items() if value and name not in FIELDS_OF_WEIGHTS]:
            raise quantization.refused(unknown[0], each[unknown[0]])


def _most_bits(quantization: Quantization) -> int:
    found = [each.get("num_bits") for each in _weights(quantization)]
    return max((each for each in found if isinstance(each, int)), default=4)


COMPRESSED_TENSORS = QuantizationMethod(
    name="compressed-tensors",
    encodings=(
        WeightEncoding(
            marker=".weight_packed",
            parts=(".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale"),
            weight=".weight",
            decode=_packed,
            check=_check,
        ),
        WeightEncoding(
            marker=".weight_scale",
            parts=(".weight", ".weight_zero_point", ".weight_g_idx"),
            weight=".weight",
            decode=_plain,
            check=_check,
        ),
    ),
    fields=FIELDS,
    beside=(*OF_ACTIVATIONS, *OF_CACHES),
    bits=_most_bits,
)
