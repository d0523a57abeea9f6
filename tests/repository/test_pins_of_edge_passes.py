"""What ``hybridge.export.pinned.edge_passes`` assumes of ExecuTorch's passes is still so.

A test that fails after an update says what to look at.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from executorch.exir import memory, to_edge
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes import spec_prop_pass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.program import _program
from executorch.exir.tensor import TensorSpec
from tiny import traced
from torch import Tensor
from torch.export import ExportedProgram, exported_program
from torch.fx import GraphModule, Node

from hybridge.export.pinned import edge_passes, torch_export
from hybridge.export.pinned.executorch import copy_spec, edge_config
from hybridge.imports import quiet

X, WHOLE = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long)


def everything(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """Has something for each pass: views, numbers for tensors, mixed types, clones, and tensors in other orders."""
    views = (x.t().reshape(6)[1:5].unsqueeze(0).expand(2, 4) + 1.0).permute(1, 0)
    numbers = torch.where(x > 2, x * 2.0, -x / 3)
    orders = x.t().clone().to(torch.float64).sum(1, keepdim=True).expand(3, 4) / 2
    return views, numbers, x + n * 2, orders, torch.mean(x.t(), 0)


def nothing(x: Tensor) -> Tensor:
    return torch.relu(x)


def described(module: GraphModule) -> list[Any]:
    """Each call with its operands by their place, and the tensor that it gives."""
    places = {node: place for place, node in enumerate(module.graph.nodes)}

    def value(node: Node) -> Any:
        made = node.meta.get("val")
        return (made.shape, made.dtype, made.stride()) if isinstance(made, Tensor) else None

    return [
        (str(node.target), torch.fx.node.map_arg((node.args, node.kwargs), lambda each: places[each]), value(node))
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "inputs", "passes"), [(everything, (X, WHOLE), 5), (nothing, (X,), 1)])
def test_passes_in_place_make_what_they_make_by_tracing(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], passes: int
) -> None:
    made, changing = [], set()

    def counted(each: type[Any], call: Any) -> Any:
        def run(self: Any, module: GraphModule) -> Any:
            before = described(module)
            result = call(self, module)
            if described(result.graph_module) != before:
                changing.add(each.__name__)
            return result

        return run

    for patch in (nullcontext, edge_passes.quick_passes):
        with quiet(), torch_export.known_operators(), ExitStack() as patches:
            program = traced(function, *inputs).run_decompositions()
            if patch is nullcontext:
                for each in edge_passes.SOUGHT:
                    patches.enter_context(mock.patch.object(each, "call", counted(each, each.call)))
            patches.enter_context(patch())
            lowered = _program._generate_edge_program(edge_config(), program)
            legal = edge_passes.LegalizePortableDimOrderPass()(lowered.graph_module).graph_module
            made.append((described(lowered.graph_module), described(spec_prop_pass.SpecPropPass()(legal).graph_module)))
    assert made[1] == made[0], "passes change other calls in place than by tracing: see export/pinned/edge_passes.py"
    assert len(changing) == passes, f"of the passes in SOUGHT {sorted(changing)} change something"


def test_every_pass_that_traces_a_graph_for_nothing_is_known() -> None:
    everything = [*_program.base_pre_op_replace_passes, RemoveMixedTypeOperators(), OpReplacePass()]
    retracing = {type(each) for each in everything if isinstance(each, ExportPass)}
    loops = {each.__name__ for each in retracing if "call_operator" not in inspect.getsource(each)}
    named = {each.__name__ for each in edge_passes.SOUGHT}
    assert {each.__name__ for each in retracing} - loops <= named, "new passes trace every graph: see SOUGHT"
    source = inspect.getsource(RemoveMixedTypeOperators.call_operator)
    listed = {str(each) for each in edge_passes.PROMOTING}
    assert all(each in source for each in listed), "other operators' types are mixed: see PROMOTING"
    assert source.count("ELEMENTWISE_TYPE_PROMOTION_KIND.") - 1 == len(listed), "more operators' types are mixed: see PROMOTING"
    assert "ExportPass()(graph_module)" in inspect.getsource(spec_prop_pass.SpecPropPass), "tensors are refreshed elsewhere"


@pytest.mark.slow
def test_a_graph_with_symbolic_sizes_is_traced_as_before() -> None:
    def program() -> Any:
        class Doubled(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x.reshape(-1)[1:] * 2

        exported = torch.export.export(Doubled(), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("rows", max=9)},))
        return to_edge(exported, compile_config=edge_config()).exported_program().graph

    with quiet():
        plain = str(program())
        with edge_passes.quick_passes():
            assert str(program()) == plain
    assert memory.alloc not in edge_passes.CALLABLE


def test_a_signature_is_read_as_often_as_its_inputs_change() -> None:
    signature = decomposed_program().graph_signature
    for name in torch_export.INPUT_NAMES:
        plain = dict(getattr(signature, name))
        with torch_export.signatures_read_once():
            first = getattr(signature, name)
            assert getattr(signature, name) is first, f"a signature's {name} is no property: see signatures_read_once()"
            assert dict(first) == plain
    with torch_export.signatures_read_once():
        before = signature.inputs_to_buffers
        signature.input_specs.pop(0)
        assert signature.inputs_to_buffers is not before


def test_weights_keep_their_metadata_through_a_decomposition() -> None:
    looked_up = exported_program._decompose_and_get_gm_with_new_signature_constants.__code__.co_names
    assert "_populate_param_buffer_metadata_to_new_gm" in looked_up, "metadata is kept elsewhere: see metadata_by_one_reading()"
    made = []
    for patch in (nullcontext, torch_export.metadata_by_one_reading):
        with patch():
            graph = decomposed_program().graph
            made.append([(node.name, sorted(node.meta)) for node in graph.nodes if node.op == "placeholder"])
    assert made[0] == made[1]
    assert len(made[0]) > 2


def decomposed_program() -> ExportedProgram:
    with quiet(), torch_export.known_operators():
        program: ExportedProgram = torch.export.export(torch.nn.BatchNorm1d(3).eval(), (X,), strict=False).run_decompositions()
    return program


def test_the_memory_of_a_copied_spec_is_planned_apart_and_a_view_follows_its_base() -> None:
    base = TensorSpec.from_tensor(X)
    view, copies = _ViewSpec(base, [3, 2]), {}
    copied, other = copy_spec((base, view), copies)
    copied.lifetime[0], other.mem_id = 1, 2
    assert (base.lifetime, base.mem_id) == ([None, None], None)
    assert (other.lifetime, copied.mem_id) == ([1, None], 2)
    assert (copied.shape, other.shape, copied.dtype) == ([2, 3], [3, 2], X.dtype)
    assert copy_spec(view, {}).lifetime is base.lifetime, "the base has no copy, so it stays"
