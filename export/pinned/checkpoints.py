"""gguf 0.19: the sizes of GGML's types, and their arithmetic in NumPy."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor


def block_of(kind: int) -> tuple[int, int] | None:
    """Return elements and bytes of a block of GGML's type number ``kind``; None for one that cannot be decoded."""
    decoded = kind in {int(each) for each in quants._type_traits}
    return GGML_QUANT_SIZES[GGMLQuantizationType(kind)] if decoded else None


def name_of(kind: int) -> str:
    """Return GGML's name of a type, or its number if it has none."""
    return GGMLQuantizationType(kind).name if kind in {int(each) for each in GGMLQuantizationType} else str(kind)


def decoded(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]], kind: int) -> Tensor:
    """Return float32 [N, K] of the bytes of N rows of blocks; not finite if their scales are not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType(kind)))
