"""Compute constants of tensors in NumPy, by expressions that the export traced with PyTorch.

An expression is JSON: ``{"of": NAME}`` for a tensor, ``{"call": OPERATOR, "with": ARGUMENTS, "named": {...}}`` for what one of
PyTorch's operators makes, and numbers, texts and lists as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hybridge.runtime.pack.panels import Array


class UnknownExpressionError(Exception):
    """An expression has an operator that is not known here, or tensors that do not fit."""


def evaluate(expression: Any, tensors: Callable[[str], Array]) -> Any:
    """Return the array, number or list that an expression stands for.

    Raises UnknownExpressionError, and what ``tensors`` raises.
    """
    match expression:
        case {"of": str() as name}:
            return tensors(name)
        case {"call": str() as name, "with": list() as arguments, "named": dict() as named} if name in OPERATORS:
            values = [evaluate(each, tensors) for each in arguments]
            try:
                return OPERATORS[name](*values, **{key: evaluate(each, tensors) for key, each in named.items()})
            except (TypeError, ValueError, IndexError) as error:
                raise UnknownExpressionError(f"{name}: {error}") from error
        case list():
            return [evaluate(each, tensors) for each in expression]
        case {"dtype": str() as name}:
            return np.dtype(name)
        case {"format": str()}:
            return None
        case int() | float() | str() | None:
            return expression
        case _:
            raise UnknownExpressionError(f"{expression!r:.80}")


def _flatten(x: Array, first: int = 0, last: int = -1) -> Array:
    first, last = first % max(x.ndim, 1), last % max(x.ndim, 1)
    return x.reshape(*x.shape[:first], -1, *x.shape[last + 1 :])


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _expand(x: Array, sizes: list[int]) -> Array:
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    return np.broadcast_to(x, [old if new == -1 else new for old, new in zip(own, sizes, strict=True)])


def _same(x: Array, memory_format: None = None) -> Array:
    return x


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "aten.add.Tensor": lambda x, y: x + y,
    "aten.sub.Tensor": lambda x, y: x - y,
    "aten.rsub.Scalar": lambda x, y: y - x,
    "aten.mul.Tensor": lambda x, y: x * y,
    "aten.div.Tensor": lambda x, y: x / y,
    "aten.neg.default": np.negative,
    "aten.exp.default": lambda x: np.exp(x.astype(np.float64)).astype(x.dtype),  # as hybridge.export.lower.sources.call
    "aten.log.default": np.log,
    **dict.fromkeys(("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"), np.reshape),
    **dict.fromkeys(("aten.detach.default", "aten.alias.default", "aten.contiguous.default", "aten.clone.default"), _same),
    "aten.to.dtype": lambda x, dtype: x.astype(dtype),
    "aten._to_copy.default": lambda x, dtype: x.astype(dtype),
    "aten.transpose.int": np.swapaxes,
    "aten.permute.default": np.transpose,
    "aten.t.default": np.transpose,
    "aten.numpy_T.default": np.transpose,
    "aten.flatten.using_ints": _flatten,
    "aten.squeeze.default": np.squeeze,
    "aten.squeeze.dim": lambda x, dim: x.squeeze(dim) if x.shape[dim] == 1 else x,
    "aten.unsqueeze.default": np.expand_dims,
    "aten.expand.default": _expand,
    "aten.cat.default": lambda parts, dim=0: np.concatenate(parts, axis=dim),
    "aten.stack.default": lambda parts, dim=0: np.stack(parts, axis=dim),
    "aten.slice.Tensor": _slice,
    "aten.sum.dim_IntList": lambda x, dims: x.sum(axis=tuple(dims)),
    "aten.select.int": lambda x, dim, index: x.take(index, axis=dim),
    "aten.split.Tensor": lambda x, size, dim=0: np.split(x, range(size, x.shape[dim], size), axis=dim),
}
"""Operators of PyTorch's by name. Where their numbers are not PyTorch's, the export finds that out and keeps no program."""
