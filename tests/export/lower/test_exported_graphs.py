"""What the exported graphs of every family look like, without lowering them."""

from collections.abc import Mapping

import pytest
import torch
from tiny import tiny_config, tiny_model
from torch.export import ExportedProgram

from hybridge.cache import HybridCache
from hybridge.cache.operations.kernels import CoreKernels, Kernels
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.lower.lower import quick_lowering
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.imports import quiet

pytestmark = pytest.mark.slow

KERNELS: Mapping[str, type[Kernels]] = {"aten": CoreKernels, "llm": LlmKernels}
LAYERS = 2
INPUTS = {
    "prefill": ["tokens", "n"], "decode": ["tokens"], "verify": ["tokens"], "forward": ["tokens", "start_pos"],
    "commit": ["n"], "snapshot": ["slot"], "restore": ["slot"], "reset": [],
}  # fmt: skip


GRAPHS = [
    *(("qwen3_5_text", "aten"), ("mistral", "llm")),
    *(
        pytest.param(each, marks=pytest.mark.thorough)
        for each in (("qwen3_5_text", "llm"), ("mistral", "aten"), ("llama", "aten"), ("llama", "llm"))
    ),
]


@pytest.fixture(scope="module", params=GRAPHS, ids="-".join)
def programs(request: pytest.FixtureRequest) -> tuple[str, dict[str, ExportedProgram]]:
    family, kernels = request.param
    model = tiny_model(tiny_config(family))
    sizes = {"max_seq_len": 64, "prefill_chunk": 17, "verify_len": 5, "snapshot_slots": 2}
    state = State(model, HybridCache.from_config(model.config, kernels=KERNELS[kernels](), **sizes))  # type: ignore[arg-type]
    with quiet(), torch.no_grad(), quick_lowering():
        return kernels, {
            name: torch.export.export(module, example, strict=False) for name, (module, example) in build_methods(state).items()
        }


def operators(program: ExportedProgram) -> list[str]:
    """The operators that are left to lower; assertions are dropped by it."""
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function" and "assert" not in str(n.target)]


def test_methods_take_tokens_and_counts_and_nothing_else(programs: tuple[str, dict[str, ExportedProgram]]) -> None:
    """No cache_position, mask or position id: lengths are state."""
    _, exported = programs
    assert {name: list(program.graph_signature.user_inputs) for name, program in exported.items()} == INPUTS


def test_graphs_are_small_and_do_not_grow_with_the_block(programs: tuple[str, dict[str, ExportedProgram]]) -> None:
    """transformers' chunk rule alone unrolls to 3,200 nodes for 8 tokens."""
    kernels, exported = programs
    calls = {name: len(operators(program)) for name, program in exported.items()}
    assert calls["decode"] <= (120 if kernels == "llm" else 160) * LAYERS + 100, calls
    assert calls["prefill"] <= calls["decode"] + (LAYERS * 80 if kernels == "aten" else 10)


def test_commit_runs_no_layer_of_the_model(programs: tuple[str, dict[str, ExportedProgram]]) -> None:
    _, exported = programs
    assert not {name for name in operators(exported["commit"]) if "linear" in name or "embedding" in name}
    assert {name for name in operators(exported["decode"]) if "linear" in name}


def test_core_kernels_need_no_operator_of_a_runtime(programs: tuple[str, dict[str, ExportedProgram]]) -> None:
    kernels, exported = programs
    custom = {name for each in exported.values() for name in operators(each) if name.startswith("llama")}
    assert bool(custom) == (kernels == "llm")


def test_every_method_shares_every_buffer_by_name(programs: tuple[str, dict[str, ExportedProgram]]) -> None:
    _, exported = programs
    names = [set(each.graph_signature.inputs_to_buffers.values()) for each in exported.values()]
    assert all(each == names[0] for each in names)
    assert "state.cache.length" in names[0]


@pytest.mark.parametrize("family", ["qwen3_5_text", "kimi_linear", "mamba2", "jamba", "minimax", "recurrent_gemma", "lfm2"])
def test_recurrent_state_is_written_in_place(family: str) -> None:
    """With our kernels no method copies a layer's buffer: what is copied are the cache's own few numbers."""
    model = tiny_model(tiny_config(family))
    sizes = {"max_seq_len": 64, "prefill_chunk": 17, "verify_len": 5}
    state = State(model, HybridCache.from_config(model.config, kernels=HybridgeKernels(), **sizes))  # type: ignore[arg-type]
    methods = build_methods(state)
    for name in ("prefill", "verify", "commit"):  # a decode is a prefill of one token
        module, example = methods[name]
        with quiet(), torch.no_grad(), quick_lowering():
            program = torch.export.export(module, example, strict=False)
        copied = {str(node.args[0]) for node in program.graph.nodes if node.target == torch.ops.aten.copy_.default}
        buffers = {each for each in copied if "recurrent_state" in each or "conv_state" in each or "staged_" in each}
        assert not buffers, name
