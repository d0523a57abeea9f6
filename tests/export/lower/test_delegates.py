"""A prefill is cut between two operators on state: one part a layer, with all products but those of the head's one row."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeProgramManager, to_edge
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from public_folders import (
    GEMMA3_OPTIONS,
    GEMMA_OPTIONS,
    GLM_OPTIONS,
    LFM2_VL_OPTIONS,
    LFM3_VL_OPTIONS,
    OMNI_OPTIONS,
    QWEN_OPTIONS,
    save_gemma3,
    save_gemma4,
    save_gemma4_unified,
    save_glm5_next,
    save_lfm2_vl,
    save_lfm3_vl,
    save_nemotron_h_omni,
    save_qwen3_5_pictures,
)
from tiny import tiny_config, tiny_model
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from hybridge.cache import HybridCache
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.lower.delegates import OWN, PRODUCTS, DelegatePartitioner, delegate_partitioner
from hybridge.export.lower.fusion import fuse
from hybridge.export.lower.lower import quick_lowering
from hybridge.export.lower.rewrite import drop_empty_operands, drop_idle_nodes, fold_constants, forget_provenance
from hybridge.export.model.vision import describe_pictures
from hybridge.export.pinned.delegates import compiled_bytes, hand_to
from hybridge.export.pinned.executorch import edge_config
from hybridge.export.pinned.openvino import compiled_blob
from hybridge.export.program.build import build_cache, build_encoder
from hybridge.export.program.methods import build_methods, picture_methods
from hybridge.export.program.state import State
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.imports import quiet
from hybridge.runtime.artifact.delegates import DELEGATES, DelegateName, Device, Stored
from hybridge.runtime.artifact.options import ExportOptions

LINEAR, FULL = "linear_attention", "full_attention"
SIZES: dict[str, Any] = {"max_seq_len": 64, "prefill_chunk": 32, "verify_len": 4, "snapshot_slots": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"num_hidden_layers": 4, "layer_types": [LINEAR, LINEAR, LINEAR, FULL]},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", FULL]},
    "gemma3_text": {"num_hidden_layers": 2},
    "granitemoehybrid": {"num_hidden_layers": 4, "layer_types": ["mamba", "attention", "mamba", "attention"]},
    "mamba2": {"num_hidden_layers": 2},
}
THOROUGH = ("gemma3_text", "mamba2")
PICTURES: list[tuple[Callable[[Path], None], ExportOptions]] = [
    (save_qwen3_5_pictures, QWEN_OPTIONS),
    (save_gemma3, GEMMA3_OPTIONS),
    (save_gemma4, GEMMA_OPTIONS),
    (save_gemma4_unified, GEMMA_OPTIONS),
    (save_lfm3_vl, LFM3_VL_OPTIONS),
    (save_glm5_next, GLM_OPTIONS),
    (save_nemotron_h_omni, OMNI_OPTIONS),
]


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=pytest.mark.thorough if each in THOROUGH else ()) for each in FAMILIES]
)
def test_a_layer_is_one_part_and_the_state_stays_outside(family: str) -> None:
    program = traced(family).exported_program()
    found = DelegatePartitioner({}).partition(program)
    assert len(found.partition_tags) <= FAMILIES[family]["num_hidden_layers"] + 1
    inside, outside = split(list(program.graph.nodes))
    assert [tuple(node.meta["val"].shape) for node in outside if node.target in PRODUCTS] == [(1, 1, 131)], "the head's one row"
    assert sum(map(products, inside)) >= 0.98 * sum(map(products, inside + outside))
    ours = {node.target.__name__ for node in outside if "hybridge" in str(node.target)}
    assert ours <= {"hybridge.attention.default", "hybridge.linear.default"}
    assert {node.target for node in outside}.isdisjoint(OWN)
    assert all(value.dtype == torch.float32 for node in inside for value in values(node))


@pytest.mark.parametrize(
    ("save", "options"),
    [(save_lfm2_vl, LFM2_VL_OPTIONS), *(pytest.param(*each, marks=pytest.mark.thorough) for each in PICTURES)],
)
def test_an_encoder_of_pictures_is_cut_between_its_layers(
    save: Callable[[Path], None], options: ExportOptions, tmp_path: Path
) -> None:
    save(tmp_path)
    program = traced_encoder(tmp_path, options).exported_program()
    found = DelegatePartitioner({}).partition(program)
    inside, outside = split(list(program.graph.nodes))
    layers = [node for node in outside if node.target.__name__ == "hybridge.attention.default" or "any" in node.target.__name__]
    assert 1 <= len(found.partition_tags) <= len(layers) + 1
    assert sum(map(products, inside)) > 0
    assert {node.target for node in outside}.isdisjoint(PRODUCTS | OWN)


def traced(family: str) -> EdgeProgramManager:
    """The prefill of a model before parts are cut out of it."""
    model = tiny_model(tiny_config(family, **FAMILIES[family]))
    cache = HybridCache.from_config(model.config, kernels=HybridgeKernels(), **SIZES)
    return to_parts(*build_methods(State(model, cache))["prefill"])


def traced_encoder(checkpoint: Path, options: ExportOptions) -> EdgeProgramManager:
    """The longest encoder of a checkpoint's pictures, likewise."""
    source = resolve_checkpoint(checkpoint)
    pictures = describe_pictures(source.config, checkpoint, options)
    assert pictures is not None
    loaded = load_checkpoint(source, pictures=True)
    encoder = build_encoder(loaded, options, pictures, print)
    state = State(loaded.model, build_cache(source.config, options, pictures=pictures), vision=encoder)
    return to_parts(*picture_methods(state, pictures)["vision_encoder"])


def to_parts(module: nn.Module, example: tuple[Tensor, ...]) -> EdgeProgramManager:
    with quiet(), torch.no_grad(), quick_lowering():
        program = torch.export.export(module, example, strict=False)
        for rewrite in (forget_provenance, drop_idle_nodes, fold_constants, drop_empty_operands):
            rewrite(program)
        fuse(program, for_delegate=True)
        return to_edge(program, compile_config=edge_config())


LOWERED = [("vulkan", "GPU", "float32"), ("coreml", "ALL", "int4")]


@pytest.mark.parametrize(
    ("name", "device", "weights", "family"),
    [
        pytest.param(*row, family, marks=() if family == "lfm2" else pytest.mark.thorough)
        for row in LOWERED
        for family in FAMILIES
    ],
)
def test_parts_are_compiled_for_what_is_not_here(name: DelegateName, device: Device, weights: Stored, family: str) -> None:
    """Their runtimes are on phones; the compilers are in ExecuTorch's wheel, and coremltools."""
    if not DELEGATES[name].is_installed:
        pytest.skip(f"{DELEGATES[name].title} is not installed")
    options = ExportOptions(delegate=name, delegate_device=device, delegate_weights=weights)
    with quiet(), torch.no_grad(), quick_lowering():
        edge = traced(family).to_backend({"forward": delegate_partitioner(options)})
    program = edge.exported_program()
    hand_to(program, DELEGATES[name].backend)
    parts = {key: part for key, part in program.graph_module.named_children() if isinstance(part, LoweredBackendModule)}
    assert 1 < len(parts) <= FAMILIES[family]["num_hidden_layers"] + 1
    assert {part.backend_id for part in parts.values()} == {DELEGATES[name].backend}
    assert not any(b"hybridge" in part.processed_bytes for part in parts.values()), "an operator of ours"
    calls = [node for node in program.graph.nodes if node.target is executorch_call_delegate]
    assert {call.args[0].target for call in calls} == parts.keys()
    state = set(program.graph_signature.buffers_to_mutate.values())
    read = {program.graph_signature.inputs_to_buffers.get(each.name) for call in calls for each in call.all_input_nodes}
    assert read.isdisjoint(state)
    assert compiled_bytes(program) >= sum(len(part.processed_bytes) for part in parts.values())


def split(nodes: list[Node]) -> tuple[list[Node], list[Node]]:
    """The operators inside and outside of parts."""
    calls = [node for node in nodes if node.op == "call_function"]
    return [n for n in calls if "delegation_tag" in n.meta], [n for n in calls if "delegation_tag" not in n.meta]


def values(node: Node) -> list[Tensor]:
    value = node.meta["val"]
    return [value] if isinstance(value, Tensor) else list(value)


def products(node: Node) -> int:
    """Multiplications of a product."""
    if node.target not in PRODUCTS:
        return 0
    return prod(node.meta["val"].shape) * node.args[0].meta["val"].shape[-1]


@pytest.mark.skipif(not DELEGATES["openvino"].is_installed, reason="OpenVINO is not installed")
@pytest.mark.parametrize(("stored", "bound"), [("float32", 1e-6), ("float16", 1e-3), ("int8", 1e-2), ("int4", 0.15)])
def test_weights_of_fewer_bits_compute_what_they_are_rounded_to(stored: str, bound: float) -> None:
    """Against the layer in float32; a scale for each row, or for each 64 columns of 4 bits."""
    import openvino as ov

    layer = torch.nn.Linear(128, 64)
    x = torch.randn(1, 8, 128)
    blob = compiled_blob(make_fx(layer)(x), [x.shape], "CPU", stored)
    (found,) = ov.Core().import_model(blob, "CPU")(x.numpy()).values()
    wanted = layer(x).detach().numpy()
    assert np.linalg.norm(found - wanted) < bound * np.linalg.norm(wanted)
    assert len(blob) < {"float32": 50_000, "float16": 30_000, "int8": 20_000, "int4": 16_000}[stored]
