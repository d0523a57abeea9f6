import pytest
import torch
from torch import Tensor

from hybridge.cache.recurrences.gated_delta_rule import GatedDeltaRule, gated_delta_rule_naive, kimi_delta_rule_chunked
from hybridge.export.kernel_sets.llm import LlmGatedDeltaRule

FORMS = {
    "chunked": kimi_delta_rule_chunked,
    "core": GatedDeltaRule().rule,
    "llm": LlmGatedDeltaRule().rule,
}


def inputs(
    tokens: int, *, heads: int = 3, key_dim: int = 24, value_dim: int = 40, alike: float = 0.0, decay: float = 3.0
) -> tuple[Tensor, ...]:
    """query, key, value, log_decay, beta, state; ``alike`` pulls all keys towards one direction."""
    torch.manual_seed(tokens)
    query = torch.randn(2, heads, tokens, key_dim) * key_dim**-0.5
    key = torch.nn.functional.normalize(torch.randn(2, heads, tokens, key_dim) + alike, dim=-1)
    value = torch.randn(2, heads, tokens, value_dim)
    log_decay, beta = -decay * torch.rand(2, heads, tokens, key_dim), torch.rand(2, heads, tokens)
    return query, key, value, log_decay, beta, torch.randn(2, heads, key_dim, value_dim)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alike", [0.0, 5.0])
@pytest.mark.parametrize("tokens", [1, 2, 5, 17, 64])
def test_every_form_is_the_naive_one(form: str, tokens: int, alike: float) -> None:
    args = inputs(tokens, alike=alike)
    for fast, naive in zip(FORMS[form](*args), gated_delta_rule_naive(*args), strict=True):
        torch.testing.assert_close(fast, naive, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [0, 1, 8, 17])
def test_steps_after_the_count_leave_the_state_alone(form: str, count: int) -> None:
    query, key, value, log_decay, beta, state = inputs(17)
    real = torch.arange(17) < count
    stopped = torch.where(real[:, None], log_decay, 0.0), torch.where(real, beta, 0.0)
    _, padded = FORMS[form](query, key, value, *stopped, state)
    first = [x[:, :, :count] for x in (query, key, value, log_decay, beta)]
    _, exact = gated_delta_rule_naive(*first, state) if count else (None, state)
    torch.testing.assert_close(padded, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_decay_to_nothing_neither_overflows_nor_leaves_anything(form: str) -> None:
    """A quotient of exponentials would be infinity times zero here."""
    args = inputs(64, decay=200.0)
    for fast, naive in zip(FORMS[form](*args), gated_delta_rule_naive(*args), strict=True):
        torch.testing.assert_close(fast, naive, rtol=2e-5, atol=2e-5)


def test_the_same_decay_in_every_channel_is_the_gated_delta_rule() -> None:
    query, key, value, log_decay, beta, state = inputs(9)
    one = log_decay[..., 0]
    every = one.unsqueeze(-1).expand_as(log_decay)
    gated = gated_delta_rule_naive(query, key, value, one, beta, state)
    for ours, theirs in zip(gated_delta_rule_naive(query, key, value, every, beta, state), gated, strict=True):
        torch.testing.assert_close(ours, theirs)
