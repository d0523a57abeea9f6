"""Random blocks of GGUF's types, of which gguf itself makes only some from numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

TYPES = GGMLQuantizationType
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

HALVES: dict[TYPES, dict[int, float]] = {
    TYPES.Q4_0: {0: 0.02},
    TYPES.Q4_1: {0: 0.02, 2: -0.15},
    TYPES.Q5_0: {0: 0.01},
    TYPES.Q5_1: {0: 0.01, 2: -0.155},
    TYPES.Q8_0: {0: 0.0014},
    TYPES.Q4_K: {0: 5e-4, 2: 3.75e-3},
    TYPES.Q5_K: {0: 2.5e-4, 2: 3.9e-3},
    TYPES.Q6_K: {208: 8e-5},
    TYPES.IQ4_NL: {0: 0.0014},
    TYPES.IQ4_XS: {0: 8e-5},
    TYPES.MXFP4: {},
    TYPES.Q3_K: {108: 8e-4},
}
"""Where a block has float16 numbers, and of which size they make weights of about 0.1 around 0."""


def random_bytes(kind: TYPES, rows: int, columns: int, seed: int = 0) -> Bytes:
    """Return rows of any bytes, [N, bytes], but with finite scales, of which some are denormal or zero."""
    data, rng = _random(kind, rows, columns, seed), np.random.default_rng(seed)
    if kind == TYPES.MXFP4:
        data[..., 0] %= 250  # larger exponents overflow
    elif kind in HALVES:
        for at in HALVES[kind]:
            exponents = rng.integers(0, 31, data.shape[:2], dtype=np.uint8)
            exponents[:, 0] = 0
            data[..., at + 1] = (data[..., at + 1] & 0x83) | (exponents << 2)
    else:
        data[..., -1] &= 0xBF
    return data.reshape(rows, -1)


def random_blocks(kind: TYPES, rows: int, columns: int, seed: int = 0) -> Bytes:
    """Return rows of blocks, [N, bytes], as weights of a model may be: some 0.1 large."""
    data, rng = _random(kind, rows, columns, seed), np.random.default_rng(seed)
    if kind == TYPES.MXFP4:
        data[..., 0] = rng.integers(121, 124, data.shape[:2])
    if kind == TYPES.Q8_0:
        data[data == 0x80] = 0  # nobody's rounding makes -128
    for at, size in HALVES[kind].items():
        halves = (size * rng.uniform(0.8, 1.2, data.shape[:2])).astype(np.float16)
        data[..., at : at + 2] = halves[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def _random(kind: TYPES, rows: int, columns: int, seed: int) -> Bytes:
    per_block, size = GGML_QUANT_SIZES[kind]
    return np.random.default_rng(seed).integers(0, 256, (rows, columns // per_block, size), dtype=np.uint8)
