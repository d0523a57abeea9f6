"""ExecuTorch 1.5.1's passes over graphs: patches that leave out those with nothing to do, and retrace the others quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest import mock

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportPass, ProxyValue, _ExportPassBase
from executorch.exir.passes.dim_order_ops_registry import DimOrderOpsMap
from executorch.exir.passes.legalize_portable_dim_order_pass import LegalizePortableDimOrderPass
from executorch.exir.passes.memory_format_ops_pass import MemoryFormatOpsPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass, aten_to_edge, should_lower_to_edge
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._export.passes.replace_view_ops_with_view_copy_ops_pass import ReplaceViewOpsWithViewCopyOpsPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

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
    if node.op == "get_attr":
        graph: Any = node.graph.owning_module
        return getattr(getattr(graph, str(node.target)), "dtype", None)
    return getattr(node.meta.get("val"), "dtype", None)


def _has_memory_format(node: AnyNode) -> bool:
    return node.target in DimOrderOpsMap


def _has_other_order(node: AnyNode) -> bool:
    if node.target not in LegalizePortableDimOrderPass._target_ops:
        return False
    value = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    return not isinstance(value, torch.Tensor) or list(value.dim_order()) != list(range(value.dim()))


SOUGHT: Mapping[type[Any], Callable[[AnyNode], bool]] = {
    ReplaceViewOpsWithViewCopyOpsPass: _is_view,
    NormalizeTransposePass: lambda node: node.target == aten.t.default,
    ReplaceBrokenOpsWithFunctionalOpsPass: _is_view,
    ScalarToTensorPass: _has_number_for_tensor,
    SymToTensorPass: _is_symbol,
    RemoveMixedTypeOperators: _mixes_types,
    MemoryFormatOpsPass: _has_memory_format,
    LegalizePortableDimOrderPass: _has_other_order,
}
"""The calls that a pass changes, by the pass: without any of them it only traces the graph once more."""


@contextmanager
def fewer_retraces() -> Iterator[None]:
    """Skip the passes in ``SOUGHT`` that have nothing to do, and swap operators for those of the edge dialect in place.

    Patches ``call`` of these passes. Each would trace the graph anew to the same graph.
    """
    with ExitStack() as patches:
        for each, sought in SOUGHT.items():
            patches.enter_context(mock.patch.object(each, "call", _where_found(each.call, sought)))
        patches.enter_context(mock.patch.object(OpReplacePass, "call", _replace_in_place))
        yield


def _where_found(call: Any, sought: Callable[[AnyNode], bool]) -> Any:
    def run(self: Any, module: GraphModule) -> PassResult:
        if _has_branches(module) or any(node.op == "call_function" and sought(node) for node in module.graph.nodes):
            result: PassResult = call(self, module)
            return result
        return PassResult(module, False)

    return run


def _has_branches(module: GraphModule) -> bool:
    return any(isinstance(each, GraphModule) for each in module.children())


def _replace_in_place(self: Any, module: GraphModule) -> PassResult:
    if _has_branches(module):
        return _ExportPassBase.call(self, module)
    for node in module.graph.nodes:
        if node.op == "call_function" and should_lower_to_edge(node.target):
            node.target = aten_to_edge(node.target)
    return PassResult(module, True)


# Quick retraces


@contextmanager
def remembered_values() -> Iterator[None]:
    """Retrace graphs without computing again what an operator makes of the same fake tensors, pass after pass.

    Patches ``_fx`` of ExecuTorch's passes, which traces one call, to the same graph, and ``run_node``, which writes each node
    as text for a message.
    """
    known: dict[Any, Any] = {}
    kept: list[Any] = []  # what identities in keys are of

    def trace(self: Any, kind: str, target: Any, args: Any, kwargs: Any, meta: Any) -> ProxyValue:
        plain_args, plain_kwargs = _unwrapped(args, _datum), _unwrapped(kwargs, _datum)
        key = _key(self.fake_tensor_mode, target, plain_args, plain_kwargs)
        value = known.get(key) if key is not None else None
        if value is None:
            value = getattr(self.interpreter, kind)(target, plain_args, plain_kwargs)
            if key is not None and _is_fixed(value):
                known[key] = value
                kept.append((self.fake_tensor_mode, plain_args, plain_kwargs))
        name = self.tracer.graph._target_to_str(target.overloadpacket.__name__) if isinstance(target, Operator) else None
        proxy = self.tracer.create_proxy(kind, target, _unwrapped(args, _proxy), _unwrapped(kwargs, _proxy), name=name)
        proxy.node.meta.update(meta.data)
        if type(value) is FakeTensor:
            proxy.node.meta["val"], proxy.node.meta["tensor_meta"] = value, None
        else:
            self.tracer.set_metadata(proxy.node, value)
        return ProxyValue(value, proxy)

    with (
        mock.patch.object(_ExportPassBase, "_fx", trace),
        mock.patch.object(_ExportPassBase.ExportInterpreter, "run_node", _run_node),
    ):
        yield


def _run_node(self: Any, node: Node) -> Any:
    self.node = node
    return torch.fx.Interpreter.run_node(self, node)


def _datum(value: ProxyValue) -> Any:
    return value.data


def _proxy(value: ProxyValue) -> Any:
    return value.proxy


def _unwrapped(value: Any, take: Callable[[ProxyValue], Any]) -> Any:
    if isinstance(value, ProxyValue):
        return take(value)
    if isinstance(value, tuple):
        return tuple([_unwrapped(each, take) for each in value])
    if isinstance(value, list):
        return [_unwrapped(each, take) for each in value]
    if isinstance(value, dict):
        return {name: _unwrapped(each, take) for name, each in value.items()}
    return value


NUMBERS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _key(mode: Any, target: Any, args: Any, kwargs: Any) -> Any:
    """Return a key of a call by what it is given, fake tensors by their identity; None for what may not be remembered."""
    operator = target._op if isinstance(target, EdgeOpOverload) else target
    if not isinstance(operator, Operator) or declared(operator).is_mutable:
        return None
    try:
        return id(mode), operator, _frozen(args), _frozen(kwargs)
    except TypeError:
        return None


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.Tensor, id(value)
    if isinstance(value, list | tuple):
        return tuple([_frozen(each) for each in value])
    if isinstance(value, dict):
        return tuple([(name, _frozen(each)) for name, each in value.items()])
    if isinstance(value, NUMBERS):
        return type(value), value
    raise TypeError(type(value))


def _is_fixed(value: Any) -> bool:
    """Return whether it is a fake tensor of known sizes, or several."""
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_fixed(each) for each in value)
    return type(value) is FakeTensor and value.constant is None and all(type(size) is int for size in value.shape)


__all__ = ["SOUGHT", "ExportPass", "fewer_retraces", "remembered_values"]
