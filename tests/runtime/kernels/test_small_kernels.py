"""Norms, activations, rotary embedding, permutations: the compiled kernels against their references on 1 and 2 threads."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kernel_program import KernelProgram
from torch import Tensor

from hybridge.cache.operations.kernels import CoreKernels
from hybridge.export.operators.attention import permute
from hybridge.export.operators.elementwise import ACTIVATIONS, activation, gated, layer_norm, rms_norm, rotary
from hybridge.runtime.binding.library import set_threads

ops = torch.ops.hybridge

SHAPES = [(1, 1, 1024), (1, 5, 48), (1, 3, 7, 17), (2, 129, 3, 96), (1, 1)]

CORE = CoreKernels()


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    set_threads(2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(compiled: Callable[..., Any], reference: Callable[..., Any], *inputs: Tensor, tolerance: float = 2e-6) -> None:
    """Both give the same, whatever the number of threads."""
    compare(KernelProgram(compiled, inputs), reference, *inputs, tolerance=tolerance)


def compare(program: KernelProgram, reference: Callable[..., Any], *inputs: Tensor, tolerance: float = 2e-6) -> None:
    expected = reference(*inputs)
    for threads in (1, 2):
        set_threads(threads)
        for each, value in zip(program(*inputs), expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(each, value, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, ...]) -> None:
    """Without a weight, with one, and with one for each of the groups before the last dimension."""
    weights = [None, normal(shape[-1], seed=1), normal(*shape[-2:], seed=2)]
    check(
        lambda x: tuple(ops.rms_norm(x, weight, 1e-6) for weight in weights),
        lambda x: tuple(rms_norm(x, weight, 1e-6) for weight in weights),
        normal(*shape) * 3,
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_layer_norm(shape: tuple[int, ...]) -> None:
    weight, bias = normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    check(
        lambda x: (ops.layer_norm(x, weight, bias, 1e-5), ops.layer_norm(x, None, None, 1e-5)),
        lambda x: (layer_norm(x, weight, bias, 1e-5), layer_norm(x, None, None, 1e-5)),
        normal(*shape) * 3 + 5,
        tolerance=5e-6,
    )


@pytest.mark.slow
def test_activations() -> None:
    x = torch.cat([normal(1, 2, 8191) * 20, torch.tensor([[[-200.0, 200.0, 0.0]] * 2])], dim=-1)
    check(
        lambda x: tuple(ops.activation(x, name) for name in ACTIVATIONS),
        lambda x: tuple(activation(x, name) for name in ACTIVATIONS),
        x,
    )


@pytest.mark.slow
def test_small_activations_keep_their_digits() -> None:
    """What a sum would swallow: probabilities of unlikely things."""
    x = torch.linspace(-80.0, -5.0, 37)
    program = KernelProgram(lambda x: (ops.activation(x, "sigmoid"), ops.activation(x, "silu")), [x])
    for each, expected in zip(program(x), (torch.sigmoid(x), torch.nn.functional.silu(x)), strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-6, atol=0.0)


@pytest.mark.slow
def test_tanh_is_accurate_everywhere() -> None:
    x = torch.cat([torch.linspace(-12.0, 12.0, 9973), torch.logspace(-30, -1, 97)])
    program = KernelProgram(lambda x: ops.activation(x, "tanh"), [x])
    torch.testing.assert_close(program(x)[0].double(), x.double().tanh(), rtol=2.0**-22, atol=0.0)


@pytest.mark.slow
def test_gates() -> None:
    x, gate = normal(1, 3, 1027), normal(1, 3, 1027, seed=1) * 4
    check(
        lambda x, gate: tuple(ops.gated(x, gate, name) for name in ACTIVATIONS),
        lambda x, gate: tuple(gated(x, gate, name) for name in ACTIVATIONS),
        x,
        gate,
        tolerance=5e-6,
    )


@pytest.mark.slow
def test_nan_stays_nan() -> None:
    x = normal(1, 20)
    x[..., 3] = float("nan")
    outputs = KernelProgram(lambda x: tuple(ops.activation(x, name) for name in ACTIVATIONS), [x])(x)
    assert all(torch.equal(each.isnan(), x.isnan()) for each in outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "turned"), [((1, 1, 4, 64), 64), ((1, 67, 3, 34), 12), ((2, 5, 1, 6), 2), ((1, 3, 2, 18), 18)], ids=str
)
def test_rotary(shape: tuple[int, ...], turned: int) -> None:
    """Halves and neighbours, with angles for each sequence or the same for all."""
    x, cos, sin = normal(*shape), normal(shape[0], 1, shape[1], turned, seed=1), normal(shape[0], 1, shape[1], turned, seed=2)

    def both(function: Any) -> Callable[..., Any]:
        return lambda x, cos, sin: (function(x, cos, sin, False), function(x, cos[:1], sin[:1], True))

    check(both(ops.rotary), both(rotary), x, cos, sin)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((1, 67, 129), (0, 2, 1)),
        ((2, 3, 17, 5), (0, 2, 1, 3)),
        ((3, 5, 7, 2), (3, 1, 0, 2)),
        ((4, 1, 9), (2, 1, 0)),
        ((5,), (0,)),
    ],
    ids=str,
)
def test_permute(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    """In every size of number."""
    x = normal(*shape)
    inputs = (x, (x * 9).to(torch.int64), x > 0)
    check(lambda *each: tuple(ops.permute(x, dims) for x in each), lambda *each: tuple(permute(x, dims) for x in each), *inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shapes",
    [
        ((1,), (1, 1, 67), ()),
        ((67, 1), (1, 67, 129), (1, 67, 129)),
        ((5, 7), (5, 7), (5, 1)),
        ((3, 1, 5), (4, 5), (3, 4, 1)),
        ((), (), ()),
    ],
    ids=str,
)
def test_where(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Broadcast in every way, in every size of number."""
    condition, x, other = normal(*shapes[0]) > 0, normal(*shapes[1], seed=1), normal(*shapes[2], seed=2)

    def all_sizes(function: Any) -> Callable[..., Any]:
        return lambda c, x, y: (
            function(c, x, y),
            function(c, x.long(), y.long()),
            function(c, x > 0, y > 0),
            function(~c, x, y),
        )

    check(all_sizes(ops.where), all_sizes(torch.where), condition, x, other)


@pytest.mark.slow
def test_products_and_shares_have_the_same_bits_for_one_token_and_for_several() -> None:
    """ExecuTorch's own product sums one row in another order than several, and its division by one number multiplies."""
    weight, x, heads = normal(3, 40, 33), normal(1, 9, 40), normal(1, 9, 3, 40, seed=1)

    def function(x: Tensor, heads: Tensor) -> tuple[Tensor, ...]:
        best = x.softmax(-1).topk(4, -1).values
        turned = weight[0].T @ x.transpose(1, 2)
        of_heads = (heads.transpose(1, 2) @ weight).transpose(1, 2)
        shares = best / best.sum(-1, keepdim=True)
        return shares, x[..., 0] / 7.0, of_heads, heads @ weight[0], turned.transpose(1, 2)

    one = KernelProgram(function, (x[:, :1], heads[:, :1].contiguous()))
    rows = zip(*(one(x[:, t : t + 1], heads[:, t : t + 1].contiguous()) for t in range(9)), strict=True)
    for block, want, each in zip(KernelProgram(function, (x, heads))(x, heads), function(x, heads), rows, strict=True):
        torch.testing.assert_close(block, want, rtol=2e-6, atol=2e-6)
        assert block.equal(torch.cat(each, 1))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5, 64, 1027, 5000])
def test_draft_tokens_are_chosen_by_their_scores(count: int) -> None:
    """By noise that depends on the tokens' ids, of all rows or of each."""
    generator = torch.Generator().manual_seed(1)
    scores, noise = normal(1, 7, count) * 3, torch.randint(2**32, (1, 7), generator=generator)
    ids = torch.stack([torch.randperm(count, generator=generator) for _ in range(7)])[None] * 3
    kept = min(count, 16)
    program = KernelProgram(
        lambda scores, noise, heat, ids: (
            ops.draw(scores, noise, heat, None),
            ops.draw(scores, noise, heat, ids[:, :1].clone()),
            ops.draw(scores, noise, heat, ids),
            ops.top_chance(scores),
            ops.best_candidates(scores, kept),
        ),
        (scores, noise, torch.tensor([1.0]), ids),
    )
    for heat in (0.0, 0.7, 3.0):
        compare(
            program,
            lambda x, noise, heat, ids: (
                CORE.draw(x, noise, heat),
                CORE.draw(x, noise, heat, ids[:, :1]),
                CORE.draw(x, noise, heat, ids),
                CORE.top_probability(x),
                CORE.best_candidates(x, kept),
            ),
            *(scores, noise, torch.tensor([heat]), ids),
        )


@pytest.mark.slow
@pytest.mark.parametrize("fill", [float("nan"), float("-inf"), 0.0])
def test_scores_that_say_nothing_choose_something(fill: float) -> None:
    scores = torch.full((1, 2, 70), fill)
    program = KernelProgram(
        lambda scores, noise, heat: (ops.draw(scores, noise, heat, None), ops.best_candidates(scores, 3)),
        (scores, torch.tensor([[0, 2**32 - 1]]), torch.tensor([1.0])),
    )
    for heat in (0.0, 1.0):
        drawn, best = program(scores, torch.tensor([[0, 2**32 - 1]]), torch.tensor([heat]))
        assert bool(((drawn >= 0) & (drawn < 70)).all())
        assert bool(((best >= 0) & (best < 70)).all())
