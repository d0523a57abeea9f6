"""torchao 0.18: its recipe for symmetric weights in groups of columns, and the tensors that it stores in parts."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine


def symmetric_scales(weight: Tensor, group: int, low: int, high: int) -> Tensor:
    """Return float32 scales [N, K / group] of a weight [N, K], by which each group of columns just fits ``low`` to ``high``.

    At least float32's epsilon; zero points are 0.
    """
    scales: Tensor
    scales, _ = choose_qparams_affine(weight, MappingType.SYMMETRIC, (1, group), torch.int8, low, high)
    return scales


def quantize(weight: Tensor, scales: Tensor, group: int, low: int, high: int) -> Tensor:
    """Return int8 [N, K]: each number over its group's scale, rounded half to even and clamped."""
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    quanta: Tensor = quantize_affine(weight, (1, group), scales, zeros, torch.int8, low, high)
    return quanta


def dequantize_stored(description: str, parts: Mapping[str, Tensor]) -> Tensor:
    """Return float32 of a tensor that torchao stored as ``parts``, which ``description``, JSON of its metadata, is about.

    Raises ValueError for a kind that torchao does not store, and whatever torchao runs into on a CPU.
    """
    from torchao.prototype.safetensors.safetensors_utils import ALLOWED_TENSORS_SUBCLASSES, object_from_dict

    content = json.loads(description)
    if content["_type"] not in ALLOWED_TENSORS_SUBCLASSES:
        raise ValueError(f"torchao stores no {content['_type']}")
    content["_data"].update(parts)
    tensor: Tensor = object_from_dict(content).dequantize(torch.float32)
    return tensor
