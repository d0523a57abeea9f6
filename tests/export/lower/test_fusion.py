"""What is recognized in exported graphs, what is left alone, and that neither changes what a graph computes."""

import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from packed_weights import packed_blocks
from torch import Tensor, nn
from torch.export import ExportedProgram

from hybridge.export.lower.fusion import fuse
from hybridge.export.lower.rewrite import drop_idle_nodes
from hybridge.export.operators.elementwise import rotate_half, rotate_neighbours
from hybridge.export.weights import PackedLinear


class Calls(nn.Module):
    """A function of tensors beside a weight and a piece of state."""

    weight: Tensor
    state: Tensor

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1.0, 2.0, 6), requires_grad=False)
        self.register_buffer("state", torch.ones(6))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def fused(function: Callable[..., Tensor], *inputs: Tensor) -> Counter[str]:
    """The operators of the fused graph, without their namespaces, once its result is found the same."""
    program = exported(function, *inputs)
    drop_idle_nodes(program)
    fuse(program)
    program.graph.lint()
    torch.testing.assert_close(program.module()(*inputs), Calls(function)(*inputs), rtol=1e-5, atol=1e-6)
    return Counter(node.target.__name__.split(".")[0] for node in program.graph.nodes if node.op == "call_function")


def exported(function: Callable[..., Tensor], *inputs: Tensor) -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Calls(function), inputs, strict=False)


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def layer(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    "norm",
    [
        lambda m, x: m.weight * rms(x.float()).to(x.dtype),
        lambda m, x: (rms(x) * (1.0 + m.weight)).type_as(x),
        lambda m, x: x * torch.pow((x * x).mean(-1, keepdim=True) + 1e-6, -0.5),
        lambda m, x: F.rms_norm(x, (6,), m.weight, 1e-5),
        lambda m, x: rms(x) * m.weight * 0.7,
        lambda m, x: rms(x.transpose(0, 1)).transpose(0, 1),
    ],
    ids=["usual", "plus one", "power", "PyTorch's own", "multiplier", "between transposes"],
)
def test_norms(norm: Callable[..., Tensor]) -> None:
    assert fused(norm, x(3, 5, 6)) == {"rms_norm": 1}


def test_grouped_norm() -> None:
    operators = fused(lambda m, x: m.weight.view(2, 3) * rms(x.view(3, 2, 3)), x(3, 6))
    assert operators == {"view": 1, "rms_norm": 1}


def test_weight_of_groups_that_are_joined_first() -> None:
    operators = fused(lambda m, x: m.weight * rms(x.view(3, 2, 3)).view(3, 6), x(3, 6))
    assert operators == {"view": 2, "rms_norm": 1}


def test_layer_norms() -> None:
    assert fused(lambda m, x: m.weight * layer(x), x(3, 6)) == {"layer_norm": 1}
    assert fused(lambda m, x: F.layer_norm(x, (6,), m.weight, m.weight), x(3, 6)) == {"layer_norm": 1}
    assert fused(lambda m, x: m.weight * layer(x) * 0.7, x(3, 6)) == {"layer_norm": 1}


def wrong_axis(m: Calls, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)


def another_tensor(m: Calls, x: Tensor) -> Tensor:
    return x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6)


def cube(m: Calls, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6)


def written_between(m: Calls, x: Tensor) -> Tensor:
    """The norm's scale is that of the state before it is written to."""
    scale = torch.rsqrt(m.state.pow(2).mean(-1, keepdim=True) + 1e-6)
    m.state.add_(x[0, 0])
    return m.state * scale


@pytest.mark.parametrize("function", [wrong_axis, another_tensor, cube, written_between])
def test_what_is_no_norm_stays(function: Callable[..., Tensor]) -> None:
    assert "rms_norm" not in fused(function, x(3, 5, 6))


@pytest.mark.parametrize(
    "gate",
    [
        lambda m, x, y: F.silu(x) * y,
        lambda m, x, y: y * F.gelu(x, approximate="tanh"),
        lambda m, x, y: y * torch.sigmoid(x),
        lambda m, x, y: x * torch.sigmoid(x),
    ],
    ids=["SwiGLU", "GeGLU", "sigmoid", "written-out SiLU"],
)
def test_gates(gate: Callable[..., Tensor]) -> None:
    assert fused(gate, x(3, 6) * 3, x(3, 6, seed=1)) == {"gated": 1}


def test_gate_that_something_else_reads_is_computed_once() -> None:
    operators = fused(lambda m, x, y: torch.sigmoid(x) * y + torch.sigmoid(x), x(3, 6), x(3, 6, seed=1))
    assert operators == {"activation": 1, "mul": 1, "add": 1}


def test_softplus_with_a_slope_of_its_own_stays() -> None:
    assert fused(lambda m, x: F.softplus(x) + F.softplus(x, beta=2), x(3, 6)) == {"activation": 1, "softplus": 1, "add": 1}


def heads_second(m: Calls, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The usual form, between the transposes of attention."""
    x, cos, sin = x.transpose(1, 2), cos.unsqueeze(1), sin.unsqueeze(1)
    return ((x * cos) + (rotate_half(x) * sin)).transpose(1, 2)


def heads_third(m: Calls, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    return rotate_neighbours(x) * sin + x * cos


def partial(m: Calls, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x, cos, sin = x.transpose(1, 2), cos.unsqueeze(1)[..., :4], sin.unsqueeze(1)[..., :4]
    turning, rest = x[..., :4], x[..., 4:]
    turned = (turning * cos) + (rotate_half(turning) * sin)
    return torch.cat([turned, rest], dim=-1).transpose(1, 2)


@pytest.mark.parametrize("function", [heads_second, heads_third, partial])
def test_rotary(function: Callable[..., Tensor]) -> None:
    operators = fused(function, x(2, 5, 3, 6), x(2, 5, 6, seed=1), x(2, 5, 6, seed=2))
    assert operators["rotary"] == 1
    assert not {"neg", "cat", "stack", "mul", "transpose"} & set(operators)


def test_angles_that_differ_by_head_are_no_rotary() -> None:
    operators = fused(lambda m, x, cos, sin: x * cos + rotate_half(x) * sin, x(2, 5, 3, 6), x(2, 5, 3, 6), x(2, 5, 3, 6))
    assert "rotary" not in operators


def test_products_with_one_go_and_others_stay() -> None:
    assert fused(lambda m, x: (x + 1) * 1.0 * 2.0 / 1.0, x(3, 6)) == {"add": 1, "mul": 1}


def test_logits_are_scaled_before_they_are_made() -> None:
    wide, narrow, bias = x(131, 6), x(2, 6), x(131)
    assert list(fused(lambda m, x: F.linear(x, wide) / 8.0, x(3, 6))) == ["div", "linear"]
    assert list(fused(lambda m, x: F.linear(x, narrow) * 0.5, x(3, 6))) == ["linear", "mul"]
    assert list(fused(lambda m, x: F.linear(x, wide, bias) * 0.5, x(3, 6))) == ["linear", "mul"]


def test_the_scale_of_logits_stays_out_of_the_norm_before_them() -> None:
    """A verify has no choice of a row between them, a prefill has: both must round in the same places (Cohere 2, Falcon-H1)."""
    wide = x(131, 6)
    assert fused(lambda m, x: F.linear(m.weight * rms(x), wide) * 0.7, x(3, 6))["mul"] == 1
    assert fused(lambda m, x: F.linear((m.weight * rms(x))[:1], wide) * 0.7, x(3, 6))["mul"] == 1


def test_logits_of_blocks_are_scaled_before_they_are_made() -> None:
    weight = packed_blocks("Q4_1", 131, 32)
    head, biased = PackedLinear(weight, None, integer=True), PackedLinear(weight, x(131), integer=True)
    assert list(fused(lambda m, x: head(x) / 8.0, x(3, 32))) == ["div", "block_linear"]
    assert list(fused(lambda m, x: biased(x) * 0.5, x(3, 32))) == ["block_linear", "mul"]


def test_packed_layers_over_one_input_are_one_call() -> None:
    a, b = (PackedLinear(packed_blocks(kind, 37, 256), None, integer=True) for kind in ("Q4_K", "Q6_K"))
    floats = PackedLinear(packed_blocks("Q4_K", 5, 256), x(5), integer=False)
    joined = fused(lambda m, x: torch.cat([a(x), b(x * 2.0), b(x), floats(x)], -1), x(3, 256))
    assert joined == {"block_linears": 1, "getitem": 2, "block_linear": 2, "mul": 1, "cat": 1}


def test_what_is_written_to_a_new_tensor_is_a_new_tensor() -> None:
    def function(m: Calls, x: Tensor) -> Tensor:
        y = x + 1
        y.mul_(3)
        return y + y.sum(-1, keepdim=True)

    assert fused(function, x(3, 6)) == {"add": 2, "mul": 1, "sum": 1}


def test_what_is_written_to_a_view_is_written() -> None:
    def function(m: Calls, x: Tensor) -> Tensor:
        y = x + 1
        y[:, :2].mul_(3)
        return y

    assert fused(function, x(3, 6))["mul_"] == 1


def test_state_that_is_written_between_is_read_twice() -> None:
    def function(m: Calls, x: Tensor) -> Tensor:
        before = m.state * 2
        m.state.add_(x[0, 0])
        after = m.state * 2
        m.state.sub_(x[0, 0])
        return before - after

    assert fused(function, x(3, 5, 6))["mul"] == 2
