import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hybridge.export.lower.rewrite import drop_idle_nodes, write_out_tanh_gelu


def exported(module: nn.Module, *example: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(module, example, strict=False)


def calls(program: torch.export.ExportedProgram) -> list[str]:
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [name for name in names if "assert" not in name]


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
