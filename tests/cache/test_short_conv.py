import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_config
from torch import Tensor

from hybridge.cache import HybridCache
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import CoreKernels
from hybridge.cache.recurrences.short_conv import ShortConvolution, short_conv_naive, window_after

CHANNELS = 5


def layer(kernel: int, weight: Tensor, bias: Tensor | None = None, tokens: int = 9) -> ShortConvLayer:
    """A layer in the middle of a text, with a depthwise convolution."""
    sizes = CacheSizes(max_seq_len=32, verify_len=tokens)
    made = ShortConvLayer(sizes, CoreKernels(), channels=CHANNELS, conv_kernel=kernel)
    made.convolution = ShortConvolution(weight=lambda: weight[:, None], bias=lambda: bias)
    made.conv_state.copy_(torch.randn(1, kernel - 1, CHANNELS))
    return made


def block(tokens: int, count: int, *, tentative: bool = False) -> Block:
    return Block(start=torch.tensor([3]), count=torch.tensor([count]), length=tokens, tentative=tentative)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kernel", [2, 3, 7])
@given(tokens=st.integers(1, 9), data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_block_is_the_naive_convolution(kernel: int, biased: bool, tokens: int, data: st.DataObject) -> None:
    torch.manual_seed(tokens)
    count = data.draw(st.integers(0, tokens))
    weight, bias = torch.randn(CHANNELS, kernel), torch.randn(CHANNELS) if biased else None
    x, conv = torch.randn(1, tokens, CHANNELS), layer(kernel, weight, bias)
    channels_first, window = x.transpose(1, 2), conv.conv_state.transpose(1, 2).clone()
    out = conv.mix(x, block=block(tokens, count))
    want, _ = short_conv_naive(channels_first, weight, bias, window)
    torch.testing.assert_close(out.transpose(1, 2), want, rtol=1e-5, atol=1e-5)
    kept = short_conv_naive(channels_first[..., :count], weight, bias, window)[1] if count else window
    assert torch.equal(conv.conv_state.transpose(1, 2), kept)


@pytest.mark.parametrize("kernel", [2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_a_commit_leaves_what_a_block_of_the_accepted_leaves(kernel: int, count: int) -> None:
    torch.manual_seed(count)
    weight, x = torch.randn(CHANNELS, kernel), torch.randn(1, 9, CHANNELS)
    verified, extended = layer(kernel, weight), layer(kernel, weight)
    extended.load_state_dict(verified.state_dict())
    before = verified.conv_state.clone()
    out = verified.mix(x, block=block(9, 9, tentative=True))
    assert torch.equal(verified.conv_state, before)
    assert torch.equal(out, extended.mix(x, block=block(9, count)))
    verified.commit(torch.tensor([count]))
    assert torch.equal(verified.conv_state, extended.conv_state)


def test_inputs_of_a_refused_block_are_not_looked_at() -> None:
    conv = layer(3, torch.randn(CHANNELS, 3))
    before = conv.conv_state.clone()
    conv.mix(torch.full((1, 4, CHANNELS), float("nan")), block=block(4, 0))
    assert torch.equal(conv.conv_state, before)


def test_a_kernel_without_a_window_is_refused() -> None:
    with pytest.raises(CheckpointError, match="kernel of 1, expected 2 or more"):
        layer(1, torch.randn(CHANNELS, 1))


def test_a_model_without_layer_types_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'lfm2_moe' model has no layer_types"):
        HybridCache.from_config(tiny_config("lfm2_moe", layer_types=None), max_seq_len=32)


@given(width=st.integers(1, 5), tokens=st.integers(1, 9), data=st.data())
def test_the_conv_window_holds_the_last_accepted_inputs(width: int, tokens: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, tokens))
    window = torch.arange(width + tokens).float()[None, :, None].expand(1, -1, 2)
    kept = window_after(window, torch.tensor([count]), width)
    assert kept[0, :, 0].tolist() == list(range(count, count + width))
