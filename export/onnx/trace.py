"""From the graphs' modules to ONNX models: trace with dynamic sizes, translate, name what goes in and comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import PreTrainedModel

from hybridge.cache.quiet import quiet
from hybridge.export.lowering.lower import explained
from hybridge.export.onnx.graphs import CommitGraph, ModelGraph
from hybridge.export.onnx.traced_cache import MOST_TOKENS, Entry, TracedCache, names
from hybridge.export.pinned.onnx import fuse_norms

OPSET = 24

TOKENS, TOTAL, ROWS = 5, 9, 11
"""Of the example inputs: sizes that differ, and none of them 1, which torch takes for fixed."""


def trace_model(model: PreTrainedModel, cache: TracedCache) -> onnx_ir.Model:
    """Trace the graph of ``ModelGraph``; first_logit may be left out and is then 0. The model is adapted in place."""
    tokens, total, rows = (Dim(name, min=1, max=MOST_TOKENS) for name in ("T", "total", "rows"))
    past = [_example(entry) for entry in cache.states for _ in entry.names]
    grows = [{2: rows} if entry.positional else None for entry in cache.states for _ in entry.names]
    zeros = torch.zeros(1, TOKENS, dtype=torch.long)
    inputs = (zeros, torch.ones(1, TOTAL, dtype=torch.long), torch.tensor(0), past)
    made = _translate(ModelGraph(model, cache), inputs, ({1: tokens}, {1: total}, None, grows))
    graph = made.graph
    states, staged = cache.states, names(cache.staged_inputs, "staged")
    _name(graph.inputs, ["input_ids", "attention_mask", "first_logit", *names(states, "past_key_values")])
    _name(graph.outputs, ["logits", *names(states, "present"), *staged])
    first = next(each for each in graph.inputs if each.name == "first_logit")
    first.const_value = onnx_ir.tensor(np.array(0), name=first.name)
    graph.register_initializer(first)
    return made


def trace_commit(cache: TracedCache, staged: Sequence[Sequence[int]]) -> onnx_ir.Model:
    """Trace the graph of ``CommitGraph``; staged are the shapes of what a block stages, whose second axis is of no account."""
    tokens = Dim("T", min=1, max=MOST_TOKENS)
    past = [_example(entry) for entry in cache.bounded for _ in entry.names]
    rows = [torch.zeros(1, TOKENS, *shape[2:]) for shape in staged]
    inputs = (torch.ones(1, dtype=torch.long), past, rows)
    made = _translate(CommitGraph(cache), inputs, (None, [None] * len(past), [{1: tokens}] * len(rows)))
    graph = made.graph
    _name(graph.inputs, ["count", *names(cache.bounded, "past_key_values"), *names(cache.staged_inputs, "staged")])
    _name(graph.outputs, names(cache.bounded, "present"))
    return made


def _example(entry: Entry) -> Tensor:
    shape = list(entry.shape)
    if entry.positional:
        shape[2] = ROWS
    return torch.zeros(shape)


def _translate(module: nn.Module, inputs: tuple[Any, ...], dynamic: tuple[Any, ...]) -> onnx_ir.Model:
    with quiet(), torch.no_grad():
        with explained("torch.export"):
            program = torch.export.export(module, inputs, dynamic_shapes=dynamic, strict=False)
        with explained("the translation to ONNX"):
            made = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False)
    assert made is not None
    fuse_norms(made.model)
    return made.model


def _name(values: Sequence[onnx_ir.Value], names: Sequence[str]) -> None:
    for value, name in zip(values, names, strict=True):
        value.name = name
