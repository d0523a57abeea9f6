"""Check the arguments of public functions by their annotations, so that a wrong one is an error of ours and says its name."""

from __future__ import annotations

import functools
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from hybridge.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function raise UsageError for arguments of other types than it is annotated with, before it does anything.

    Whole numbers are those of 64 bits; a truth is no number, and a text no collection. What an ``Iterable`` or an ``Any`` holds
    is left to the function.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            hint = _hints(function).get(name, Any)
            if not _fits(value, hint):
                raise UsageError(f"{name} is {reprlib.repr(value)}, but must be {inspect.formatannotation(hint)}.")
        return function(*args, **kwargs)

    return call


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of a function, at its first call: at import some of their names are not there yet."""
    return typing.get_type_hints(function)


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value is of an annotation's type."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in parts)
    if kind is typing.Literal:
        return isinstance(value, str | int) and value in parts
    if kind is int:
        return _is_number(value, Integral) and -(2**63) <= typing.cast("int", value) < 2**64
    if kind is float:
        return _is_number(value, Real)
    if kind in (Collection, Sequence):
        is_one = isinstance(value, kind) and not isinstance(value, str | bytes) and getattr(value, "ndim", 1) == 1
        return is_one and all(_fits(item, parts[0]) for item in typing.cast("Collection[object]", value))
    if kind is Callable:
        return callable(value)
    return kind in (Any, Iterable) or not isinstance(kind, type) or isinstance(value, kind)


def _is_number(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
