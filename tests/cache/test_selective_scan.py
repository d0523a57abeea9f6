import pytest
import torch
from torch import Tensor

from hybridge.cache.recurrences.selective_scan import diagonal_scan, diagonal_scan_naive


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
