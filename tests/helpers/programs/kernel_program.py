"""Run one operator of ``torch.ops.hybridge`` as the runtime does: a program of its own, loaded and called."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch import Tensor, nn

from hybridge.export.lower.fusion import EDGE_PASSES
from hybridge.export.lower.lower import quick_lowering
from hybridge.runtime.binding.library import set_threads
from hybridge.runtime.kernels import library


class Calls(nn.Module):
    """A method that calls ``function`` over its inputs and the ``state`` buffers, which it may write to."""

    def __init__(self, function: Callable[..., Any], state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.function = function
        self.names = list(state)
        for name, tensor in state.items():
            self.register_buffer(name, tensor.clone())

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, **{name: self.get_buffer(name) for name in self.names})


class KernelProgram:
    """``function`` over tensors like ``inputs`` as a loaded program; ``state`` lives inside it and starts as given."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Tensor], **state: Tensor) -> None:
        from executorch.extension.pybindings import _C

        library.load()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the lowering's own making
            self._buffer = _lowered(Calls(function, state), tuple(inputs))  # weights are read from it as long as it lives
        self._module = _C._load_for_executorch_from_buffer(self._buffer)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        return [output.clone() for output in self._module.forward(list(inputs))]


def _lowered(method: Calls, inputs: tuple[Tensor, ...]) -> bytes:
    starts_as_given = InitializedMutableBufferPass(method.names)
    config = ExecutorchBackendConfig(emit_mutable_buffer_names=True, passes=[starts_as_given] if method.names else [])
    with quick_lowering():
        exported = torch.export.export(method, inputs, strict=False)
        edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False)).transform(EDGE_PASSES)
        return bytes(edge.to_executorch(config).buffer)


def both(layers: Sequence[Callable[..., Tensor]], *inputs: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what the program gives for each layer and its inputs, on one thread and then on two, with what eager code gives.

    All are in one program: to make one takes a fifth of a second, and each further call in it a twentieth.
    """

    def call(*flat: Tensor) -> list[Tensor]:
        return [layer(*flat[at :: len(layers)]) for at, layer in enumerate(layers)]

    flat = [each for row in inputs for each in row]
    program, want = KernelProgram(call, flat), call(*flat)
    for threads in (1, 2):
        set_threads(threads)
        yield from zip(program(*flat), want, strict=True)


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
            close(mine, reference)
        return got


def close(got: Tensor, want: Tensor) -> None:
    """To some rounding errors of the largest number; NaN where there is NaN."""
    largest = float(want.nan_to_num().abs().max()) if want.numel() else 0.0
    torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6 * max(1.0, largest), equal_nan=True)


def one(number: int) -> Tensor:
    """int64 [1]."""
    return torch.tensor([number])
