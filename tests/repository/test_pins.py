"""What ``hybridge.export.pinned`` and ``hybridge.runtime.pinned`` assume of torch, ExecuTorch and torchao is still so.

A test that fails after an update says what to look at. Those of transformers, onnxscript and onnxruntime are in
``test_pins_of_models.py``, those of XNNPACK's partitioner and passes in ``test_pins_of_xnnpack.py``, those of the tables in a
program's file in ``test_pins_of_program_files.py``.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ruamel.yaml
import torch
from checkout import CHECKOUT
from compiler_flags import include_folders
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.dialects.edge import _ops as edge_dialect
from executorch.extension.llm.custom_ops import custom_ops
from tiny import traced
from torch import Tensor, nn
from torch._export import utils as export_utils
from torch.export import _remove_auto_functionalized_pass as remove_functional
from torch.export import exported_program
from torch.fx import Graph, GraphModule
from torch.fx.node import map_arg
from torch.fx.traceback import NodeSource

from hybridge.export.lower.lower import quiet
from hybridge.export.pinned import executorch as program_format
from hybridge.export.pinned import stock_operators, torchao
from hybridge.export.pinned.executorch import CLONE, backend_config, constant_input, edge, edge_config
from hybridge.export.pinned.imports import read_by_c
from hybridge.export.pinned.mutations import put_back
from hybridge.export.pinned.torch_export import (
    ASSERTIONS,
    PROVENANCE,
    Operator,
    called_with,
    check,
    declared,
    is_persistent,
    known_operators,
    late_code,
    overload,
    quick_overrides,
    traced_graph,
    without_history,
)
from hybridge.export.profile import parts
from hybridge.runtime import pinned
from hybridge.runtime.pack.programs import PINNED, installed_versions
from hybridge.runtime.platforms import library_file

aten = torch.ops.aten
ROWS = 5


class Counter(nn.Module):
    """A method over a state that it writes to, and over a weight."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(ROWS))
        self.weight, self.step = nn.Parameter(torch.arange(float(ROWS)), requires_grad=False), step

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x * self.step)
        return (self.total + self.weight).clone()


# Imports


def test_the_table_of_the_edge_dialect_is_the_same_by_either_parser() -> None:
    assert 'YAML(typ="safe")' in inspect.getsource(edge_dialect), "read_by_c() is for this"
    table = resources.files("executorch.exir.dialects.edge").joinpath("edge.yaml").read_text(encoding="utf-8")
    with read_by_c():
        quick = ruamel.yaml.YAML(typ="safe").load(table)
    assert quick == ruamel.yaml.YAML(typ="safe").load(table)


def test_modules_of_inductor_are_imported_for_a_function_each() -> None:
    message = "the import is another now: see export/pinned/imports.py"
    rewrites, lowerings = inspect.getsource(remove_functional), inspect.getsource(custom_ops)
    assert "from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized\n" in rewrites, message
    assert "from torch._inductor.lowering import lowerings as L, register_lowering\n" in lowerings, message
    assert all(each.count("_inductor") == 1 for each in (rewrites, lowerings)), message


class WritingState(nn.Module):
    """Writes to one tensor, and to several, by operators whose results are read and not read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.zeros(1, 2, 3))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 4, 1, 8, dtype=torch.int8))
            self.register_buffer(f"{name}_scales", torch.zeros(1, 4, 1, 1))

    def forward(self, rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        shifted = torch.ops.hybridge.shift_window(self.window, rows[..., :3].transpose(1, 2), start)
        written = self.keys, self.keys_scales, self.values, self.values_scales
        torch.ops.hybridge.write_quantized_rows(
            rows[:, :, None] + shifted, rows[:, :, None] + self.window[0, 0, 0], *written, start
        )
        return shifted + 1, self.window + self.keys.sum()


def test_calls_that_write_are_put_back_as_inductor_does() -> None:
    with quiet():
        from torch._inductor.fx_passes import post_grad  # takes seconds, which other processes are spared
    made = torch.export.export(WritingState(), (torch.ones(1, 2, 8), torch.zeros(1, dtype=torch.long)), strict=False)

    def calls(put: Callable[[Graph], None]) -> list[str]:
        with quiet():
            program = made.run_decompositions({})
        with mock.patch.object(remove_functional, "decompose_auto_functionalized", put):
            remove_functional.unsafe_remove_auto_functionalized_pass(program)
        numbers = {node: index for index, node in enumerate(program.graph.nodes)}
        return [f"{node.target} {map_arg((node.args, dict(node.kwargs)), lambda each: numbers[each])}" for node in numbers]

    quick = calls(put_back)
    assert quick == calls(post_grad.decompose_auto_functionalized), "see export/pinned/mutations.py"
    assert sum("hybridge" in each for each in quick) == 2


# torch


def test_a_schema_says_what_an_operator_writes_and_views() -> None:
    message = "operators declare otherwise: see declared() and overload() in export/pinned/torch_export.py"
    assert all(isinstance(each, Operator) for each in (aten.add_.Tensor, aten.slice.Tensor)), message
    written, *others = (each.alias_info for each in declared(aten.add_.Tensor).arguments)
    assert written.is_write, message
    assert not any(others), message
    assert declared(aten.add_.Tensor).is_mutable, message
    assert not declared(aten.add.Tensor).is_mutable, message
    assert [bool(declared(each).returns[0].alias_info) for each in (aten.slice.Tensor, aten.add.Tensor)] == [True, False], (
        message
    )
    assert (declared(aten.add_.Tensor).name, overload(aten.add_.Tensor)) == ("aten::add_", "Tensor"), message
    assert overload(aten.relu.default) == "default", message


def test_a_trace_leaves_the_assertions_and_histories_that_are_dropped() -> None:
    program = traced(lambda x: x.to(torch.float64).relu(), torch.ones(2))
    targets = [node.target for node in program.graph.nodes]
    asserting = [each for each in targets if isinstance(each, Operator) and "assert" in declared(each).name]
    assert set(asserting) == ASSERTIONS, f"a trace asserts by {asserting}: list them in ASSERTIONS, or files have weights twice"
    kept = {key for node in program.graph.nodes for key in node.meta} - set(PROVENANCE)
    assert kept <= {"val", "tensor_meta", "custom"}, f"nodes carry {kept}: what is history belongs into PROVENANCE"
    assert {"nn_module_stack", "stack_trace", "torch_fn"} <= {key for node in program.graph.nodes for key in node.meta}


def test_a_checked_size_may_be_sliced_by() -> None:
    def first(x: Tensor, count: Tensor) -> Tensor:
        n = count.item()
        check(n >= 0)
        check(n <= 4)
        return x[:n]

    program = traced(first, torch.arange(4), torch.tensor(2))
    assert program.module()(torch.arange(4), torch.tensor(3)).tolist() == [0, 1, 2], "torch._check promises nothing any more"


def test_the_patch_of_histories_sets_what_torch_sets() -> None:
    message = "NodeSource has changed: without_history() in export/pinned/torch_export.py must set its attributes"
    (node, *_) = traced(torch.relu, torch.ones(2)).graph.nodes
    node.meta["from_node"] = [NodeSource(node, "earlier")]
    original = NodeSource.__init__
    plain = NodeSource(node, "now")
    with without_history():
        short = NodeSource(node, "now")
    assert NodeSource.__init__ is original
    assert list(inspect.signature(original).parameters) == ["self", "node", "pass_name", "action"], message
    assert vars(plain).keys() == vars(short).keys(), message
    assert [len(each.from_node) for each in (plain, short)] == [1, 0], message
    assert (short.name, short.target, short.to_dict()["from_node"]) == ("", "", []), message


def test_a_module_is_called_with_other_tensors_and_keeps_its_own() -> None:
    module = nn.Linear(2, 1, bias=False)
    before = module.weight.detach().clone()
    assert called_with(module, {"weight": torch.tensor([[2.0, 3.0]])}, torch.ones(2)).tolist() == [5.0], "called_with()"
    assert torch.equal(module.weight, before), "called_with() leaves other weights behind"


def test_a_traced_function_is_a_graph_of_atens_operators_in_order() -> None:
    graph = traced_graph(
        lambda x, y: torch.cat([x + 1, y.flatten()]), [torch.empty(2, device="meta"), torch.empty(1, 2, device="meta")]
    )
    message = "traced_graph() in export/pinned/torch_export.py gives another graph, so no constant has a source"
    assert [node.op for node in graph.nodes][:2] == ["placeholder"] * 2, message
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    assert all(isinstance(each, Operator) for each in called), message
    assert called[0] == aten.add.Tensor, message
    assert called[-1] == aten.cat.default, message
    assert graph.output_node().args[0].target == aten.cat.default, message


def test_a_buffer_says_whether_it_is_in_checkpoints() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("left_out", torch.zeros(1), persistent=False)
    message = "buffers are marked otherwise: see is_persistent() in export/pinned/torch_export.py"
    assert [name for name in ("kept", "left_out") if is_persistent(module, name)] == [*module.state_dict()] == ["kept"], message


def test_a_graph_is_compiled_when_it_is_run() -> None:
    message = "GraphModule.recompile has changed: see late_code() in export/pinned/torch_export.py"
    original = GraphModule.recompile
    with late_code():
        exported = traced(torch.relu, torch.ones(2)).module()
        (relu,) = exported.graph.find_nodes(op="call_function", target=aten.relu.default)
        relu.target = aten.neg.default
        exported.recompile()
        assert "neg" not in exported.code, message
        assert exported(torch.ones(2)).tolist() == [-1, -1], message
        assert "neg" in exported.code, message
        relu.target = aten.relu.default
        exported.recompile()
    assert GraphModule.recompile is original
    assert exported(torch.ones(2)).tolist() == [1, 1], "a graph that was changed in late_code() runs as it was: " + message
    assert "relu" in exported.code, message


def test_operators_are_looked_up_by_one_function_that_returns_nothing() -> None:
    looked_up = export_utils._collect_all_valid_cia_ops_for_namespace.__code__.co_names
    assert "_materialize_cpp_cia_ops" in looked_up, "operators are looked up elsewhere: known_operators() patches nothing"
    before = export_utils._collect_all_valid_cia_ops()
    with known_operators():
        assert export_utils._collect_all_valid_cia_ops() == before


def test_quick_overrides_register_what_checked_ones_do() -> None:
    message = "_override_composite_implicit_decomp has changed: see quick_overrides() in export/pinned/torch_export.py"
    kept = {aten.linear.default: export_utils._special_op_to_preserve_cia}
    before = dict(aten.linear.default.py_kernels)

    def registered() -> dict[Any, str]:
        with exported_program._override_composite_implicit_decomp(kept):
            return {key: repr(kernel).partition(" at ")[0] for key, kernel in aten.linear.default.py_kernels.items()}

    checked = registered()
    with quick_overrides():
        assert registered() == checked != {}, message
    assert aten.linear.default.py_kernels == before
    assert "py_impl" in exported_program._override_composite_implicit_decomp.__wrapped__.__code__.co_names, message
    assert "py_impl" not in vars(Operator), "the patch is undone: " + message


# ExecuTorch's lowering


def edge_program() -> Any:
    """A new one: ``to_executorch`` changes the graphs that it is given."""
    programs = {
        name: torch.export.export(Counter(step), (torch.ones(ROWS),)) for name, step in {"up": 1.0, "down": -1.0}.items()
    }
    constants = {"numbers": [7, 8], "one": 1}
    with quiet():
        return to_edge_transform_and_lower(programs, compile_config=edge_config(), constant_methods=constants)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pins") / "model.pte"
    with quiet():
        path.write_bytes(edge_program().to_executorch(backend_config()).buffer)
    return path


@pytest.mark.slow
def test_a_clone_has_its_name_in_the_edge_dialect() -> None:
    targets = {node.target for node in edge_program().exported_program("up").graph.nodes}
    assert CLONE in targets, "clones are called otherwise: copies would stay in programs (CLONE in export/pinned/executorch.py)"
    assert edge.aten.mul.Tensor in targets, "operators of the edge dialect are others than ops.edge's"


@pytest.mark.slow
def test_an_added_constant_is_no_state() -> None:
    exported = traced(lambda x: x + 1, torch.ones(2, 2))
    node = constant_input(exported, "row", torch.full((2, 2), 3.0))
    add = next(each for each in exported.graph.nodes if each.target == aten.add.Tensor)
    add.args = (add.args[0], node)
    exported.graph_module.recompile()
    with quiet():
        made = to_edge_transform_and_lower(exported).to_executorch(backend_config())
    (plan,) = made.executorch_program.execution_plan
    state = [value.val for value in plan.values if isinstance(value.val, program_format.Tensor) and parts.is_state(value.val)]
    assert state == [], "a constant has become state: see constant_input() in export/pinned/executorch.py"
    runtime = program_format.extension()._load_for_executorch_from_buffer(made.buffer)
    assert torch.equal(runtime.forward([torch.ones(2, 2)])[0], torch.full((2, 2), 4.0))


@pytest.mark.parametrize("name", stock_operators.SCHEMAS)
def test_a_stock_operator_takes_what_it_took(name: str) -> None:
    space, _, operator = name.partition("::")
    found = str(declared(getattr(getattr(torch.ops, space), operator).default)).removeprefix(name)
    assert found == stock_operators.SCHEMAS[name], f"look at each call of {name}, then write its schema into SCHEMAS"


def test_every_scalar_type_has_its_size_and_number() -> None:
    kinds = program_format.ScalarType
    names = {kinds.BYTE: "uint8", kinds.CHAR: "int8", kinds.LONG: "int64", kinds.HALF: "float16", kinds.FLOAT: "float32"}
    assert {int(kind): name for kind, name in names.items()} == pinned.SCALAR_TYPES, "scalar types are numbered anew"
    assert {name: parts.SIZES[kind] for kind, name in names.items()} == {
        "uint8": 1,
        "int8": 1,
        "int64": 8,
        "float16": 2,
        "float32": 4,
    }


# ExecuTorch's program file


def test_a_file_is_read_and_written_again(program: Path, tmp_path: Path) -> None:
    head = program.read_bytes()[: program_format.HEAD_BYTES]
    header = program_format.read_header(head)
    assert header is not None, "programs have another header: see export/pinned/executorch.py"
    assert program_format.read_header(b"\0" * program_format.HEAD_BYTES) is None
    read = program_format.read_program(program.read_bytes()[: header.program_size])
    weights = program.read_bytes()[header.segment_base_offset :]
    copy = tmp_path / "copy.pte"
    copy.write_bytes(program_format.write_program(read, header.segment_data_size) + weights)
    assert run(copy, "up") == run(program, "up") == [1, 2, 3, 4, 5], "a file that is written again computes something else"


def operator_names() -> frozenset[str]:
    """Return all registered kernels as ``namespace::name.overload``."""
    return frozenset(program_format.extension()._get_operator_names())


def test_a_plan_names_its_state_and_operators(program: Path) -> None:
    data = program.read_bytes()
    header = program_format.read_header(data[: program_format.HEAD_BYTES])
    plan = next(each for each in program_format.read_program(data).execution_plan if each.name == "up") if header else None
    assert plan is not None
    tensors = [value.val for value in plan.values if isinstance(value.val, program_format.Tensor)]
    state = [each.extra_tensor_info.fully_qualified_name for each in tensors if parts.is_state(each)]
    assert state == ["total"], f"state is told otherwise in a plan ({state}): see program_format.py and parts.is_state"
    names = {f"{each.name}.{each.overload}".removesuffix(".") for each in plan.operators}
    assert names <= operator_names(), "plans and the runtime spell operators differently"


@pytest.mark.parametrize("word", [*parts.ATTENTION, *parts.RECURRENT, *parts.SMALL, *parts.STATE])
def test_a_word_of_the_profile_is_in_an_operators_name(word: str) -> None:
    import hybridge.export.kernel_sets.hybridge  # noqa: F401  registers ours

    names = operator_names() | set(torch._C._dispatch_get_all_op_names())
    assert [name for name in names if word in name], f"no operator is called {word!r}: its calls count as others in a profile"


def test_bookkeeping_is_in_the_names_of_operators() -> None:
    names = operator_names()
    for word in (program_format.CONTROL_FLOW, program_format.NUMBER_OF_TENSOR):
        assert [name for name in names if word in name], f"no operator is called {word!r}: parts of a profile would lack sizes"


# ExecuTorch's runtime


def load(program: Path) -> Any:
    return program_format.load_program(program_format.extension(), program)


def run(program: Path, method: str) -> list[int]:
    return [int(each) for each in load(program).load_method(method).call((torch.ones(ROWS),))[0]]


def test_methods_of_one_load_share_their_state(program: Path) -> None:
    opened = load(program)
    up, down = (opened.load_method(name) for name in ("up", "down"))
    up.call((torch.ones(ROWS),))
    up.call((torch.ones(ROWS),))
    total = up.get_attribute("total")
    assert total.tolist() == [2.0] * ROWS, "an attribute is not the state by its qualified name: see Program.state"
    down.call((torch.ones(ROWS),))
    assert total.tolist() == [1.0] * ROWS, "methods of one load have states of their own: see backend_config()"
    total.fill_(7.0)
    up.call((torch.ones(ROWS),))
    assert total.tolist() == [8.0] * ROWS, "an attribute is a copy: Program.state must write back"


def test_a_fresh_state_is_zeros(program: Path) -> None:
    assert not load(program).load_method("up").get_attribute("total").any(), (
        "a fresh state is not cleared: zero_pages must not run"
    )


def test_an_output_is_the_callers_own(program: Path) -> None:
    method = load(program).load_method("up")
    first = method.call((torch.ones(ROWS),))[0]
    method.call((torch.ones(ROWS),))
    assert first.tolist() == [1, 2, 3, 4, 5], "outputs are the runtime's memory, which the next call writes to: copy them"


def test_a_method_describes_itself(program: Path) -> None:
    meta = load(program).load_method("up").method_meta()
    assert (meta.num_inputs(), meta.num_outputs(), meta.num_attributes()) == (1, 1, 1)
    for each in (meta.input_tensor_meta(0), meta.output_tensor_meta(0), meta.attribute_tensor_meta(0)):
        assert (pinned.SCALAR_TYPES[each.dtype()], list(each.sizes())) == ("float32", [ROWS]), "MethodMeta is read otherwise"


def test_a_constant_method_answers_with_the_first_of_a_list(program: Path) -> None:
    opened = load(program)
    answers = [opened.load_method(name).call(())[0] for name in ("numbers", "one")]
    assert answers == [7, 1], "of a list not the first alone is answered: see said() in runtime/artifact/program_check.py"


def test_a_truncated_program_is_refused(program: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pte"
    broken.write_bytes(program.read_bytes()[:200])
    with pytest.raises(RuntimeError):
        load(broken).load_method("up")


def test_threads_can_be_replaced() -> None:
    runtime = program_format.extension()
    before = runtime._threadpool_get_thread_count()
    try:
        program_format.reset_threads(runtime, 1)
        assert runtime._threadpool_get_thread_count() == 1, "the pool of threads is not replaced: see set_threads"
    finally:
        program_format.reset_threads(runtime, before)


def test_the_wheel_has_the_files_that_are_linked_and_loaded() -> None:
    headers, c10 = include_folders()
    wanted = [
        headers / "executorch/runtime/backend/options.h",
        c10 / "torch/headeronly/macros/Macros.h",
        *(pinned.library_folder() / library_file(name) for name in pinned.COPIED),
    ]
    assert [path for path in wanted if not path.is_file()] == [], "the wheel is laid out otherwise: see runtime/pinned.py"
    for space in pinned.STOCK_OPERATORS:
        assert len(pinned.operator_libraries({space})) == 1, f"the library of {space}:: is elsewhere, or there are several"
    assert pinned.operator_libraries({"aten", "hybridge"}) == []


def test_the_headers_still_need_their_macro() -> None:
    _, c10 = include_folders()
    needs = "C10_USING_CUSTOM_GENERATED_MACROS" in (c10 / "torch/headeronly/macros/Macros.h").read_text(encoding="utf-8")
    assert needs, "the headers do not know the macro any more: drop MACROS"
    assert not list(c10.rglob("cmake_macros.h")), "the wheel has what the macro leaves out: drop MACROS"


# torchao


@pytest.mark.parametrize(("low", "high"), [(-8, 7), (-127, 127)])
def test_the_recipe_is_the_largest_of_a_group_over_half_the_range(low: int, high: int) -> None:
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    weight[0, :32] = 0
    message = "torchao rounds otherwise: artifacts would differ from those of before, and docs/benchmarks.md from both"
    scales = torchao.symmetric_scales(weight, 32, low, high)
    groups = weight.unflatten(1, (-1, 32))
    largest = (groups.abs().amax(-1) / ((high - low) / 2)).clamp(min=torch.finfo(torch.float32).eps)
    torch.testing.assert_close(scales, largest, msg=message)
    quanta = torchao.quantize(weight, scales, 32, low, high)
    assert quanta.dtype == torch.int8, message
    assert torch.equal(quanta, (groups * (1 / scales[..., None])).round().clamp(low, high).flatten(1).to(torch.int8)), message


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [((3, 2, 24), (1, 1, 3, 2, 1)), ((1, 2, 1), (2, 24)), ((2, 3, 24), (1, 2, 1, 24))])
def test_operands_of_other_ranks_are_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]], tmp_path: Path) -> None:
    """ExecuTorch 1.4 refused these at run time (its issue 10959), and with them a decode of Inkling 2."""
    x, y = (torch.rand(shape) + 1 for shape in shapes)
    exported = torch.export.export(Product(), (x, y), strict=False)
    path = tmp_path / "product.pte"
    with quiet():
        path.write_bytes(to_edge_transform_and_lower({"product": exported}).to_executorch().buffer)
    torch.testing.assert_close(load(path).load_method("product").call((x, y))[0], x * y)


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


def test_a_program_is_written_in_parts_that_are_its_file(tmp_path: Path) -> None:
    message = "a program's file is assembled otherwise: see file_parts() in export/pinned/executorch.py"
    with quiet():
        program = to_edge_transform_and_lower(torch.export.export(nn.Linear(4, 2), (torch.ones(1, 4),))).to_executorch()
    parts = program_format.file_parts(program)
    assert b"".join(part if isinstance(part, bytes) else part.to_bytes() for part in parts) == program.buffer, message


def test_programs_are_known_by_the_libraries_that_pyproject_pins() -> None:
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = dict(each.split("==") for each in extras["export"] if "==" in each)
    assert {name: pins[name] for name in PINNED} == PINNED
    assert installed_versions() == PINNED
