"""What ``hybridge.export.pinned.xnnpack`` and ``hybridge.export.lower.lower`` assume of XNNPACK's delegate is still so.

A test that fails after an update says what to look at.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack import _passes, xnnpack_preprocess
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.backend.canonical_partitioners.config_partitioner import format_target_name
from tiny import traced
from torch import Tensor, nn

from hybridge.export.lower.lower import OnceStored, UntiedLinear, quick_lowering, quiet
from hybridge.export.pinned import executorch, xnnpack
from hybridge.runtime import pinned
from hybridge.runtime.platforms import library_file


def test_the_delegate_and_its_option_have_their_names() -> None:
    assert xnnpack_preprocess.XnnpackBackend.__name__ == pinned.XNNPACK, "programs name the delegate otherwise"
    assert pinned.XNNPACK in executorch.extension()._get_registered_backend_names(), "the runtime names the delegate otherwise"
    library = (pinned.library_folder() / library_file(pinned.XNNPACK_LIBRARY)).read_bytes()
    assert b"weight_cache_enabled" in library, "XNNPACK packs weights for each method: see runtime/native/pte/program.cpp"


def test_the_passes_that_are_left_out_are_there() -> None:
    names = [each.__name__ for each in _passes.XNNPACKPassManager(None).passes]
    gone = (xnnpack.POINTLESS_PASSES | xnnpack.SOUGHT.keys()) - set(names)
    assert not gone, f"XNNPACK has no passes {gone}: look at {names} for their new names in POINTLESS_PASSES and SOUGHT"
    with quiet(), xnnpack.fewer_passes():
        joined = to_edge(traced(lambda x: torch.cat([x, x]), torch.ones(2))).exported_program()
        left = [each.__name__ for each in xnnpack_preprocess.XNNPACKPassManager(joined).passes]
    idle = xnnpack.POINTLESS_PASSES | (xnnpack.SOUGHT.keys() - {"DecomposeConcatenate"})
    assert left == [name for name in names if name not in idle]
    looked_up = xnnpack_preprocess.XnnpackBackend.preprocess.__code__.co_names
    assert "XNNPACKPassManager" in looked_up, "the preprocess makes its passes elsewhere: fewer_passes() patches nothing"


@pytest.mark.parametrize("name", sorted(xnnpack.SOUGHT))
def test_a_pass_that_may_be_left_out_names_what_it_seeks(name: str) -> None:
    """Its source has every operator that is in the table, and no other that it would begin to change with."""
    made = next(each for each in _passes.XNNPACKPassManager(None).passes if each.__name__ == name)
    source = inspect.getsource(inspect.getmodule(made) or made)
    for operator in xnnpack.SOUGHT[name] - {"dim_order_ops._to_dim_order_copy.default"}:
        assert operator in source, f"{name} does not look for {operator} any more: see SOUGHT in export/pinned/xnnpack.py"


@pytest.mark.slow
def test_a_weight_of_two_methods_is_held_once() -> None:
    layer = nn.Linear(8, 8).requires_grad_(False)
    programs = {name: traced(layer, torch.ones(2, 8)) for name in ("first", "second")}
    with quiet(), quick_lowering():
        edge = to_edge_transform_and_lower(programs, partitioner={name: [OnceStored()] for name in programs})
    first, second = (edge.exported_program(name).graph_module.lowered_module_0.named_data_store_output for name in programs)
    assert len(first.buffers) == 2, "weights are stored elsewhere: see weights_held_once() in export/pinned/xnnpack.py"
    assert all(one is other for one, other in zip(first.buffers, second.buffers, strict=True)), "each method holds its own copy"


def test_the_configs_that_are_replaced_are_those_of_their_operators() -> None:
    chosen = xnnpack.configs(UntiedLinear)
    targets = [format_target_name(each.target_name) for each in chosen]
    assert "linear.default" in targets
    assert "bmm.default" not in targets, "products are taken by another config: their weights would be stored twice"
    assert [each for each in chosen if issubclass(each, xnnpack.LinearConfig)] == [UntiedLinear]


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(tokens))
        return out


POINTS = torch.linspace(-3, 3, 64)[None]


@pytest.fixture(scope="module")
def partitioned() -> Any:
    """An edge program with a tied and an untied output layer, and an approximate gelu, as XNNPACK takes them."""
    tokens = (torch.ones(1, 3, dtype=torch.long),)
    heads = {"tied": Tied(tied=True), "untied": Tied(tied=False)}
    programs = {name: torch.export.export(each.requires_grad_(False), tokens, strict=False) for name, each in heads.items()}
    programs["gelu"] = traced(lambda x: nn.functional.gelu(x, approximate="tanh"), POINTS)
    with quiet(), quick_lowering():
        return to_edge_transform_and_lower(programs, partitioner={name: [OnceStored()] for name in programs})


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_xnnpack_asks_whether_it_may_take_a_linear_layer(partitioned: Any, tied: bool) -> None:
    graph = partitioned.exported_program("tied" if tied else "untied").graph
    targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    message = "XNNPACK takes or leaves linear layers by another method than check_constraints: see export/lower/lower.py"
    assert ("executorch_call_delegate" in targets) == (not tied), message
    assert any("aten.linear" in each for each in targets) == tied, message


@pytest.mark.slow
def test_xnnpack_still_computes_the_exact_gelu_for_an_approximate_one(partitioned: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    with quiet():
        path.write_bytes(partitioned.to_executorch().buffer)
    got = executorch.load_program(executorch.extension(), path).load_method("gelu").call((POINTS,))[0]
    error = (got - nn.functional.gelu(POINTS, approximate="tanh")).abs().max()
    assert error > 1e-5, "XNNPACK computes the approximate gelu now: drop write_out_tanh_gelu"
