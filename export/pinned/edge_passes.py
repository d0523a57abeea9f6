"""ExecuTorch 1.5.1's passes over graphs: patches that leave out those with nothing to do, and run the others in place.

A pass of ExecuTorch traces the whole graph anew, node by node, with fake tensors through PyTorch's dispatcher, to change a few
calls. Fifteen do so for each method.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest import mock

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass, NodeMetadata, ProxyValue, _ExportPassBase
from executorch.exir.passes.dim_order_ops_registry import DimOrderOpsMap
from executorch.exir.passes.legalize_portable_dim_order_pass import LegalizePortableDimOrderPass
from executorch.exir.passes.memory_format_ops_pass import MemoryFormatOpsPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass, aten_to_edge, should_lower_to_edge
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._dispatch.python import enable_python_dispatcher
from torch._export.passes import replace_view_ops_with_view_copy_ops_pass as view_copies
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.traceback import NodeSource

from hybridge.export.pinned.torch_export import Operator, declared

aten = torch.ops.aten

AnyNode: TypeAlias = Any
"""A ``torch.fx.Node`` that calls a function."""

# Passes with nothing to do


PROMOTING = frozenset(
    {aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.div.Tensor_mode, aten.minimum.default}
)
"""Operators whose tensors ``RemoveMixedTypeOperators`` converts to one type."""


def _is_view(node: AnyNode) -> bool:
    return isinstance(node.target, Operator) and (bool(node.target.is_view) or node.target == aten._unsafe_view.default)


def _has_number_for_tensor(node: AnyNode) -> bool:
    if not isinstance(node.target, Operator):
        return False
    wanted = declared(node.target).arguments
    given = [*zip(node.args, wanted, strict=False), *((node.kwargs.get(each.name), each) for each in wanted)]
    return any(isinstance(value, float | int) and isinstance(each.type, torch.TensorType) for value, each in given)


def _is_symbol(node: AnyNode) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)


def _mixes_types(node: AnyNode) -> bool:
    if node.target not in PROMOTING:
        return False
    dtype = node.meta["val"].dtype
    return any(not isinstance(each, Node) or _dtype(each) != dtype for each in node.args[:2])


def _dtype(node: Node) -> torch.dtype | None:
    return getattr(_value(node), "dtype", None)


def _has_memory_format(node: AnyNode) -> bool:
    return node.target in DimOrderOpsMap


def _has_other_order(node: AnyNode) -> bool:
    if node.target not in LegalizePortableDimOrderPass._target_ops:
        return False
    value = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return not isinstance(value, torch.Tensor) or list(value.dim_order()) != list(range(value.dim()))


SOUGHT: Mapping[type[Any], Callable[[AnyNode], bool]] = {
    view_copies.ReplaceViewOpsWithViewCopyOpsPass: _is_view,
    NormalizeTransposePass: lambda node: node.target == aten.t.default,
    ReplaceBrokenOpsWithFunctionalOpsPass: _is_view,
    ScalarToTensorPass: _has_number_for_tensor,
    SymToTensorPass: _is_symbol,
    RemoveMixedTypeOperators: _mixes_types,
    OpReplacePass: lambda node: should_lower_to_edge(node.target),
    MemoryFormatOpsPass: _has_memory_format,
    LegalizePortableDimOrderPass: _has_other_order,
}
"""The calls that a pass changes, by the pass: without any of them it only traces the graph once more."""


@contextmanager
def quick_passes() -> Iterator[None]:
    """Skip the passes in ``SOUGHT`` that have nothing to do, and let every pass change a graph in place.

    Patches ``call`` of these passes, and that of the class of all of them. A graph with symbolic sizes, branches or delegates
    is traced anew, as before. Numbers that a graph reads of its tensors stay what they are.
    """
    known = _KnownValues()

    def in_place(self: Any, module: GraphModule) -> PassResult:
        if not _can_stay(self, module):
            traced: PassResult = retrace(self, module)
            return traced
        with _in_mode(self, module):
            _change_calls(self, module, known)
        return PassResult(module, True)

    def first(self: Any, module: GraphModule) -> PassResult:
        if not _is_plain(module):
            traced: PassResult = replace_views(self, module)
            return traced
        known.learn(module)
        copies = _ViewCopies()
        with _in_mode(copies, module):
            _change_calls(copies, module, known)
        return PassResult(module, True)

    retrace, replace_views = _ExportPassBase.call, view_copies.ReplaceViewOpsWithViewCopyOpsPass.call
    instead = {OpReplacePass: _to_edge_in_place, view_copies.ReplaceViewOpsWithViewCopyOpsPass: first}
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(_ExportPassBase, "call", in_place))
        for each, sought in SOUGHT.items():
            run = _where_found(instead.get(each, each.call), sought)
            patches.enter_context(mock.patch.object(each, "call", run))
        yield


def _where_found(call: Any, sought: Callable[[AnyNode], bool]) -> Any:
    def run(self: Any, module: GraphModule) -> PassResult:
        if not _is_plain(module) or any(node.op == "call_function" and sought(node) for node in module.graph.nodes):
            result: PassResult = call(self, module)
            return result
        return PassResult(module, False)

    return run


def _to_edge_in_place(self: Any, module: GraphModule) -> PassResult:
    """Give each call the operator of the edge dialect, which computes the same."""
    if not _is_plain(module):
        traced: PassResult = _ExportPassBase.call(self, module)
        return traced
    for node in module.graph.nodes:
        if node.op == "call_function" and should_lower_to_edge(node.target):
            node.target = aten_to_edge(node.target)
    return PassResult(module, True)


class _ViewCopies(ExportPass):  # type: ignore[misc]  # untyped upstream
    """Replaces views by copies, as PyTorch's own pass does, which is of another class."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> ProxyValue:
        made = view_copies._NON_FUNCTIONAL_OPS_TO_FUNCTIONAL_OPS.get(op) or view_copies.get_view_copy_of_view_op(op._schema)
        return super().call_operator(made or op, args, kwargs, meta)


# Passes in place


CALLABLE = (Operator, EdgeOpOverload, HigherOrderOperator)
HOOKS = ("placeholder", "output", "call_getitem", "call_sym", "call_delegate", "call_submodule", "inputs", "on_attr")
"""Methods that a pass may override beside ``call_operator``; one that does traces the graph anew."""


def _can_stay(made: Any, module: GraphModule) -> bool:
    """Return whether a pass may change ``module`` in place: it changes calls of operators alone, and all sizes are numbers."""
    changes = type(made) not in SOUGHT and type(made).call_operator is not ExportPass.call_operator
    own = all(getattr(type(made), each) is getattr(ExportPass, each) for each in HOOKS)
    return own and not changes and _is_plain(module)


def _is_plain(module: GraphModule) -> bool:
    """Return whether a graph calls operators on tensors of known sizes only. Numbers may be read of tensors, and compared."""
    return not list(module.children()) and all(
        _is_symbol(node) or (_is_fixed(node.meta.get("val")) and (node.op == "placeholder" or _is_known(node.target)))
        for node in module.graph.nodes
        if node.op in ("placeholder", "call_function")
    )


def _is_known(target: Any) -> bool:
    return target is operator.getitem or isinstance(target, CALLABLE)


def _is_fixed(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_fixed(each) for each in value)
    return value is None or (type(value) is FakeTensor and all(type(size) is int for size in value.shape))


class _KnownValues:
    """The fake tensors that operators make of fake tensors, which are told apart by their identity."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._kept: list[Any] = []  # what the keys have identities of

    def learn(self, module: GraphModule) -> None:
        """Take the values of a graph that was traced just now."""
        mode = _mode(module)
        for node in module.graph.nodes:
            if node.op == "call_function" and "val" in node.meta:
                args, kwargs = _mapped((node.args, dict(node.kwargs)), Node, _value)
                self._keep(_key(mode, node.target, args, kwargs), node.meta["val"], mode, args, kwargs)

    def of(self, mode: Any, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what ``target`` makes of fake tensors; in ``mode``, and computed once."""
        key = _key(mode, target, args, kwargs)
        if key is not None and key in self._values:
            return self._values[key]
        made = target(*args, **kwargs)
        self._keep(key, made, mode, args, kwargs)
        return made

    def _keep(self, key: Any, value: Any, *kept: Any) -> None:
        if key is not None:
            self._values[key] = value
            self._kept.append(kept)


PLAIN = (Operator, bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _key(mode: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """Return a key of a call; None if it writes to what it is given, or is no operator."""
    called = target._op if isinstance(target, EdgeOpOverload) else target
    if not isinstance(called, Operator | HigherOrderOperator):
        return None
    if isinstance(called, Operator) and declared(called).is_mutable:
        return None
    try:
        return id(mode), called, _frozen(args), _frozen(kwargs)
    except TypeError:
        return None


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor | torch.SymInt | torch.SymBool):
        return type(value), id(value)
    if isinstance(value, list | tuple):
        return tuple([_frozen(each) for each in value])
    if isinstance(value, dict):
        return tuple([(name, _frozen(each)) for name, each in value.items()])
    if isinstance(value, PLAIN):
        return type(value), value
    raise TypeError(type(value))


def _mapped(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        return tuple([_mapped(each, kind, change) for each in value])
    if isinstance(value, list):
        return [_mapped(each, kind, change) for each in value]
    if isinstance(value, dict):
        return {name: _mapped(each, kind, change) for name, each in value.items()}
    return value


def _value(node: Node) -> Any:
    """Return the fake tensor of a node, or the tensor itself if it is a constant."""
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, str(node.target))
    value = node.meta.get("val")
    constant = getattr(value, "constant", None) if node.op == "placeholder" else None
    return value if constant is None else constant


def _mode(module: GraphModule) -> Any:
    values = (node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder")
    return next((each.fake_mode for each in values if isinstance(each, FakeTensor)), None)


@contextmanager
def _in_mode(made: Any, module: GraphModule) -> Iterator[None]:
    """Run a pass's ``call_operator`` in the mode of the graph's fake tensors."""
    mode = _mode(module)
    if mode is None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.allow_non_fake_inputs = True
    made.fake_tensor_mode = made.tracer.fake_tensor_mode = mode
    with mode, enable_python_dispatcher():
        yield


def _change_calls(made: Any, module: GraphModule, known: _KnownValues) -> None:
    """Let a pass change the calls of a graph, and compute anew the fake tensors that differ."""
    calls = made._fx = _Calls(module, known, made.fake_tensor_mode)
    try:
        for node in list(module.graph.nodes):
            if node.op == "call_function":
                calls.trace(made, node)
    finally:
        del made._fx


class _Calls:
    """Traces the calls that a pass makes of a node: as the node itself where it is the same call."""

    def __init__(self, module: GraphModule, known: _KnownValues, mode: Any) -> None:
        self._module, self._known, self._mode = module, known, mode
        self._constants = 0

    def trace(self, made: Any, node: Node) -> None:
        self._node = node
        node.meta.setdefault("from_node", [NodeSource(node)])  # as a new trace does: debug handles are made of it
        if _is_symbol(node):  # computed anew, it would be another number
            return
        if not isinstance(node.target, Operator | EdgeOpOverload):
            args, kwargs = _mapped((node.args, dict(node.kwargs)), Node, _value)
            _set(node, self._known.of(self._mode, node.target, args, kwargs))
            return
        args, kwargs = _mapped((node.args, dict(node.kwargs)), Node, _wrapped)
        with self._module.graph.inserting_before(node):
            result = made.call_operator(node.target, args, kwargs, NodeMetadata(node.meta))
        if result.node is not node:
            node.replace_all_uses_with(result.node)
            self._module.graph.erase_node(node)

    def __call__(self, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> ProxyValue:
        """Trace a call as ``_fx`` of a pass does, which this stands in for."""
        assert kind == "call_function"
        plain_args, plain_kwargs = _mapped((args, kwargs), ProxyValue, lambda each: each.data)
        value = self._known.of(self._mode, target, plain_args, plain_kwargs)
        args, kwargs = _mapped((args, kwargs), ProxyValue, lambda each: each.node)
        args, kwargs = _mapped((args, kwargs), torch.Tensor, self._constant)
        node = self._node
        if target != node.target or (args, kwargs) != (node.args, node.kwargs):
            node = self._module.graph.call_function(target, args, kwargs)
            node.meta.update(meta.data)
        _set(node, value)
        return ProxyValue(value, node)

    def _constant(self, value: torch.Tensor) -> Node:
        while hasattr(self._module, name := f"_tensor_constant{self._constants}"):
            self._constants += 1
        setattr(self._module, name, value)
        node: Node = self._module.graph.get_attr(name)
        _set(node, self._mode.from_tensor(value))
        return node


def _wrapped(node: Node) -> ProxyValue:
    return ProxyValue(_value(node), node)


def _set(node: Node, value: Any) -> None:
    node.meta["val"] = value
    node.meta["tensor_meta"] = _mapped(value, torch.Tensor, lambda each: None)
