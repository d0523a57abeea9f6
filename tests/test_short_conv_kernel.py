"""The short convolution's kernel against its reference, and that against the definition."""

import pytest
import torch
from kernel_twins import Twins, one
from torch import Tensor

import hybridge.runtime.kernels.short_conv  # noqa: F401  registers the operators
from hybridge.cache.short_conv import short_conv_naive
from hybridge.runtime.kernels.activation import ACTIVATIONS
from hybridge.runtime.program import set_threads

ops = torch.ops.hybridge

SIZES = [(5, 3, 2, True, "", 1), (40, 4, 0, False, "silu", 1), (19, 2, 7, True, "gelu_tanh", 1), (1029, 4, 3, False, "silu", 2)]
"""channels, kernel, channels of the row before and behind them, bias, activation, threads"""


class Conv:
    def __init__(self, sizes: tuple[int, int, int, bool, str, int]) -> None:
        self.C, self.K, self.start, biased, self.activation, threads = sizes
        set_threads(threads)
        self.weight = torch.randn(self.C, self.K)
        self.bias = torch.randn(self.C) if biased else None
        self.window = torch.randn(1, self.K - 1, self.C)
        self.taps = self.weight.T.contiguous()

    def inputs(self, tokens: int, real: int) -> Tensor:
        x = torch.randn(1, tokens, self.C + 2 * self.start)
        x[:, real:] = float("nan")
        return x

    def extend(self, x: Tensor, count: Tensor, *, window: Tensor) -> Tensor:
        return ops.short_conv(x, self.taps, self.bias, window, count, self.start, self.activation)

    def verify(self, x: Tensor, *, window: Tensor, staged: Tensor) -> Tensor:
        return ops.short_conv_verify(x, self.taps, self.bias, window, staged, self.start, self.activation)

    def commit(self, count: Tensor, *, window: Tensor, staged: Tensor) -> Tensor:
        return ops.shift_window(window, staged, count)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_a_block_is_the_naive_convolution_up_to_its_count(tokens: int, sizes: tuple[int, int, int, bool, str, int]) -> None:
    torch.manual_seed(tokens)
    conv = Conv(sizes)
    twins = Twins(conv.extend, (conv.inputs(tokens, tokens), one(1)), window=conv.window)
    for count in {0, 1, tokens // 2, tokens - 1, tokens}:
        before, x = twins.state["window"].clone(), conv.inputs(tokens, count)
        out, window = twins(x, one(count))
        assert not out[:, count:].any()
        if count == 0:
            assert torch.equal(window, before)
            continue
        inputs = x[:, :count, conv.start : conv.start + conv.C].transpose(1, 2)
        want, kept = short_conv_naive(inputs, conv.weight, conv.bias, before.transpose(1, 2))
        want = ACTIVATIONS[conv.activation](want) if conv.activation else want
        torch.testing.assert_close(out[:, :count].transpose(1, 2), want, rtol=1e-5, atol=2e-6)
        assert torch.equal(window.transpose(1, 2), kept)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5])
def test_a_verify_leaves_the_window_and_a_commit_moves_it(tokens: int, sizes: tuple[int, int, int, bool, str, int]) -> None:
    torch.manual_seed(tokens)
    conv = Conv(sizes)
    x, staged = conv.inputs(tokens, tokens), torch.full((1, tokens + 1, conv.C), float("nan"))
    out, window, staged = Twins(conv.verify, (x,), window=conv.window, staged=staged)(x)
    assert torch.equal(window, conv.window)
    commit = Twins(conv.commit, (one(1),), window=conv.window, staged=staged)
    for count in {0, 1, tokens}:
        extended = commit.state["window"].clone()
        conv.extend(x, one(count), window=extended)
        _, committed, _ = commit(one(count))
        assert torch.equal(committed, extended)
    torch.testing.assert_close(out, conv.extend(x, one(tokens), window=conv.window.clone()), rtol=1e-5, atol=2e-6)
