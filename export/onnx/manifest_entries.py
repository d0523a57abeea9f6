"""The manifest entries of an ONNX artifact's state and methods, which a Session sees as those of any other artifact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import onnx_ir

from hybridge.export.onnx.traced_cache import Entry, TracedCache
from hybridge.runtime.artifacts.manifest import LayerEntry, MethodEntry, OnnxStaged, OnnxStateEntry, TensorEntry
from hybridge.runtime.artifacts.options import ExportOptions, shorter_verify

FLOAT: Final = "float32"
INTEGER: Final = "int64"
FLOAT_BYTES = 4

STAGED = "staged."


def state_entries(cache: TracedCache) -> list[OnnxStateEntry]:
    """Return the tensors of the state in the order of the graph's inputs."""
    return [
        OnnxStateEntry(name=name, shape=list(entry.shape), dtype=FLOAT, kind="positional" if entry.positional else "bounded")
        for entry in cache.states
        for name in entry.names
    ]


def staged_entries(model: onnx_ir.Model, tokens: int) -> list[OnnxStaged]:
    """Return what blocks stage, by the graph's outputs; shapes for a block of ``tokens``."""
    staged = [value for value in model.graph.outputs if value.name and value.name.startswith(STAGED)]
    return [OnnxStaged(name=_name(value), shape=_shape(value, tokens), dtype=FLOAT) for value in staged]


def layer_entries(cache: TracedCache, staged: Sequence[OnnxStaged], slots: int) -> list[LayerEntry]:
    """Return each layer's tensors and bytes.

    Bounded states are there twice, as a call reads one and writes the other; that and what is staged is what a rollback adds.
    """
    return [
        LayerEntry(
            kind=layer.kind,
            buffers=_buffers(_of(index, cache.states)),
            state_bytes=_bytes(_of(index, cache.states)),
            rollback_bytes=_bytes(_of(index, cache.bounded))
            + sum(_size(each.shape) for each in staged if _index(each.name) == index),
            slot_bytes=slots * _bytes(_of(index, cache.bounded)),
        )
        for index, layer in enumerate(cache.cache_layers())
    ]


def method_entries(options: ExportOptions, vocab_size: int, operators: list[str]) -> dict[str, MethodEntry]:
    """Return the methods with their signatures in a .pte; those that run the graph name its contrib operators."""
    number = TensorEntry(shape=[1], dtype=INTEGER)

    def method(inputs: list[TensorEntry], output: TensorEntry) -> MethodEntry:
        runs = operators if output.dtype == FLOAT else []
        return MethodEntry(inputs=inputs, outputs=[output], operators=runs, delegates={})

    def logits(count: int) -> TensorEntry:
        return TensorEntry(shape=[1, count, vocab_size], dtype=FLOAT)

    def tokens(count: int) -> TensorEntry:
        return TensorEntry(shape=[1, count], dtype=INTEGER)

    verifies = {shorter_verify(length): length for length in options.shorter_verify_lens} | {"verify": options.verify_len}
    moves = ("commit", "snapshot", "restore") if options.snapshot_slots else ("commit",)
    return {
        "prefill": method([tokens(options.prefill_chunk), number], logits(1)),
        "decode": method([tokens(1)], logits(1)),
        **{name: method([tokens(length)], logits(length)) for name, length in verifies.items()},
        "forward": method([tokens(1), number], logits(1)),
        **{name: method([number], number) for name in moves},
        "reset": method([], number),
    }


def _name(value: onnx_ir.Value) -> str:
    return (value.name or "").removeprefix(STAGED)


def _shape(value: onnx_ir.Value, tokens: int) -> list[int]:
    assert value.shape is not None
    return [size if isinstance(size, int) else tokens for size in value.shape]


def _of(index: int, entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if _index(entry.names[0]) == index]


def _index(name: str) -> int:
    return int(name.partition(".")[0])


def _buffers(entries: Sequence[Entry]) -> dict[str, TensorEntry]:
    return {
        name.partition(".")[2]: TensorEntry(shape=list(entry.shape), dtype=FLOAT) for entry in entries for name in entry.names
    }


def _bytes(entries: Sequence[Entry]) -> int:
    return sum(_size(entry.shape) * len(entry.names) for entry in entries)


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape) * FLOAT_BYTES
