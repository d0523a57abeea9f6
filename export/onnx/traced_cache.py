"""The cache of a graph that is being traced: its buffers hold nothing, they stand for inputs and outputs.

Which tensors those are, what onnxruntime-genai calls them, and which layers there are operators for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import UnsupportedModelError
from hybridge.cache.families import build_layers, text_config
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.export.onnx.kernels import OnnxKernels, padded

KINDS = frozenset(
    {
        "full_attention",
        "gated_delta_net",
        "kimi_delta_attention",
        "latent_attention",
        "lightning_attention",
        "mamba2",
        "short_conv",
        "sliding_attention",
        "stateless",
    }
)
"""The layers that onnxruntime has operators for."""

TRANSPOSED = frozenset({"lightning_attention", "mamba2"})
"""Layers whose matrices lie the other way round in a HybridCache: [H, V, K]."""

MOST_TOKENS = 1 << 20
"""Of one call, which no context is longer than."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "keys": ("key", "value"),
    "values": (),
    "conv_state": ("conv_state",),
    "recurrent_state": ("recurrent_state",),
}
"""What onnxruntime-genai calls the tensors that a buffer stands for."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A buffer and the tensors that it stands for, by layer and name, such as ``0.key``.

    shape: of each of them, for a state of ``max_seq_len`` positions; none for what is staged, which the graph decides.
    positional: a row for each position in axis 2, [1, G, R, D]; else bounded.
    """

    buffer: Tensor
    names: tuple[str, ...]
    shape: tuple[int, ...] = ()
    positional: bool = False


class TracedCache(HybridCache):
    """A cache over ``OnnxKernels`` for which any number of tokens fits one block.

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
            Entry(buffer=part.get_buffer(name), names=(f"{index}.{name.removeprefix('staged_')}",))
            for index, part in self._parts()
            for name in part.staged
        ]

    @property
    def bounded(self) -> list[Entry]:
        """Return the states that a commit moves."""
        return [entry for entry in self.states if not entry.positional]

    def hold(self, entries: Iterable[Entry], tensors: Iterable[Tensor]) -> None:
        """Let the buffers stand for these tensors, which are in the order of the entries' names."""
        given = iter(tensors)
        for entry in entries:
            self.held[entry.buffer] = tuple(next(given) for _ in entry.names)

    def now(self, entries: Iterable[Entry]) -> list[Tensor]:
        """Return what the buffers stand for after a run."""
        return [tensor for entry in entries for tensor in self.held[entry.buffer]]

    def _parts(self) -> Iterator[tuple[int, CacheLayer]]:
        for index, layer in enumerate(self.cache_layers()):
            yield from ((index, part) for part in layer.leaves())


def names(entries: Iterable[Entry], prefix: str) -> list[str]:
    """Return the graph's names of what the entries stand for."""
    return [f"{prefix}.{name}" for entry in entries for name in entry.names]


def check_layers(layers: Iterable[CacheLayer]) -> None:
    """Raises UnsupportedModelError, naming the kinds of layers in the way."""
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


def _states(index: int, part: CacheLayer, rows: int) -> Iterator[Entry]:
    for name in (*part.committed, *part.positional):
        buffer = part.get_buffer(name)
        shape, positional = tuple(buffer.shape), name == "keys"
        if positional:
            widest = max(each.shape[3] for other, each in part.named_buffers() if other in ("keys", "values"))
            shape = (1, shape[2], rows, padded(widest))
        elif name == "recurrent_state" and part.kind in TRANSPOSED:
            shape = (*shape[:2], shape[3], shape[2])
        if NAMES[name]:
            yield Entry(
                buffer=buffer, names=tuple(f"{index}.{each}" for each in NAMES[name]), shape=shape, positional=positional
            )
