"""Diagonal recurrences against their definition; what their families refuse by name, and how they run in float16."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model
from torch import Tensor

from hybridge.cache import HybridCache
from hybridge.cache.recurrences.selective_scan import diagonal_scan, diagonal_scan_naive
from hybridge.errors import CheckpointError
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State


def arguments(tokens: int, *, fading: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """decay, inputs, state of 7 channels with a state of 5 each."""
    torch.manual_seed(tokens)
    decay = (-fading * torch.rand(1, 7, 5, tokens)).exp()
    return decay, torch.randn(1, 7, 5, tokens), torch.randn(1, 7, 5)


@pytest.mark.parametrize("fading", [0.0, 3.0, 200.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 17, 64])
def test_doubling_is_token_by_token(tokens: int, fading: float) -> None:
    args = arguments(tokens, fading=fading)
    torch.testing.assert_close(diagonal_scan(*args), diagonal_scan_naive(*args), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("count", [0, 1, 5, 17])
def test_identity_steps_after_the_count_leave_the_state_alone(count: int) -> None:
    decay, inputs, state = arguments(17)
    real = torch.arange(17) < count
    padded = diagonal_scan(torch.where(real, decay, 1.0), torch.where(real, inputs, 0.0), state)[..., -1]
    exact = diagonal_scan_naive(decay[..., :count], inputs[..., :count], state)[..., -1] if count else state
    torch.testing.assert_close(padded, exact, rtol=2e-5, atol=2e-5)


def test_decays_of_a_few_tokens() -> None:
    """h1 = 0.5 h0 + 1, h2 = 0.25 h1 + 2."""
    states = diagonal_scan(torch.tensor([[0.5, 0.25]]), torch.tensor([[1.0, 2.0]]), torch.tensor([4.0]))
    assert states.tolist() == [[3.0, 2.75]]


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    ("mamba", {"state_size": 0}, "state_size = 0"),
    ("falcon_mamba", {"conv_kernel": 0}, "conv_kernel = 0"),
    ("mamba", {"expand": 0}, "intermediate_size = 0"),
    ("jamba", {"mamba_d_state": -3}, "mamba_d_state = -3"),
    ("jamba", {"mamba_expand": 0}, "mamba_expand = 0"),
    ("zamba", {"mamba_d_conv": 0}, "mamba_d_conv = 0"),
    ("zamba", {"attention_hidden_size": 64}, r"attention_hidden_size = 64, expected 2 \* hidden_size = 96"),
    ("recurrent_gemma", {"conv1d_width": 0}, "conv1d_width = 0"),
    ("recurrent_gemma", {"lru_width": 50}, "lru_width = 50 and num_attention_heads = 4"),
    ("mamba2", {"n_groups": 4}, r"num_heads = 6 and n_groups = 4, expected groups of equally many heads"),
    ("mamba2", {"n_groups": 0}, r"n_groups = 0, expected 1 or more"),
    ("mamba2", {"state_size": 0}, r"state_size = 0, expected 1 or more"),
    ("bamba", {"time_step_limit": None}, r"time_step_limit = None, expected the lowest and the highest"),
    ("falcon_h1", {"mamba_n_groups": 4}, r"mamba_n_heads = 6 and mamba_n_groups = 4"),
    ("nemotron_h", {"mamba_num_heads": 0}, r"mamba_num_heads = 0, expected 1 or more"),
    ("zamba2", {"n_mamba_heads": 7}, r"n_mamba_heads = 7, expected a number that divides .* = 96"),
]


@pytest.mark.parametrize(("family", "sizes", "named"), IMPOSSIBLE, ids=str)
def test_impossible_sizes_are_refused_by_name(family: str, sizes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json says {named}.*Take the config\.json"):
        HybridCache.from_config(tiny_config(family, **sizes), max_seq_len=32)


@pytest.mark.parametrize("family", ["mamba", "falcon_mamba", "jamba", "zamba", "recurrent_gemma"])
@torch.no_grad()
def test_half_precision_is_as_near_to_float32_as_transformers(family: str) -> None:
    """float16, whose rounding is fine enough to tell a wrong cast from noise; weights are the same in all three."""
    half = lively(tiny_model(tiny_config(family))).half()
    text, full = torch.arange(17)[None] * 7 % 131, copy.deepcopy(half).float()
    cache = HybridCache.from_config(half.config, max_seq_len=32, prefill_chunk=17, verify_len=3, dtype=torch.float16)
    want, theirs = (model(text, use_cache=False).logits[0, -1].float() for model in (full, half))
    prefill, _ = build_methods(State(half, cache))["prefill"]
    ours = prefill(text, torch.tensor([17]))[0, 0]
    assert (ours - want).abs().max() <= 3 * (theirs - want).abs().max() + 1e-3 * want.abs().max()
