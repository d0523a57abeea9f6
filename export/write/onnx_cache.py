"""Provide the cache of a traced ONNX graph: its buffers hold nothing but stand for the graph's inputs and outputs.

Also check that onnxruntime has operators for all layers, and describe state and methods for the manifest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx_ir
import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.families import build_layers, text_config
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.errors import UnsupportedModelError
from hybridge.export.write.onnx_kernels import OnnxKernels, padded
from hybridge.export.write.onnx_recurrences import RECURRENCES
from hybridge.runtime.artifact.manifest import LayerEntry, MethodEntry, OnnxStaged, OnnxStateEntry, TensorEntry
from hybridge.runtime.artifact.options import ExportOptions, shorter_verify

KINDS = frozenset({"full_attention", "latent_attention", "sliding_attention", "stateless"}).union(
    *(each.layers for each in RECURRENCES)
)
"""Kinds of layers that onnxruntime has operators for."""

TRANSPOSED = frozenset().union(*(each.layers for each in RECURRENCES if each.transposed))
"""Layers whose matrices are transposed in a HybridCache: [H, V, K]."""

MOST_TOKENS = 1 << 20
"""Most tokens of one call, longer than any context."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "keys": ("key", "value"),
    "values": (),
    "conv_state": ("conv_state",),
    "recurrent_state": ("recurrent_state",),
}
"""onnxruntime-genai's names of the tensors that a buffer stands for."""


@dataclass(frozen=True, kw_only=True)
class StateEntry:
    """A buffer and the tensors that it stands for, by layer and name, such as ``0.key``.

    shape: of each tensor, for a state of ``max_seq_len`` positions; empty for staged ones, whose shapes the graph
    decides. positional: they have a row for each position in axis 2, [1, G, R, D]; otherwise their size is bounded.
    """

    buffer: Tensor
    names: tuple[str, ...]
    shape: tuple[int, ...] = ()
    positional: bool = False


class TracedCache(HybridCache):
    """A cache over ``OnnxKernels`` in which any number of tokens fits one block.

    Raises UnsupportedModelError for layers that onnxruntime has no operators for.
    """

    def __init__(self, config: Any, max_seq_len: int) -> None:
        sizes = CacheSizes(max_seq_len=max_seq_len, prefill_chunk=1, verify_len=MOST_TOKENS)
        kernels = OnnxKernels()
        with torch.device("meta"):
            super().__init__(build_layers(text_config(config), sizes, kernels), sizes)
        check_layers(self.cache_layers())
        self.held = kernels.held
        self.states = [entry for index, part in self._parts() for entry in _states(index, part, max_seq_len)]
        self.staged_inputs = [
            StateEntry(buffer=part.get_buffer(name), names=(f"{index}.{name.removeprefix('staged_')}",))
            for index, part in self._parts()
            for name in part.staged
        ]

    @property
    def bounded(self) -> list[StateEntry]:
        """Return the states that a commit changes."""
        return [entry for entry in self.states if not entry.positional]

    def hold(self, entries: Iterable[StateEntry], tensors: Iterable[Tensor]) -> None:
        """Let the buffers stand for these tensors, given in the order of the entries' names."""
        given = iter(tensors)
        for entry in entries:
            self.held[entry.buffer] = tuple(next(given) for _ in entry.names)

    def now(self, entries: Iterable[StateEntry]) -> list[Tensor]:
        """Return the tensors that the buffers stand for after a run."""
        return [tensor for entry in entries for tensor in self.held[entry.buffer]]

    def _parts(self) -> Iterator[tuple[int, CacheLayer]]:
        for index, layer in enumerate(self.cache_layers()):
            yield from ((index, part) for part in layer.leaves())


def names(entries: Iterable[StateEntry], prefix: str) -> list[str]:
    """Return the graph's names of the entries' tensors."""
    return [f"{prefix}.{name}" for entry in entries for name in entry.names]


def check_layers(layers: Iterable[CacheLayer]) -> None:
    """Raise UnsupportedModelError with the kinds of layers that onnxruntime has no operators for."""
    parts = [layer.leaves() for layer in layers]
    obstacles = {_kind(part) for each in parts for part in each} - KINDS
    twice = {kind for each in parts for kind, count in Counter(part.kind for part in each).items() if count > 1}
    if obstacles or twice:
        what = ", ".join(sorted(obstacles)) or f"several of {', '.join(sorted(twice))} in one layer"
        raise UnsupportedModelError(
            f"--format onnx cannot run this model's layers: {what}. Export with --format pte, which can."
        )


def _kind(part: CacheLayer) -> str:
    chunked = isinstance(part, SlidingAttentionLayer) and part.ring.chunked
    return "chunked_attention" if chunked else part.kind


def _states(index: int, part: CacheLayer, rows: int) -> Iterator[StateEntry]:
    for name in (*part.committed, *part.positional):
        buffer = part.get_buffer(name)
        shape, positional = tuple(buffer.shape), name == "keys"
        if positional:
            widest = max(each.shape[3] for other, each in part.named_buffers() if other in ("keys", "values"))
            shape = (1, shape[2], rows, padded(widest))
        elif name == "recurrent_state" and part.kind in TRANSPOSED:
            shape = (*shape[:2], shape[3], shape[2])
        if NAMES[name]:
            yield StateEntry(
                buffer=buffer, names=tuple(f"{index}.{each}" for each in NAMES[name]), shape=shape, positional=positional
            )


# Manifest entries of state and methods

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
    """Return the tensors that blocks stage, by the graph's outputs, with shapes for a block of ``tokens``."""
    staged = [value for value in model.graph.outputs if value.name and value.name.startswith(STAGED)]
    return [OnnxStaged(name=_name(value), shape=_shape(value, tokens), dtype=FLOAT) for value in staged]


def layer_entries(cache: TracedCache, staged: Sequence[OnnxStaged], slots: int) -> list[LayerEntry]:
    """Return each layer's tensors and bytes.

    A rollback needs a second copy of bounded states, because a call reads one and writes the other, and the staged
    tensors.
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


def _of(index: int, entries: Sequence[StateEntry]) -> list[StateEntry]:
    return [entry for entry in entries if _index(entry.names[0]) == index]


def _index(name: str) -> int:
    return int(name.partition(".")[0])


def _buffers(entries: Sequence[StateEntry]) -> dict[str, TensorEntry]:
    return {
        name.partition(".")[2]: TensorEntry(shape=list(entry.shape), dtype=FLOAT) for entry in entries for name in entry.names
    }


def _bytes(entries: Sequence[StateEntry]) -> int:
    return sum(_size(entry.shape) * len(entry.names) for entry in entries)


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape) * FLOAT_BYTES
