"""The fast forms of the gated delta rule are its definition, with a decay for each head and for each channel."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hybridge.cache.recurrences.gated_delta_rule import (
    GatedDeltaRule,
    gated_delta_rule_chunked,
    gated_delta_rule_naive,
    kimi_delta_rule_chunked,
    unit_lower_inverse,
)
from hybridge.export.kernel_sets.llm import LlmGatedDeltaRule

FORMS = {
    "chunked": (gated_delta_rule_chunked, False),
    "core": (GatedDeltaRule().rule, False),
    "llm": (LlmGatedDeltaRule().rule, False),
    "chunked, by channel": (kimi_delta_rule_chunked, True),
    "core, by channel": (GatedDeltaRule().rule, True),
    "llm, by channel": (LlmGatedDeltaRule().rule, True),
}
"""Each form, and whether each channel of a key has a decay of its own."""


def inputs(tokens: int, *, by_channel: bool, alike: float = 0.0, decay: float = 3.0) -> tuple[Tensor, ...]:
    """query, key, value, log_decay, beta, state; ``alike`` pulls all keys towards one direction."""
    torch.manual_seed(tokens)
    B, H, K, V = 2, 3, 24, 40
    query = torch.randn(B, H, tokens, K) * K**-0.5
    key = torch.nn.functional.normalize(torch.randn(B, H, tokens, K) + alike, dim=-1)
    log_decay = -decay * torch.rand(B, H, tokens, *([K] if by_channel else []))
    return query, key, torch.randn(B, H, tokens, V), log_decay, torch.rand(B, H, tokens), torch.randn(B, H, K, V)


def assert_is_naive(form: str, *args: Tensor) -> None:
    for fast, naive in zip(FORMS[form][0](*args), gated_delta_rule_naive(*args), strict=True):
        torch.testing.assert_close(fast, naive, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alike", [0.0, 5.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 17, 64])
def test_every_form_is_the_naive_one(form: str, tokens: int, alike: float) -> None:
    assert_is_naive(form, *inputs(tokens, by_channel=FORMS[form][1], alike=alike))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.0, -28.0, -1e4])
def test_a_decay_may_be_one_nearly_zero_or_zero(form: str, value: float) -> None:
    """ExecuTorch's pull request 21417: the inverse of a chunk's decays became infinite, and zero times that NaN."""
    query, key, values, log_decay, beta, state = inputs(64, by_channel=FORMS[form][1])
    assert_is_naive(form, query, key, values, torch.full_like(log_decay, value), beta, state)


@pytest.mark.parametrize("form", FORMS)
def test_decay_to_nothing_neither_overflows_nor_leaves_anything(form: str) -> None:
    """A quotient of exponentials would be infinity times zero here."""
    assert_is_naive(form, *inputs(64, by_channel=FORMS[form][1], decay=200.0))


@pytest.mark.parametrize("form", FORMS)
@given(count=st.integers(0, 17))
@settings(max_examples=18, deadline=None)
def test_steps_after_the_count_leave_the_state_alone(form: str, count: int) -> None:
    rule, by_channel = FORMS[form]
    query, key, value, log_decay, beta, state = inputs(17, by_channel=by_channel)
    real = torch.arange(17) < count
    stopped = torch.where(real[:, None] if by_channel else real, log_decay, 0.0), torch.where(real, beta, 0.0)
    _, padded = rule(query, key, value, *stopped, state)
    first = [x[:, :, :count] for x in (query, key, value, log_decay, beta)]
    _, exact = gated_delta_rule_naive(*first, state) if count else (None, state)
    torch.testing.assert_close(padded, exact, rtol=2e-5, atol=2e-5)


def test_the_same_decay_in_every_channel_is_one_decay_a_head() -> None:
    query, key, value, log_decay, beta, state = inputs(9, by_channel=False)
    every = log_decay.unsqueeze(-1).expand_as(key)
    by_head = gated_delta_rule_naive(query, key, value, log_decay, beta, state)
    for ours, theirs in zip(gated_delta_rule_naive(query, key, value, every, beta, state), by_head, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_long_run_of_alike_keys_does_not_blow_up() -> None:
    """A power series for the inverse would: its terms grow like binomials before they cancel."""
    lower = torch.ones(64, 64).tril(-1)
    exact = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + lower.double())
    torch.testing.assert_close(unit_lower_inverse(lower).double(), exact, rtol=1e-6, atol=1e-6)
