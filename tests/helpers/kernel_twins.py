"""One operator as a program and as its reference in torch, side by side: the same calls, the same outputs, the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from kernel_program import KernelProgram
from torch import Tensor


class Twins:
    """``function`` over tensors like ``inputs`` and ``state`` by name, which it may write to."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Tensor], **state: Tensor) -> None:
        self.function = function
        self.state = {name: tensor.clone() for name, tensor in state.items()}
        self.program = KernelProgram(self._run, inputs, **state)

    def _run(self, *inputs: Tensor, **state: Tensor) -> list[Tensor]:
        return [self.function(*inputs, **state), *(tensor.clone() for tensor in state.values())]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The program's output and state, after checking that both are the reference's."""
        want = self._run(*inputs, **self.state)
        got = self.program(*inputs)
        for mine, reference in zip(got, want, strict=True):
            torch.testing.assert_close(mine, reference, rtol=1e-5, atol=2e-6, equal_nan=True)
        return got


def one(number: int) -> Tensor:
    """int64 [1]."""
    return torch.tensor([number])
