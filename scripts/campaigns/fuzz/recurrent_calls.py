"""Good calls of the recurrent kernels, as random layers of ``tests/helpers/recurrences.py`` make them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from recurrences import Recurrence
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from campaigns.fuzz.kernel_arguments import Argument, Array, Call, Maybe, MaybeReal, Rng, call, size
from hybridge.export.pinned.torch_export import Operator, declared


class Calls(TorchDispatchMode):
    """Keeps what our operators are called with, and computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Operator, tuple[Any, ...], Tensor]] = []

    def __torch_dispatch__(self, func: Operator, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.namespace != "hybridge":
            return func(*args, **(kwargs or {}))
        shapes = (each.to("meta") if isinstance(each, Tensor) else each for each in args)
        self.kept.append((func, args, func(*shapes)))
        return torch.empty(0)


def good(kind: type[Recurrence], operation: int, rng: Rng) -> Call:
    """Return a call of the kind's block (0), verify (1) or commit (2)."""
    torch.manual_seed(int(rng.integers(2**31)))
    layer, tokens = kind.random(lambda most: size(rng, most)), size(rng)
    layer.state = torch.randn(size(rng, 2), *layer.state.shape[1:])
    inputs, count = layer.inputs(tokens, tokens), torch.tensor([int(rng.integers(0, tokens + 1))])
    room = tokens + int(rng.integers(0, 3))
    staged = {name: torch.randn(each.shape) for name, each in layer.staged(room).items()}
    with Calls() as calls:
        if operation == 0:
            layer.extend(*inputs, count, state=layer.state)
        elif operation == 1:
            layer.verify(*inputs, state=layer.state, **staged)
        else:
            layer.commit(count, state=layer.state, **staged)
    ((operator, arguments, out),) = calls.kept
    types = [str(each.type) for each in declared(operator).arguments]
    given = [_argument(rng, *each) for each in zip(types, arguments, strict=True)]
    return [*given, Array(np.zeros(out.shape, np.float32 if out.is_floating_point() else np.int64))]


def _argument(rng: Rng, kind: str, value: Any) -> Argument:
    """Return an operator's argument, which may as well be missing if it is optional."""
    given: Any = Array(value.numpy()) if isinstance(value, Tensor) else int(value) if isinstance(value, bool) else value
    if not kind.startswith("Optional"):
        return given  # type: ignore[no-any-return]
    kept = given if rng.random() < 0.7 else None
    return MaybeReal(kept) if "float" in kind else Maybe(kept)


for each in Recurrence.__subclasses__():
    for operation, name in enumerate(each.operators):
        call(name)(partial(good, each, operation))
