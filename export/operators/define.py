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


def define(name: str, arguments: str, reference: Reference, fake: Reference, *, returns: str = "Tensor") -> None:
    """Define ``torch.ops.hybridge.<name>`` by a reference in torch, and by ``fake``, which makes outputs of the right shape.

    arguments: in the schema's language; those written in place are marked ``Tensor(a!)``, ``Tensor(b!)`` and so on.
    returns: ``Tensor``, or ``Tensor[]``.
    """
    if name.endswith("_commit"):
        RECURRENCES.append(name.removesuffix("_commit"))
    is_list = returns == "Tensor[]"
    LIBRARY.define(f"{name}({arguments}) -> {returns}")
    LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"hybridge::{name}", fake, lib=LIBRARY)
    out, same = ("Tensor(m!)[] out", "()") if is_list else ("Tensor(m!) out", "Tensor(m!)")
    LIBRARY.define(f"{name}.out({arguments}, *, {out}) -> {same}")

    def run(*args: Any, out: Any, **given: Any) -> Any:
        results = reference(*args, **given)
        for each, result in zip(out, results, strict=True) if is_list else [(out, results)]:
            each.resize_(result.shape).copy_(result)
        return None if is_list else out

    LIBRARY.impl(f"{name}.out", run, "CompositeExplicitAutograd")
