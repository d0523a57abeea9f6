"""Pack layers while the checkpoint is being read, each as soon as its weights are there, so that few are in memory in full.

A checkpoint may be larger than memory then: what stays are the packed weights. Tied weights, and an embedding, wait in the type
of their file until everything has been read; ``quantize`` packs those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from hybridge.export.checkpoint.text_model import text_decoder
from hybridge.export.layers.experts import projections
from hybridge.export.pinned.transformers_loading import Reader, initialized, tied_weights
from hybridge.export.quantization.packing import pack_experts
from hybridge.export.quantization.quantizable import linears
from hybridge.export.quantization.quantize import is_own, is_packed, replace_linear, rounder_of
from hybridge.runtime.artifacts.options import ExportOptions


def packer(options: ExportOptions) -> Reader | None:
    """Return what packs a model's layers while it is being read, as an artifact with ``options`` has them, if it packs any."""
    return PackedWhileRead(options) if is_packed(options) else None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """linears, experts: names of the modules that are packed as they come; kept: names of weights that are packed some time."""

    linears: frozenset[str]
    experts: frozenset[str]
    kept: frozenset[str]


class PackedWhileRead:
    """Packs the text layers of the one model that it is told of."""

    def __init__(self, options: ExportOptions) -> None:
        self.options = options
        self._layout: Layout | None = None

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Return whether weight ``name`` is packed, now or later: it need not become float32 before."""
        return name in self.layout(model).kept

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Pack the layer that weight ``name`` is of, if it was the last one. Raises UsageError as ``quantize`` does."""
        path, layout = name.rpartition(".")[0], self.layout(model)
        if path not in layout.linears | layout.experts:
            return
        module = model.get_submodule(path)
        if any(weight.is_meta for weight in module.parameters()):
            return
        if path in layout.linears:
            assert isinstance(module, nn.Linear)
            replace_linear(model, path, module, self.options)
        else:
            pack_experts(path, module, self.options, rounder_of(self.options))
        packed = model.get_submodule(path)
        # Its tensors too: a module around it may give them first values (RecurrentGemma's its linear layers' biases).
        for each in (*packed.modules(), *packed.parameters(), *packed.buffers()):
            initialized(each)

    def layout(self, model: PreTrainedModel) -> Layout:
        """Return what of ``model`` is packed and when, as its modules were before any of them was."""
        if self._layout is None:
            self._layout = _layout(model, self.options)
        return self._layout


def _layout(model: PreTrainedModel, options: ExportOptions) -> Layout:
    text = {id(module) for module in (*text_decoder(model).modules(), model.get_output_embeddings())}
    named = {name: module for name, module in model.named_modules() if id(module) in text}
    layers = {f"{name}.weight": name for name, _ in linears(model) if name in named}
    layers = layers if is_own(options) or options.quantize != "none" else {}
    stacks = {f"{name}.{each}": name for name, module in named.items() for each in projections(module)}
    stacks = stacks if is_own(options) else {}
    tied = tied_weights(model)
    return Layout(
        linears=frozenset(name for weight, name in layers.items() if weight not in tied),
        experts=frozenset(name for weight, name in stacks.items() if weight not in tied),
        kept=frozenset((*layers, *stacks, *_embeddings(model, options))),
    )


def _embeddings(model: PreTrainedModel, options: ExportOptions) -> Iterator[str]:
    """The weights of the embedding and of what is tied to it, where they are packed and the embedding is a mere table."""
    table = model.get_input_embeddings()
    name = next(f"{name}.weight" for name, module in model.named_modules() if module is table)
    tied = {target for target, source in model.all_tied_weights_keys.items() if source == name}
    if type(table) is nn.Embedding and (
        options.embedding_quantize != "none" or (is_own(options) and tied) or options.quantize == "keep"
    ):
        yield from (name, *tied)
