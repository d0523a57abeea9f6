"""Name the tensors of a model that a program's constants are, or are computed of.

So the constants of another checkpoint of the same shape are found without lowering its program again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from hybridge.export.pinned.executorch import Source, source_of, with_source
from hybridge.export.pinned.torch_export import Operator

PLAIN = (bool, int, float, str, type(None))


def mark_sources(module: nn.Module) -> dict[str, Tensor]:
    """Mark every parameter and buffer of ``module`` with its name, a shared one with its first, and return them by name."""
    tensors = dict((*module.named_parameters(), *module.named_buffers()))
    for name, tensor in tensors.items():
        with_source(tensor, {"of": name})
    return tensors


def computed_source(program: ExportedProgram, node: Node) -> Source | None:
    """Return how the value of ``node`` is computed of parameters; None if it is of none.

    A value that this has no words for is ``{"unknown": ...}``: it is equal to no other, and no program with it is kept.
    """
    parameters, used = program.graph_signature.inputs_to_parameters, []

    def parameter(leaf: Node) -> Source:
        used.append(leaf)
        return source_of(program.state_dict[parameters[str(leaf.target)]]) or {"unknown": leaf.name}

    source = _words(node, parameter)
    return source if used else None


def graph_source(graph: Graph, names: Iterable[str]) -> Source:
    """Return how a graph computes a tensor of tensors with these names."""
    inputs = dict(zip(graph.find_nodes(op="placeholder"), names, strict=True))
    return _words(graph.output_node().args[0], lambda leaf: {"of": inputs[leaf]})


def _words(value: Any, leaf: Callable[[Node], Source]) -> Source:
    """Return the JSON of a node's value. leaf: returns that of an input."""
    match value:
        case Node(op="placeholder"):
            return leaf(value)
        case Node(target=Operator() as operator):
            named = {name: _words(each, leaf) for name, each in value.kwargs.items()}
            return {"call": str(operator), "with": [_words(each, leaf) for each in value.args], "named": named}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.memory_format():
            return {"format": str(value).removeprefix("torch.")}
        case list() | tuple():
            return [_words(each, leaf) for each in value]
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case _ if isinstance(value, PLAIN):
            return value
        case torch.device() | torch.layout() if value in (torch.device("cpu"), torch.strided):
            return None
        case _:
            return {"unknown": f"{type(value).__name__} {value}"}


def is_known(source: Source) -> bool:
    """Return whether ``compute`` can compute what ``source`` says."""
    match source:
        case {"unknown": _}:
            return False
        case dict():
            return all(is_known(each) for each in source.values())
        case list():
            return all(is_known(each) for each in source)
        case _:
            return True


def compute(source: Source, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor that ``source`` is, of ``tensors`` by name. Raises LookupError, TypeError, ValueError, RuntimeError."""
    value = _value(source, tensors)
    if not isinstance(value, Tensor):
        raise TypeError(f"{source!r:.80} is no tensor")
    return value.contiguous()


def _value(source: Source, tensors: Mapping[str, Tensor]) -> Any:
    match source:
        case {"of": str() as name}:
            return tensors[name].detach()
        case {"call": str() as name, "with": list() as arguments, "named": dict() as named}:
            operator = _operator(name)
            values = [_value(each, tensors) for each in arguments]
            return call(operator, values, {key: _value(each, tensors) for key, each in named.items()})
        case {"dtype": str() as name} | {"format": str() as name}:
            kind = getattr(torch, name)
            if not isinstance(kind, torch.dtype | torch.memory_format):
                raise TypeError(f"{name} is no type and no format")
            return kind
        case {"float": str() as text}:
            return float(text)
        case list():
            return [_value(each, tensors) for each in source]
        case _ if isinstance(source, PLAIN):
            return source
        case _:
            raise ValueError(f"{source!r:.80} says not what to compute")


def call(operator: Operator, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return what an operator makes of constants.

    An exponential is computed in float64 and rounded, because NumPy's (``hybridge.runtime.pack.expressions``) has another last
    bit than PyTorch's in float32.
    """
    if operator == torch.ops.aten.exp.default:
        (x,) = arguments
        return x.double().exp().to(x.dtype)
    return operator(*arguments, **named)


def _operator(name: str) -> Operator:
    """Return the operator of PyTorch's own of a name such as ``aten.mul.Tensor``."""
    space, own, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, own), overload)
    if space != "aten" or not isinstance(operator, Operator):
        raise ValueError(f"{name} is no operator of PyTorch's own")
    return operator
