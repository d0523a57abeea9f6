"""Write ONNX artifacts: trace the model, write the graph with its weights beside it, check, and describe them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn
from torch.export import Dim
from transformers import PreTrainedModel

from hybridge.cache.block import Block
from hybridge.errors import UsageError
from hybridge.export.lower.lower import explained
from hybridge.export.model.adapt import AdaptedModel
from hybridge.export.pinned.onnx import fuse_norms
from hybridge.export.pinned.torch_export import check
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.gptq import Calibrated
from hybridge.export.quantize.quantize import is_quantized
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.write.manifest import WeightFigures, manifest_of, write_tokenizer
from hybridge.export.write.onnx_cache import (
    MOST_TOKENS,
    StateEntry,
    TracedCache,
    layer_entries,
    method_entries,
    names,
    staged_entries,
    state_entries,
)
from hybridge.export.write.onnx_kernels import check_quantization, quantize_linears
from hybridge.imports import quiet
from hybridge.runtime.artifact.manifest import MANIFEST, ONNX_COMMIT, ONNX_PROGRAM, ONNX_WEIGHTS, Manifest, OnnxEntry
from hybridge.runtime.artifact.options import ExportOptions, check_verify_lens

CONTRIB = "com.microsoft"


class OnnxWriter:
    """Writes ``model.onnx`` and its commit for onnxruntime; see ``hybridge.export.api.Writer``."""

    def __init__(
        self,
        config: Any,
        options: ExportOptions,
        drafter: object = None,
        pictures: object = None,
        *,
        keep: bool = False,
        golden: bool = False,
    ) -> None:
        """Check the options and lay out the state; nothing is kept of a graph, and there are no golden steps.

        Raises UsageError for options that only a .pte has, UnsupportedModelError for layers that onnxruntime has no
        operators for.
        """
        check_options(options)
        check_verify_lens(options)
        check_quantization(options)
        self.options = options
        self.cache = TracedCache(config, options.max_seq_len)

    def reader(self) -> None:
        """Return None: weights are quantized once all have been read."""
        return

    def write(self, loaded: LoadedModel, folder: Path, steps: ExportProgress, calibrated: Calibrated | None = None) -> Manifest:
        """Write the artifact into ``folder``. Raises UnsupportedModelError, ExportFailedError and OSError."""
        options, cache = self.options, self.cache
        write_tokenizer(loaded, folder, steps)
        if is_quantized(options):
            with steps.step("Quantizing the weights"):
                quantize_linears(loaded.model, options, calibrated.rounder if calibrated else None)
        weights = WeightFigures.of(loaded.model)  # before the adaptation takes the model apart
        with steps.step("Tracing the model"):
            model = trace_model(loaded.model, cache)
        staged = staged_entries(model, options.verify_len)
        with steps.step(f"Writing {ONNX_PROGRAM}"):
            _write(model, folder / ONNX_PROGRAM)
        if cache.bounded:
            with steps.step("Tracing the commit"):
                _write(trace_commit(cache, [entry.shape for entry in staged]), folder / ONNX_COMMIT)
        write_genai_config(loaded, cache, folder, options)
        operators = sorted({f"{node.domain}::{node.op_type}" for node in model.graph if node.domain == CONTRIB})
        manifest = manifest_of(
            loaded,
            options,
            folder,
            weights=weights,
            layers=layer_entries(cache, staged, options.snapshot_slots),
            methods=method_entries(options, loaded.vocab_size, operators),
            libraries=("torch", "transformers", "onnx", "onnxscript", "onnxruntime"),
            onnx=OnnxEntry(opset=OPSET, contrib_operators=operators, states=state_entries(cache), staged=list(staged)),
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        return manifest

    def keep_packing(self, file: GgufFile, asked: ExportOptions, manifest: Manifest) -> None:
        """Keep nothing: a graph has its weights inside."""


PTE_ONLY = ("backend", "kernels", "embedding_quantize", "kv_cache", "tap_layers", "mtp", "draft_blocks", "draft_quantize")


def check_options(options: ExportOptions) -> None:
    """Raise UsageError for options that only a .pte has."""
    usual = ExportOptions()
    for name in PTE_ONLY:
        if (value := getattr(options, name)) != getattr(usual, name):
            option = "--" + name.replace("_", "-")
            given = option if isinstance(value, bool | tuple) else f"{option} {value}"
            raise UsageError(f"{given} is for --format pte; an ONNX export has onnxruntime's own operators. Leave it out.")


def _write(model: onnx_ir.Model, path: Path) -> None:
    """Write a graph, its large tensors beside it, and check the written file."""
    ClearMetadataAndDocStringPass()(model)  # the source lines of each node
    onnx_ir.save(model, path, external_data=ONNX_WEIGHTS if path.name == ONNX_PROGRAM else None)
    onnx.checker.check_model(str(path))


# Trace with dynamic sizes, translate to ONNX, and name inputs and outputs

OPSET = 24

TOKENS, TOTAL, ROWS = 5, 9, 11
"""Sizes of the example inputs: all different, and none 1, which torch takes for fixed."""


def trace_model(model: PreTrainedModel, cache: TracedCache) -> onnx_ir.Model:
    """Trace ``ModelGraph``, whose input first_logit is optional and 0 by default. The model is adapted in place."""
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
    """Trace ``CommitGraph``. staged: shapes of what a block stages; the second axis, its tokens, is ignored."""
    tokens = Dim("T", min=1, max=MOST_TOKENS)
    past = [_example(entry) for entry in cache.bounded for _ in entry.names]
    rows = [torch.zeros(1, TOKENS, *shape[2:]) for shape in staged]
    inputs = (torch.ones(1, dtype=torch.long), past, rows)
    made = _translate(CommitGraph(cache), inputs, (None, [None] * len(past), [{1: tokens}] * len(rows)))
    graph = made.graph
    _name(graph.inputs, ["count", *names(cache.bounded, "past_key_values"), *names(cache.staged_inputs, "staged")])
    _name(graph.outputs, names(cache.bounded, "present"))
    return made


def _example(entry: StateEntry) -> Tensor:
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


# The two graphs: the model with dynamic T, and the commit of a block's first tokens, without weights.
# Axes: T tokens of the call, P committed ones before them, V vocabulary.


class ModelGraph(nn.Module):
    """input_ids int64 [1, T], attention_mask int64 [1, P + T], first_logit int64 [] and past states -> logits, states, staged.

    Logits float32 [1, T - first_logit, V]. Only the size of the mask is used.
    """

    def __init__(self, model: PreTrainedModel, cache: TracedCache) -> None:
        super().__init__()
        self.model = AdaptedModel(model, cache)
        self.traced = (cache,)  # in a tuple, so that its buffers are not this module's
        self.requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, first_logit: Tensor, past: list[Tensor]) -> list[Tensor]:
        (cache,) = self.traced
        cache.hold(cache.states, past)
        T, total = input_ids.shape[1], attention_mask.shape[1]
        start, count = (torch.full((1,), size, dtype=torch.long) for size in (total - T, T))
        cache.block = Block(start=start, count=count, length=T, tentative=True)
        hidden = self.model.hidden(input_ids)
        logits = self.model.logits(_from(hidden, first_logit))
        return [logits, *cache.now(cache.states), *cache.now(cache.staged_inputs)]


class CommitGraph(nn.Module):
    """count int64 [1], bounded states and what a block staged -> the states after its first ``count`` tokens."""

    def __init__(self, cache: TracedCache) -> None:
        super().__init__()
        self.traced = (cache,)  # in a tuple, so that its buffers are not this module's

    def forward(self, count: Tensor, past: list[Tensor], staged: list[Tensor]) -> list[Tensor]:
        (cache,) = self.traced
        cache.hold(cache.bounded, past)
        cache.hold(cache.staged_inputs, staged)
        for layer in cache.cache_layers():
            layer.commit(count)
        return cache.now(cache.bounded)


def _from(hidden: Tensor, first: Tensor) -> Tensor:
    """Return hidden [1, T, hidden] from token ``first`` on."""
    number: int = first.item()  # type: ignore[assignment]  # a symbol while tracing
    check(number >= 0)
    check(number < hidden.shape[1])
    return hidden[:, number:]


# ``genai_config.json``, from which onnxruntime-genai runs the graph. Source: the model builder of onnxruntime-genai
# 0.18 (``models/builders/base.py``, ``make_genai_config``), which writes the same.

GENAI_CONFIG = "genai_config.json"


def write_genai_config(loaded: LoadedModel, cache: TracedCache, folder: Path, options: ExportOptions) -> None:
    """Write genai_config.json into ``folder``, with greedy decoding as the default, as ours is."""
    eos, config = loaded.eos_ids, loaded.config
    heads, _, width = next((entry.shape[1:] for entry in cache.states if entry.positional), (1, 1, 1))
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": ONNX_PROGRAM,
        "head_size": width,
        "hidden_size": config.hidden_size,
        "num_attention_heads": getattr(config, "num_attention_heads", heads),
        "num_key_value_heads": heads,
        "num_hidden_layers": config.num_hidden_layers,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
    }
    model = {
        "type": config.model_type,
        "bos_token_id": loaded.bos_id if loaded.bos_id is not None else 0,
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "pad_token_id": eos[0] if eos else 0,
        "context_length": options.max_seq_len,
        "vocab_size": loaded.vocab_size,
        "decoder": decoder,
    }
    search = {
        "do_sample": False,
        "max_length": options.max_seq_len,
        "min_length": 0,
        "num_beams": 1,
        "past_present_share_buffer": True,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
    (folder / GENAI_CONFIG).write_text(json.dumps({"model": model, "search": search}, indent=2) + "\n", encoding="utf-8")
