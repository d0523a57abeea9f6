"""Rewrites of exported graphs: each changes the graph as it says, and never what it computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional as F

from hybridge.export.lower.rewrite import (
    drop_empty_operands,
    drop_idle_nodes,
    fold_constants,
    reductions_as_products,
    write_out_tanh_gelu,
)


class Everything(nn.Module):
    """Constants of all kinds beside a buffer that is only read, which must stay an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5), requires_grad=False)
        self.state: Tensor
        self.register_buffer("state", torch.zeros(5))
        self.length: Tensor
        self.register_buffer("length", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        scratch = torch.ones(5)
        scratch[1:3].add_(x[0, :2])  # a constant that is written to is none
        visible = torch.arange(5) <= self.length + 1
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)
        return torch.where(visible, normed + self.state, -self.weight.exp()) * scratch + x.sum(-1, keepdim=True)


def exported(module: nn.Module, *example: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(module, example, strict=False)


def calls(program: torch.export.ExportedProgram) -> list[str]:
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [name for name in names if "assert" not in name]


@pytest.fixture
def program() -> ExportedProgram:
    torch.manual_seed(0)
    return exported(Everything(), torch.randn(3, 5))


@pytest.mark.slow
@given(seed=st.integers(0, 5))
def test_rewrites_change_nothing_but_the_graph(seed: int) -> None:
    torch.manual_seed(seed)
    module, x = Everything(), torch.randn(3, 5)
    program = exported(module, x)
    fold_constants(program)
    reductions_as_products(program)
    torch.testing.assert_close(program.module()(x), module(x))


def test_what_depends_on_weights_alone_is_computed_once(program: ExportedProgram) -> None:
    before = calls(program)
    fold_constants(program)
    after = calls(program)
    assert any("exp" in name for name in before)
    assert not any("exp" in name or "arange" in name for name in after)


def test_state_is_never_a_constant_even_where_it_is_only_read(program: ExportedProgram) -> None:
    fold_constants(program)
    program.graph_module.graph.lint()
    assert set(program.graph_signature.inputs_to_buffers.values()) >= {"state", "length"}
    used = {node.target: len(node.users) for node in program.graph.nodes if node.op == "placeholder"}
    names = {buffer: name for name, buffer in program.graph_signature.inputs_to_buffers.items()}
    assert used[names["state"]] > 0
    assert used[names["length"]] > 0


class Growing(nn.Module):
    """A list of tensors that starts with none, as transformers' residual attention has it."""

    def forward(self, x: Tensor) -> Tensor:
        states = torch.cat([x.new_zeros(3, 0, 5), x.unsqueeze(1)], dim=1)
        return torch.cat([x.new_zeros(3, 0, 5), states, 2 * states], dim=1)


def test_nothing_is_concatenated_with_tensors_that_hold_nothing() -> None:
    x = torch.randn(3, 5)
    program = exported(Growing(), x)
    drop_empty_operands(program)
    joined = [node for node in program.graph.nodes if node.target == torch.ops.aten.cat.default]
    assert [len(node.args[0]) for node in joined] == [2]
    assert torch.equal(program.module()(x), Growing()(x))


def test_reductions_over_the_last_dimension_become_products(program: ExportedProgram) -> None:
    reductions_as_products(program)
    names = calls(program)
    assert not any("mean" in name or "sum.dim" in name for name in names)
    assert sum("linear" in name for name in names) == 2


class Idle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        unused = x * 3  # noqa: F841
        y = F.dropout(x.to(torch.float32).detach(), 0.5, training=False).contiguous()
        return y.to(torch.float64) + x.to(torch.float32, copy=True)


def test_what_computes_nothing_is_dropped_and_nothing_else() -> None:
    program, x = exported(Idle(), torch.ones(3)), torch.randn(3)
    want = program.module()(x)
    drop_idle_nodes(program)
    assert len(calls(program)) == 3, calls(program)
    torch.testing.assert_close(program.module()(x), want)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        (x @ self.weight).type_as(x.double()).to(torch.float32)
        return x + 1


def test_what_only_an_assertion_reads_is_dropped_with_its_weight() -> None:
    program = exported(Unused(), torch.ones(3))
    assert any("assert" in str(node.target) for node in program.graph.nodes)
    drop_idle_nodes(program)
    assert len(calls(program)) == 1, calls(program)


class WritesItsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.state.copy_(x.to(torch.float32))
        return x + 1


def test_writing_state_is_not_nothing() -> None:
    program = exported(WritesItsState(), torch.ones(3))
    drop_idle_nodes(program)
    assert any("copy_" in name for name in calls(program))


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh") + F.gelu(x)


def test_only_the_approximate_gelu_is_written_out() -> None:
    """XNNPACK's partitioner takes both and computes the exact one for both."""
    program, x = exported(Gelu(), torch.ones(64)), torch.linspace(-6, 6, 64)
    write_out_tanh_gelu(program)
    assert sum("gelu" in name for name in calls(program)) == 1
    torch.testing.assert_close(program.module()(x), Gelu()(x), rtol=1e-6, atol=1e-6)
