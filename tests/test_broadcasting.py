"""ExecuTorch 1.4's optimized elementwise operators refuse some broadcasts (its issue 10959): programs have others instead."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings import _portable_lib
from kernel_program import Calls
from torch import Tensor

from hybridge.cache.quiet import quiet
from hybridge.export.lowering.broadcasting import equalize_ranks

REFUSED = [((3, 2, 24), (1, 1, 3, 2, 1)), ((1, 2, 1), (2, 24)), ((2, 3, 24), (1, 2, 1, 24))]
TAKEN = [((24,), (1, 1, 24)), ((24,), (1, 3, 1)), ((3, 24), (1, 3, 24)), ((3, 2, 24), (5, 3, 2, 1)), ((3, 1), (3, 24))]


@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.mul, operator.truediv])
@pytest.mark.parametrize(("one", "other"), REFUSED)
def test_a_refused_broadcast_is_computed(function: Any, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    x, y = torch.randn(one), torch.rand(other) + 1
    with pytest.raises(RuntimeError, match="0x12"):  # else there is nothing to do any more
        run(torch.export.export(Calls(function, {}), (x, y)), x, y)
    program = torch.export.export(Calls(function, {}), (x, y))
    equalize_ranks(program)
    torch.testing.assert_close(run(program, x, y), function(x, y))


@pytest.mark.parametrize(("one", "other"), TAKEN)
def test_other_shapes_stay_as_they_are(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    program = torch.export.export(Calls(operator.add, {}), (torch.randn(one), torch.randn(other)))
    before = str(program.graph)
    equalize_ranks(program)
    assert str(program.graph) == before


def run(program: Any, x: Tensor, y: Tensor) -> Tensor:
    with quiet():
        lowered = to_edge_transform_and_lower(program).to_executorch()
    return _portable_lib._load_for_executorch_from_buffer(lowered.buffer).forward([x, y])[0].clone()
