import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.inkling2.modeling_inkling2 import Inkling2DynamicShortConvolution

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.short_conv import ShortConvLayer
from hybridge.cache.operations.kernels import CoreKernels
from hybridge.cache.recurrences.short_conv import dynamic_conv, dynamic_conv_naive

HEADS, CHANNELS, HIDDEN = 3, 15, 7


def taps(kernel: int, tokens: int) -> tuple[Tensor, Tensor]:
    """static [K, C] and dynamic [B, T, H, K]."""
    torch.manual_seed(tokens)
    return torch.randn(kernel, CHANNELS), torch.randn(2, tokens, HEADS, kernel)


@pytest.mark.parametrize("tokens", [1, 2, 5, 17])
@pytest.mark.parametrize("kernel", [2, 3, 7])
def test_the_static_form_is_the_naive_one(kernel: int, tokens: int) -> None:
    static, dynamic = taps(kernel, tokens)
    window = torch.randn(2, kernel - 1 + tokens, CHANNELS)
    fast, naive = (form(window, static, dynamic) for form in (dynamic_conv, dynamic_conv_naive))
    torch.testing.assert_close(fast, naive, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@given(tokens=st.integers(1, 9), count=st.integers(0, 9))
@settings(max_examples=18, deadline=None)
def test_a_second_block_sees_the_accepted_inputs_of_the_first(tokens: int, count: int) -> None:
    count, kernel = min(count, tokens), 4
    conv = ShortConvLayer(CacheSizes(max_seq_len=32, batch_size=2), CoreKernels(), channels=CHANNELS, conv_kernel=kernel)
    static, dynamic = taps(kernel, tokens)
    x, more = torch.randn(2, tokens, CHANNELS), torch.randn(2, 1, CHANNELS)
    whole = torch.cat([torch.zeros(2, kernel - 1, CHANNELS), x[:, :count], more], dim=1)
    conv.extend_window(x, Block(start=torch.tensor([0]), count=torch.tensor([count]), length=tokens))
    window = conv.extend_window(more, Block(start=torch.tensor([count]), count=torch.tensor([1]), length=1))
    out = dynamic_conv(window, static, dynamic[:, :1])
    torch.testing.assert_close(out, dynamic_conv_naive(whole[:, -kernel:], static, dynamic[:, :1]), rtol=1e-5, atol=1e-5)


def test_it_is_the_convolution_of_transformers() -> None:
    kernel, tokens = 4, 9
    reference = Inkling2DynamicShortConvolution(CHANNELS, HIDDEN, HEADS, kernel, layer_idx=0, conv_idx=0)
    torch.nn.init.normal_(reference.static_weight)
    x, maker = torch.randn(2, tokens, CHANNELS), torch.randn(2, tokens, HIDDEN)
    dynamic = reference.weight_proj(maker).unflatten(-1, (HEADS, kernel))
    window = torch.nn.functional.pad(x, (0, 0, kernel - 1, 0))
    mixed = dynamic_conv_naive(window, reference.static_weight, dynamic)
    torch.testing.assert_close((mixed + x) / 9**0.5, reference(x, maker), rtol=1e-5, atol=1e-5)
