"""The variants that are measured side by side: every engine with its options, and the group that it is interleaved with.

A group has one precision and its engines are in memory at the same time; the first peer named ``baseline`` of a group is what
ratios are against.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFILL_CHUNK = "128"
INT4 = ("--quantize", "8da4w", "--group-size", "32", "--embedding-quantize", "4w")
INT8_CACHE = ("--kv-cache", "int8")


@dataclass(frozen=True)
class Bits:
    """Bits that one decode reads of each number: of the layers' matrices, of the head's, of keys and values."""

    linear: float = 32
    head: float = 32
    row: float = 32


@dataclass(frozen=True)
class Variant:
    """A row of the tables. options: of ``hybridge export``, or the kinds of weights and of keys and values of llama.cpp."""

    name: str
    group: str
    engine: str
    bits: Bits
    options: tuple[str, ...] = ()
    rollback: int = 0


Q4 = 4.5  # 32 numbers of 4 bits and a scale of 16
VARIANTS = (
    Variant("hybridge llm", "float32", "hybridge", Bits(), ("--kernels", "llm")),
    Variant("hybridge", "float32", "hybridge", Bits(), ("--kernels", "hybridge")),
    Variant("hybridge onnx", "float32", "hybridge", Bits(), ("--format", "onnx")),
    Variant("transformers eager", "float32", "eager", Bits()),
    Variant("torch.compile", "float32", "compiled", Bits()),
    Variant("transformers .pte", "float32", "pte", Bits()),
    Variant("llama.cpp F32", "float32", "llama", Bits(row=16), ("F32", "f16")),
    Variant("hybridge llm 8da4w", "int4", "hybridge", Bits(Q4, Q4), ("--kernels", "llm", *INT4)),
    Variant("hybridge 8da4w", "int4", "hybridge", Bits(Q4, Q4), ("--kernels", "hybridge", *INT4)),
    Variant("hybridge 8da4w int8 cache", "int4", "hybridge", Bits(Q4, Q4, 9), ("--kernels", "hybridge", *INT4, *INT8_CACHE)),
    Variant("llama.cpp Q4_0", "int4", "llama", Bits(Q4, Q4, 16), ("Q4_0", "f16")),
    Variant("llama.cpp Q4_0 q8_0 cache", "int4", "llama", Bits(Q4, Q4, 8.5), ("Q4_0", "q8_0")),
    Variant("llama.cpp Q4_0 rollback", "int4", "llama", Bits(Q4, Q4, 16), ("Q4_0", "f16"), rollback=8),
)
BASELINES = {"float32": "transformers eager", "int4": "llama.cpp Q4_0"}
GROUPS = tuple(BASELINES)
