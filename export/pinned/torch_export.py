"""torch 2.13: what an operator declares, what a trace leaves behind, and patches that leave out what a lowering never needs."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch import Tensor, nn
from torch._export import utils as export_utils
from torch.export import ExportedProgram, exported_program
from torch.export.graph_signature import ExportGraphSignature
from torch.func import functional_call
from torch.fx import Graph, GraphModule, traceback
from torch.fx import config as fx_config
from torch.fx.experimental.proxy_tensor import make_fx

Operator: TypeAlias = torch._ops.OpOverload
"""The class of the targets of an exported graph's calls, except ``getitem`` and arithmetic on sizes."""

ASSERTIONS = frozenset({torch.ops.aten._assert_tensor_metadata.default})
"""Operators that a trace puts before each cast. Such a node keeps its argument alive, and with it weights."""

PROVENANCE = ("from_node", "stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")
"""Keys of ``node.meta`` about where a node came from: only for messages, nothing in a lowering depends on them."""


def check(condition: Any) -> None:
    """Promise torch.export that a condition on a symbolic size holds, so that it may index or slice by that size."""
    torch._check(condition)


def declared(operator: Operator) -> Any:
    """Return the operator's schema: ``name``, ``is_mutable``, ``arguments`` and ``returns``, each with its ``alias_info``.

    An ``alias_info`` of a result says that the operator makes a view; one of an argument has ``is_write``.
    """
    return operator._schema


def overload(operator: Operator) -> str:
    """Return the overload's name, ``default`` if the schema has none: an attribute of ``torch.ops.aten.<name>``."""
    return operator._overloadname


@contextmanager
def without_history() -> Iterator[None]:
    """Let nodes carry no history from pass to pass, which would be copied with every node: a sixth of the lowering.

    Patches ``NodeSource.__init__``, which every pass calls for every node, to set the same attributes without the copy. Nor do
    traces say where in the source a node came from.
    """
    silent = mock.patch.object(fx_config, "do_not_emit_stack_traces", new=True)
    with mock.patch.object(traceback.NodeSource, "__init__", _without_copy), silent:
        yield


def _without_copy(self: Any, node: Any, pass_name: str = "", action: Any = None) -> None:
    self.pass_name, self.action, self.from_node = pass_name, [], []
    self.node_info = self._action_string = self._dict = None


@contextmanager
def late_code() -> Iterator[None]:
    """Write and compile the Python of a graph when it is first run, which most graphs of a lowering never are.

    Patches ``GraphModule.recompile``, which every pass calls: a sixth of the lowering. Until it is run, a graph module shows
    no code. A graph that was made in here may be run after.
    """
    with mock.patch.object(GraphModule, "recompile", _recompile_when_run):
        yield


def _recompile_when_run(self: Any) -> None:
    if info := getattr(self.graph._codegen, "pytree_info", None):
        self._in_spec, self._out_spec = info.in_spec, info.out_spec
    type(self).forward, type(self)._code = _recompile_and_run, ""


_recompile = GraphModule.recompile


def _recompile_and_run(self: Any, *args: Any, **options: Any) -> Any:
    _recompile(self)
    return self(*args, **options)


@contextmanager
def known_operators() -> Iterator[None]:
    """Look up once, and not at every decomposition, which operators the dispatcher has: none is registered inside.

    Patches ``_materialize_cpp_cia_ops`` and ``_collect_all_valid_cia_ops``, a sixteenth of the lowering.
    """
    found = _composite_operators(len(torch._C._dispatch_get_all_op_names()))
    with (
        mock.patch.object(export_utils, "_materialize_cpp_cia_ops", return_value=None),
        mock.patch.object(exported_program, "_collect_all_valid_cia_ops", return_value=found),
    ):
        yield


@functools.lru_cache(maxsize=1)
def _composite_operators(registered: int) -> Any:
    """Return the composite ones among the operators. registered: how many there are, as libraries bring more."""
    export_utils._materialize_cpp_cia_ops()
    return export_utils._collect_all_valid_cia_ops()


@contextmanager
def quick_overrides() -> Iterator[None]:
    """Let a decomposition replace six thousand kernels of composite operators, and put them back, without checking each.

    Patches ``OpOverload.py_impl``, two fifths of a small program's decomposition: most of it was making its annotations.
    """
    with mock.patch.object(Operator, "py_impl", _register):
        yield


_checked_py_impl = Operator.py_impl


def _register(self: Operator, key: Any) -> Callable[[Any], Any]:
    if not isinstance(key, torch._C.DispatchKey):
        return _checked_py_impl(self, key)

    def register(function: Any) -> Any:
        self.py_kernels[key] = function
        self._dispatch_cache.clear()
        return function

    return register


@contextmanager
def fewer_decompositions() -> Iterator[None]:
    """Trace a program anew only where something is left to decompose: a sixth of the lowering.

    ExecuTorch has each decomposed three times, and the first time only made functional, which every decomposition does. Patches
    ``ExportedProgram.run_decompositions``.
    """
    functional: weakref.WeakSet[ExportedProgram] = weakref.WeakSet()

    def decomposed(self: ExportedProgram, table: Any = None, *args: Any, **options: Any) -> ExportedProgram:
        if table is not None and not table:
            return self
        if self in functional and table is not None and not _calls_any(self.graph_module, table):
            return self
        made: ExportedProgram = run(self, table, *args, **options)
        functional.add(made)
        return made

    run = ExportedProgram.run_decompositions
    with mock.patch.object(ExportedProgram, "run_decompositions", decomposed):
        yield


def _calls_any(module: GraphModule, operators: Container[Any]) -> bool:
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    return any(node.target in operators for graph in graphs for node in graph.nodes)


INPUT_NAMES = ("inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants")
"""Properties of a signature, each of which makes a dictionary of all inputs whenever it is read."""


@contextmanager
def signatures_read_once() -> Iterator[None]:
    """Let a program's signature keep its dictionaries: passes read them for every node, which is an eighth of the lowering.

    Patches the properties in ``INPUT_NAMES``. No input may get another name inside, as a decomposition gives it.
    """
    with ExitStack() as patches:
        for name in INPUT_NAMES:
            once = property(_read_once(vars(ExportGraphSignature)[name].fget))
            patches.enter_context(mock.patch.object(ExportGraphSignature, name, once))
        yield


def _read_once(read: Any) -> Any:
    known: dict[int, tuple[list[Any], list[Any], Mapping[str, str]]] = {}

    def names(self: ExportGraphSignature) -> Mapping[str, str]:
        specs = self.input_specs
        kept = known.get(id(specs))
        if kept is None or kept[1] != specs:  # which is quick for the same objects
            kept = known[id(specs)] = specs, list(specs), read(self)  # the list itself, so that no other gets its identity
        return kept[2]

    return names


@contextmanager
def metadata_by_one_reading() -> Iterator[None]:
    """Give weights and state their metadata after a decomposition by reading the signature once, and not for each of them.

    Patches ``_populate_param_buffer_metadata_to_new_gm``.
    """
    with mock.patch.object(exported_program, "_populate_param_buffer_metadata_to_new_gm", _populate):
        yield


def _populate(metadata: Mapping[str, dict[str, Any]], module: GraphModule, signature: ExportGraphSignature) -> None:
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.target in names:
            kept = metadata.get(names[node.target], {})
            node.meta.update({key: value for key, value in kept.items() if key not in ("nn_module_stack", "stack_trace")})


def called_with(module: nn.Module, tensors: Mapping[str, Tensor], *inputs: Tensor) -> Any:
    """Call a module with other tensors in the place of its own, by name."""
    return functional_call(module, dict(tensors), inputs)


def traced_graph(make: Callable[..., Tensor], examples: Sequence[Tensor]) -> Graph:
    """Return the graph of ATen's operators that a function of tensors calls."""
    graph: Graph = make_fx(make)(*examples).graph
    return graph


def is_persistent(module: nn.Module, buffer: str) -> bool:
    """Return whether a module's buffer is in checkpoints."""
    return buffer not in module._non_persistent_buffers_set
