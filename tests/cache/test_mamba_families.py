"""What the families of diagonal recurrences refuse by name, and that Zamba runs in the dtype of its weights."""

import copy
from typing import Any

import pytest
import torch
from tiny import lively, tiny_config, tiny_model

from hybridge.cache import HybridCache
from hybridge.cache.errors import CheckpointError
from hybridge.export.write.methods import State, build_methods

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
