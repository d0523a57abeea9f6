"""Register an operator with torch in the two forms that ExecuTorch's lowering asks for: with outputs, and with ``out``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

LIBRARY = torch.library.Library("hybridge", "DEF")


class Operators(Protocol):
    """A namespace of ``torch.ops`` whose operators return one tensor."""

    def __getattr__(self, name: str) -> Callable[..., Tensor]: ...


ops: Operators = torch.ops.hybridge
"""hybridge's own operators."""

RECURRENCES: list[str] = []
"""Names of the operators that ``define`` was given a commit of."""

Reference = Callable[..., Any]


def define(name: str, arguments: str, reference: Reference, fake: Reference, *, outputs: int = 1) -> None:
    """Define ``torch.ops.hybridge.<name>`` by a reference in torch, and by ``fake``, which makes outputs of the right shape.

    arguments: in the schema's language; those written in place are marked ``Tensor(a!)``, ``Tensor(b!)`` and so on.
    """
    if name.endswith("_commit"):
        RECURRENCES.append(name.removesuffix("_commit"))
    returned = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    LIBRARY.define(f"{name}({arguments}) -> {returned}")
    LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hybridge::{name}", fake, lib=LIBRARY)
    marks = [f"{chr(ord('m') + index)}!" for index in range(outputs)]
    names = ["out"] if outputs == 1 else [f"out{index}" for index in range(outputs)]
    slots = ", ".join(f"Tensor({mark}) {each}" for mark, each in zip(marks, names, strict=True))
    aliases = ", ".join(f"Tensor({mark})" for mark in marks)
    LIBRARY.define(f"{name}.out({arguments}, *, {slots}) -> {aliases if outputs == 1 else f'({aliases})'}")
    LIBRARY.impl(f"{name}.out", _with_out(reference, names), "CompositeExplicitAutograd")


def _with_out(reference: Reference, names: list[str]) -> Reference:
    def run(*args: Any, **given: Any) -> Any:
        outs: list[Tensor] = [given.pop(name) for name in names]
        results = reference(*args, **given)
        for out, result in zip(outs, (results,) if len(outs) == 1 else results, strict=True):
            out.resize_(result.shape).copy_(result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return run
