"""Keep ExecuTorch's elementwise operators off shapes that they refuse while running.

The optimized kernels of 1.4 choose the rank of the result by one operand alone where both are broadcast, or the last dimension
is (ExecuTorch issue 10959, mended by its pull request 21052 after 1.4): [3, 2, 8] + [1, 1, 3, 2, 1] fails. That is a decode of
one token, whose dimensions of 1 come first.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

aten = torch.ops.aten
ELEMENTWISE = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor})


def equalize_ranks(program: ExportedProgram) -> None:
    """Give the operand of lower rank dimensions of 1 in front, where the other has nothing else there."""
    for node in program.graph.nodes:
        if node.target not in ELEMENTWISE or not all(isinstance(each, Node) for each in node.args[:2]):
            continue
        low, high = sorted(node.args[:2], key=lambda each: each.meta["val"].dim())
        shape = _wider(low.meta["val"].shape, high.meta["val"].shape)
        if shape is None:
            continue
        with program.graph.inserting_before(node):
            view = program.graph.call_function(aten.view.default, (low, shape))
        view.meta["val"] = low.meta["val"].view(shape)
        node.replace_input_with(low, view)
    program.graph_module.recompile()


def _wider(low: torch.Size, high: torch.Size) -> list[int] | None:
    """``low`` in the rank of ``high``; None where the kernels do as it is: equal shapes, and rows by one row."""
    extra = len(high) - len(low)
    known = all(isinstance(size, int) for size in (*low, *high))
    if extra < 1 or len(low) < 2 or not known or any(size != 1 for size in high[:extra]) or high[extra:] == low:
        return None
    return [1] * extra + list(low)
