import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hybridge.cache.recurrences.gated_delta_rule import gated_delta_rule_chunked, gated_delta_rule_naive, unit_lower_inverse
from hybridge.cache.recurrences.short_conv import window_after
from hybridge.export.kernel_sets.llm import LlmGatedDeltaRule

FORMS = {"chunked": gated_delta_rule_chunked, "llm": LlmGatedDeltaRule().rule}


def inputs(tokens: int, *, heads: int = 3, key_dim: int = 24, value_dim: int = 40, alike: float = 0.0) -> tuple[Tensor, ...]:
    """query, key, value, log_decay, beta, state; ``alike`` pulls all keys towards one direction."""
    torch.manual_seed(tokens)
    query = torch.randn(1, heads, tokens, key_dim) * key_dim**-0.5
    key = torch.nn.functional.normalize(torch.randn(1, heads, tokens, key_dim) + alike, dim=-1)
    value = torch.randn(1, heads, tokens, value_dim)
    log_decay, beta = -3 * torch.rand(1, heads, tokens), torch.rand(1, heads, tokens)
    return query, key, value, log_decay, beta, torch.randn(1, heads, key_dim, value_dim)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alike", [0.0, 5.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 8, 17, 64])
def test_every_form_is_the_naive_one(form: str, tokens: int, alike: float) -> None:
    args = inputs(tokens, alike=alike)
    for fast, naive in zip(FORMS[form](*args), gated_delta_rule_naive(*args), strict=True):
        torch.testing.assert_close(fast, naive, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log_decay", [0.0, -28.0, -1e4])
def test_a_decay_may_be_one_nearly_zero_or_zero(form: str, log_decay: float) -> None:
    """ExecuTorch's pull request 21417: the inverse of a chunk's decays became infinite, and zero times that NaN."""
    query, key, value, _, beta, state = inputs(64)
    args = query, key, value, torch.full((1, 3, 64), log_decay), beta, state
    for fast, naive in zip(FORMS[form](*args), gated_delta_rule_naive(*args), strict=True):
        torch.testing.assert_close(fast, naive, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@given(count=st.integers(0, 17))
@settings(max_examples=18, deadline=None)
def test_steps_after_the_count_leave_the_state_alone(form: str, count: int) -> None:
    query, key, value, log_decay, beta, state = inputs(17)
    real = torch.arange(17) < count
    _, padded = FORMS[form](query, key, value, log_decay * real, beta * real, state)
    first = [x[:, :, :count] for x in (query, key, value, log_decay, beta)]
    _, exact = gated_delta_rule_naive(*first, state) if count else (None, state)
    torch.testing.assert_close(padded, exact, rtol=2e-5, atol=2e-5)


def test_a_long_run_of_alike_keys_does_not_blow_up() -> None:
    """A power series for the inverse would: its terms grow like binomials before they cancel."""
    lower = torch.ones(64, 64).tril(-1)
    exact = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + lower.double())
    torch.testing.assert_close(unit_lower_inverse(lower).double(), exact, rtol=1e-6, atol=1e-6)


@given(width=st.integers(1, 5), tokens=st.integers(1, 9), data=st.data())
def test_the_conv_window_holds_the_last_accepted_inputs(width: int, tokens: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, tokens))
    window = torch.arange(width + tokens).float()[None, :, None].expand(1, -1, 2)
    kept = window_after(window, torch.tensor([count]), width)
    assert kept[0, :, 0].tolist() == list(range(count, count + width))
