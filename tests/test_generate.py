"""Generation over a session made of a table: what it does to any model, without one."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hybridge.cache.errors import CapacityError, TokenError, UsageError
from hybridge.runtime.generate import GenerationStats, Sampler, generate

VOCABULARY, END = 7, 6


class TableSession:
    """Logits that depend on the last two tokens, and the same rules as a Session."""

    verify_len = 4
    manifest = SimpleNamespace(eos_ids=[END])

    def __init__(self, seed: int = 0, max_seq_len: int = 60) -> None:
        self.table = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self.text: list[int] = []
        self.block: list[int] = []
        self.max_seq_len = max_seq_len

    @property
    def room(self) -> int:
        return self.max_seq_len - len(self.text)

    def after(self, text: list[int]) -> Tensor:
        return self.table[text[-2] if len(text) > 1 else 0, text[-1]]

    def prefill(self, tokens: list[int]) -> Tensor:
        if len(tokens) > self.room:
            raise CapacityError("full")
        self.text += tokens
        return self.after(self.text)

    def decode(self, token: int) -> Tensor:
        return self.prefill([token])

    def verify(self, tokens: list[int]) -> Tensor:
        assert 1 <= len(tokens) <= min(self.verify_len, self.room)
        self.block = tokens
        return torch.stack([self.after(self.text + tokens[: i + 1]) for i in range(len(tokens))])

    def commit(self, count: int) -> None:
        assert 1 <= count <= len(self.block)
        self.text += self.block[:count]


class Guesses:
    """Proposes from a fixed list, right or wrong."""

    def __init__(self, guesses: list[list[int]]) -> None:
        self.guesses = guesses

    def propose(self, tokens: Sequence[int], limit: int) -> list[int]:
        return self.guesses[len(tokens) % len(self.guesses)] if self.guesses else []


def run(session: TableSession, prompt: list[int], **options: object) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    defaults = {"max_new_tokens": 30, "drafter": None, "temperature": 0.0, "seed": 0, "stats": stats}
    return list(generate(session, prompt, **(defaults | options))), stats  # type: ignore[arg-type]


guesses = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), max_size=5)


@given(seed=st.integers(0, 99), guesses=guesses, room=st.integers(3, 60), new=st.integers(1, 40))
def test_greedy_is_the_same_with_any_drafter(seed: int, guesses: list[list[int]], room: int, new: int) -> None:
    plain_session, session = TableSession(seed, room), TableSession(seed, room)
    plain, _ = run(plain_session, [1, 2], max_new_tokens=new)
    guessed, stats = run(session, [1, 2], max_new_tokens=new, drafter=Guesses(guesses))
    assert guessed == plain
    assert stats.new_tokens == len(plain) <= new
    assert session.text == [1, 2, *guessed][: len(session.text)], "the state holds what was generated and nothing else"
    assert len(session.text) in (len(guessed) + 1, len(guessed) + 2)
    assert END not in guessed[:-1]


def test_a_full_context_ends_the_generation() -> None:
    session = TableSession(seed=3, max_seq_len=8)
    session.table[..., END] = -100.0
    tokens, _ = run(session, [1, 2], drafter=Guesses([[0, 1, 2]]))
    assert len(session.text) == 8
    assert len(tokens) == 7, "the last token is known without room for it"


@pytest.mark.parametrize("drafted", [0, 3])
def test_an_accepted_or_replaced_token_is_distributed_as_the_target_says(drafted: int) -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    sampler, draws = Sampler(0.7, seed=1), 40_000
    counts = Counter(sampler.accept(logits, drafted) for _ in range(draws))
    assert chi_square(counts, (logits.double() / 0.7).softmax(-1) * draws) < 18.47  # p = 0.001 for 4 degrees of freedom


def test_the_distribution_check_notices_a_wrong_acceptance_rule() -> None:
    logits, draws = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5]), 40_000
    sampler = Sampler(0.7, seed=1)
    p = (logits.double() / 0.7).softmax(-1)
    always_redrawn_from_all = Counter(3 if torch.rand(()) < p[3] else sampler.draw(logits) for _ in range(draws))
    assert chi_square(always_redrawn_from_all, p * draws) > 18.47


def chi_square(counts: Counter[int], expected: Tensor) -> float:
    return float(sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected)))


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_the_same_seed_gives_the_same_text(seed: int) -> None:
    options = {"temperature": 1.0, "seed": seed, "drafter": Guesses([[1, 2], [3]])}
    assert run(TableSession(), [1], **options)[0] == run(TableSession(), [1], **options)[0]


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, TokenError),
        ([1], {"max_new_tokens": 0}, UsageError),
        ([1], {"temperature": -0.1}, UsageError),
        ([1], {"temperature": float("nan")}, UsageError),
        ([1] * 61, {}, CapacityError),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(prompt: list[int], options: dict[str, object], error: type) -> None:
    session = TableSession()
    with pytest.raises(error):
        run(session, prompt, **options)
    assert session.text == []
