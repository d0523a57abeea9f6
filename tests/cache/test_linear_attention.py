"""Linear attention with a decay for each head against its definition; and that a wrong decay would be seen."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_config, tiny_model
from torch import Tensor

from hybridge.cache.recurrences.linear_attention import StepSize, linear_attention_chunked, linear_attention_naive


def inputs(tokens: int, *, strength: float = 1.0, heads: int = 3, key_dim: int = 11, value_dim: int = 7) -> list[Tensor]:
    """query, key, value, log_decay, state; ``strength`` scales the decays, of which some are near 0 at any strength."""
    torch.manual_seed(tokens)
    query, key = torch.randn(1, heads, key_dim, tokens), torch.randn(1, heads, key_dim, tokens)
    log_decay = -strength * torch.nn.functional.softplus(3 * torch.randn(1, heads, tokens) - 1)
    return [query, key, torch.randn(1, heads, value_dim, tokens), log_decay, torch.randn(1, heads, value_dim, key_dim)]


@pytest.mark.parametrize("strength", [0.0, 0.05, 1.0, 40.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17, 64, 129])
def test_a_chunk_is_the_naive_recurrence(tokens: int, strength: float) -> None:
    """As precise after strong decays, which take the digits of a running sum, as after weak ones."""
    args = inputs(tokens, strength=strength)
    exact = linear_attention_naive(*(x.double() for x in args))
    for fast, naive in zip(linear_attention_chunked(*args), exact, strict=True):
        assert fast.shape == naive.shape
        assert (fast - naive).abs().max() <= 2e-6 * naive.abs().max()


@given(count=st.integers(0, 17), by_key=st.booleans())
@settings(max_examples=18, deadline=None)
def test_identity_steps_leave_the_state_alone(count: int, by_key: bool) -> None:
    """Log decay 0, and a value (Mamba-2's dt x) or a key (lightning attention) of 0."""
    query, key, value, log_decay, state = inputs(17)
    real = torch.arange(17) < count
    nothing = [torch.where(real, x, 0.0) for x in (key, value, log_decay)]
    padded = (query, nothing[0] if by_key else key, value if by_key else nothing[1], nothing[2], state)
    out, after = linear_attention_chunked(*padded)
    first = [x[..., :count] for x in (query, key, value, log_decay)]
    expected, exact = linear_attention_naive(*first, state) if count else (out[..., :0], state)
    torch.testing.assert_close(out[..., :count], expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(after, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("low", [0.0, 0.4])
@pytest.mark.parametrize("high", [0.7, math.inf])
@pytest.mark.parametrize("bias", [None, torch.tensor([0.5, -0.5])])
def test_step_sizes_stay_between_their_limits(low: float, high: float, bias: Tensor | None) -> None:
    raw = torch.linspace(-4, 4, 3 * 5).view(1, 3, 5)
    steps = StepSize(raw=raw, count=2, start=3, bias=bias, low=low, high=high).sizes
    want = torch.nn.functional.softplus(raw[..., 3:] + (0 if bias is None else bias))
    torch.testing.assert_close(steps, want.clamp(low, high))
    assert (steps == low).any() == (low > 0)
    assert (steps == high).any() == (high < math.inf)


def test_pieces_are_the_whole() -> None:
    *streams, state = inputs(23)
    whole, last = linear_attention_chunked(*streams, state)
    outputs = []
    for start, end in [(0, 9), (9, 10), (10, 23)]:
        out, state = linear_attention_chunked(*(x[..., start:end] for x in streams), state)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, dim=-1), whole, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(state, last, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("variant", [0, 1])
def test_both_configs_have_heads_that_fade(variant: int) -> None:
    """transformers' slopes fall to nothing in the last layer, where no test would notice a missing decay."""
    layers = tiny_model(tiny_config("minimax", variant)).get_decoder().layers
    slopes = [layer.self_attn.slope_rate.max().item() for layer in layers if hasattr(layer.self_attn, "slope_rate")]
    assert max(slopes) > 0.05
