"""Short convolutions, delays and dynamic convolutions against their definitions, by blocks, commits and in models."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_config, tiny_model
from torch import Tensor
from transformers.models.inkling2.modeling_inkling2 import Inkling2DynamicShortConvolution

from hybridge.cache import HybridCache
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.short_conv import DelayLayer, ShortConvLayer, delay_naive
from hybridge.cache.operations.kernels import CoreKernels
from hybridge.cache.recurrences.short_conv import (
    ShortConvolution,
    dynamic_conv,
    dynamic_conv_naive,
    short_conv_naive,
    window_after,
)
from hybridge.errors import CheckpointError
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State

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


def delay_layer() -> DelayLayer:
    """A layer in the middle of a text."""
    made = DelayLayer(CacheSizes(max_seq_len=32, verify_len=7), CoreKernels(), channels=5)
    made.recurrent_state.copy_(torch.randn(1, 5))
    return made


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_a_block_and_a_commit_are_the_naive_delay(count: int) -> None:
    torch.manual_seed(count)
    extended, verified, x = delay_layer(), delay_layer(), torch.randn(1, 7, 5)
    verified.load_state_dict(extended.state_dict())
    last = extended.recurrent_state.clone()
    out, kept = delay_naive(x, last)[0], delay_naive(x[:, :count], last)[1] if count else last
    assert torch.equal(extended.mix(x, block=block(7, count)), out)
    assert torch.equal(extended.recurrent_state, kept)
    assert torch.equal(verified.mix(x, block=block(7, 7, tentative=True)), out)
    assert torch.equal(verified.recurrent_state, last)
    verified.commit(torch.tensor([count]))
    assert torch.equal(verified.recurrent_state, kept)


def test_a_delay_does_not_look_at_inputs_of_a_refused_block() -> None:
    delay = delay_layer()
    before = delay.recurrent_state.clone()
    delay.mix(torch.full((1, 4, 5), float("nan")), block=block(4, 0))
    assert torch.equal(delay.recurrent_state, before)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"attention_bias": True}, "attention_bias = true, which hybridge does not support for .zaya., expected false"),
        ({"cca_time0": 1, "cca_time1": 1}, "kernel of 1, expected 2 or more"),
        ({"num_key_value_heads": 1, "head_dim": 15}, "1 heads of 15, expected an even number"),
    ],
)
def test_zaya_refuses_what_it_has_no_state_for(option: dict[str, int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        HybridCache.from_config(tiny_config("zaya", **option), max_seq_len=32)


HEADS, WIDE, HIDDEN = 3, 15, 7


def taps(kernel: int, tokens: int) -> tuple[Tensor, Tensor]:
    """static [K, C] and dynamic [B, T, H, K]."""
    torch.manual_seed(tokens)
    return torch.randn(kernel, WIDE), torch.randn(2, tokens, HEADS, kernel)


@pytest.mark.parametrize("tokens", [1, 2, 5, 17])
@pytest.mark.parametrize("kernel", [2, 3, 7])
def test_the_static_form_is_the_naive_one(kernel: int, tokens: int) -> None:
    static, dynamic = taps(kernel, tokens)
    window = torch.randn(2, kernel - 1 + tokens, WIDE)
    fast, naive = (form(window, static, dynamic) for form in (dynamic_conv, dynamic_conv_naive))
    torch.testing.assert_close(fast, naive, rtol=1e-5, atol=1e-5)


def test_it_is_the_dynamic_convolution_of_transformers() -> None:
    kernel, tokens = 4, 9
    reference = Inkling2DynamicShortConvolution(WIDE, HIDDEN, HEADS, kernel, layer_idx=0, conv_idx=0)
    torch.nn.init.normal_(reference.static_weight)
    x, maker = torch.randn(2, tokens, WIDE), torch.randn(2, tokens, HIDDEN)
    dynamic = reference.weight_proj(maker).unflatten(-1, (HEADS, kernel))
    window = torch.nn.functional.pad(x, (0, 0, kernel - 1, 0))
    mixed = dynamic_conv_naive(window, reference.static_weight, dynamic)
    torch.testing.assert_close((mixed + x) / 9**0.5, reference(x, maker), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden_act", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "qwen3_next"])
@torch.no_grad()
def test_the_conv_has_the_activation_of_the_config(model_type: str, hidden_act: str) -> None:
    oracle = tiny_model(tiny_config(model_type, num_hidden_layers=2, hidden_act=hidden_act))
    cache = HybridCache.from_config(oracle.config, max_seq_len=32, prefill_chunk=9, verify_len=3)
    prefill, _ = build_methods(State(copy.deepcopy(oracle), cache))["prefill"]
    text = torch.arange(9)[None]
    got = prefill(text, torch.tensor([9]))[0, 0]
    torch.testing.assert_close(got, oracle(text, use_cache=False).logits[0, -1], rtol=1e-4, atol=1e-5)
