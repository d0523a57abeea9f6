"""Layers that are put into a lowered program: it has every byte of the one for which all layers were lowered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from torch import nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from hybridge.cache import HybridCache
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.lower import delegates, layer_copies
from hybridge.export.lower.lower import lower
from hybridge.export.lower.repeat import RepeatedLayers
from hybridge.export.lower.sources import mark_sources
from hybridge.export.pinned.delegates import Compiled
from hybridge.export.pinned.executorch import StoredTensor, file_parts
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.runtime.artifact.manifest import program_method
from hybridge.runtime.artifact.options import ExportOptions

OPTIONS = ExportOptions(kernels="hybridge", backend="portable", quantize="none", embedding_quantize="none")
LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}


def state_of(family: str, layers: int, taps: tuple[int, ...] = (), **overrides: Any) -> State:
    """A model over its cache, ready to be lowered."""
    torch.manual_seed(0)
    model = lively(tiny_model(tiny_config(family, num_hidden_layers=layers, **overrides)))
    sizes = {"max_seq_len": 32, "prefill_chunk": 5, "verify_len": 3, "snapshot_slots": 1}
    state = State(model, HybridCache.from_config(model.config, kernels=HybridgeKernels(), **sizes), taps)  # type: ignore[arg-type]
    mark_sources(state)
    return state


def lowered(state: State, methods: tuple[str, ...], *, repeat: bool) -> tuple[bytes, list[str]]:
    """The file of a program with some methods, and the steps in which it was made."""
    steps: list[str] = []

    def step(what: str) -> AbstractContextManager[None]:
        steps.append(what)
        return nullcontext()

    made = build_methods(state, delegated={"delegate_prefill": "prefill"})
    named = {program_method(name): method for name, method in made.items() if name in methods}
    options = replace(OPTIONS, tap_layers=tuple(state.model.taps.places), delegate="openvino")
    program = lower(named, options=options, constants={}, step=step, holder=state if repeat else None)
    parts = (part.to_bytes() if isinstance(part, StoredTensor) else bytes(part) for part in file_parts(program))
    return b"".join(parts), steps


def left_out(state: State, *taps: int) -> list[int]:
    layers = RepeatedLayers.of(state, taps)
    return list(layers.repetition.left) if layers else []


TWO_KINDS: Mapping[str, Any] = {"layers": 10, "layer_types": [LINEAR, FULL] * 5}
MODELS: Mapping[str, tuple[dict[str, Any], list[int]]] = {
    # Qwen3.5's order of kinds: a kept layer behind many copies read the result of an earlier layer.
    "qwen3_5_text": ({"layers": 16, "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 4}, [1, 2, *range(4, 14)]),
    "llama": ({"layers": 8, "taps": (4,)}, [1, 2, 5, 6]),
    "qwen3_next": ({**TWO_KINDS, **EXPERTS}, list(range(2, 8))),
    "gemma3_text": ({"layers": 10, "layer_types": [SLIDING, FULL] * 5}, list(range(2, 8))),
    "lfm2": ({"layers": 10, "layer_types": ["conv", FULL] * 5}, list(range(2, 8))),
    "falcon_h1": ({"layers": 5}, [1, 2, 3]),
    "recurrent_gemma": ({"layers": 6}, [1, 3]),
}
DEFAULT = ("qwen3_5_text",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=() if each in DEFAULT else pytest.mark.thorough) for each in MODELS]
)
def test_a_program_has_every_byte_of_one_lowered_layer_by_layer(family: str) -> None:
    """``forward`` goes through the layers twice, because it may empty the state; ``commit`` through the cache's alone."""
    sizes, left = MODELS[family]
    state = state_of(family, **sizes)
    taps = state.model.taps.places
    assert left_out(state, *taps) == left
    methods = ("decode",) if taps else ("forward", "commit")
    quick, steps = lowered(state, methods, repeat=True)
    assert steps == [f"Tracing {len(methods)} methods", "Lowering to portable", "Planning memory"]
    assert quick == lowered(state, methods, repeat=False)[0]
    assert not any("Passing" in type(each).__name__ for each in state.modules())


def test_parts_for_an_accelerator_are_those_of_one_lowered_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part stands for the numbers that it computes here; parts that are alike are traced once, or each for itself."""

    def computed(part: GraphModule, shapes: Sequence[Sequence[int]], device: str, weights: str) -> Compiled:
        found = part(*(torch.linspace(-1, 1, prod(shape)).reshape(shape) for shape in shapes))
        return Compiled(processed_bytes=b"".join(each.numpy().tobytes() for each in tree_leaves(found)))

    monkeypatch.setitem(delegates.COMPILERS, "openvino", computed)  # type: ignore[arg-type]
    state = state_of("llama", 6)
    assert left_out(state) == [1, 2, 3, 4]
    quick, steps = lowered(state, ("delegate_prefill",), repeat=True)
    assert steps.count("Compiling parts for openvino") == 1
    numbers = count()
    monkeypatch.setattr(delegates, "form_of", lambda _: str(next(numbers)))
    assert quick == lowered(state, ("delegate_prefill",), repeat=False)[0]


def test_only_layers_that_nothing_else_reads_and_that_are_alike_are_left_out() -> None:
    state = state_of("llama", 8)
    decoder: Any = state.get_submodule("model.decoder.layers")
    assert left_out(state) == [1, 2, 3, 4, 5, 6]
    assert left_out(state, 4) == [1, 2, 5, 6]
    assert left_out(state, -1) == [1, 2, 3, 4, 5, 6]
    decoder[4].self_attn.scaling *= 2
    assert left_out(state) == [1, 2, 3, 5, 6]
    decoder[6].mlp.up_proj = decoder[0].mlp.up_proj
    assert left_out(state) == []


class NumberedNorm(nn.Module):
    """Scales by the number of its layer, which is in no attribute."""

    def __init__(self, original: nn.Module, layer_idx: int) -> None:
        super().__init__()
        self.original, self.layer_idx = original, layer_idx

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.original(hidden) * (1.0 + self.layer_idx)
        return scaled


def test_a_layer_that_would_read_an_earlier_one_than_the_last_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_copies._Method, "_take_from", lambda *_: None)
    assert lowered(state_of("llama", 4), ("decode",), repeat=True)[1].count("Tracing 1 methods") == 2


def test_a_model_whose_layers_look_alike_and_are_not_is_lowered_whole() -> None:
    state = state_of("llama", 6)
    decoder: Any = state.get_submodule("model.decoder.layers")
    for index, layer in enumerate(decoder):
        layer.input_layernorm = NumberedNorm(layer.input_layernorm, index)
    mark_sources(state)
    program, steps = lowered(state, ("decode",), repeat=True)
    assert steps.count("Tracing 1 methods") == 2
    assert program == lowered(state, ("decode",), repeat=False)[0]
