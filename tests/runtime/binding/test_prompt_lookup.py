"""Prompt lookup against its definition, by the draft tokens that a generation verifies."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table import table_session

from hybridge.runtime import GenerationStats, PromptLookup, Session
from hybridge.runtime.binding.statistics import Draft, Trace

texts = st.lists(st.integers(0, 2), min_size=2, max_size=40)
LONGEST, SHORTEST = 8, 3


def looked_up(text: Sequence[int], limit: int) -> list[int]:
    """The definition: the longest ending that occurred before, at its latest place, goes on as it did there, over and over."""
    for size in range(LONGEST, SHORTEST - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                return [text[end + i % (len(text) - end)] for i in range(limit)]
    return []


class Scripted:
    """Whatever came before, the next token is the script's."""

    script: Sequence[int] = ()

    def __call__(self, text: tuple[int, ...]) -> np.ndarray:  # type: ignore[type-arg]
        return np.eye(20, dtype=np.float32)[self.script[len(text)] if len(text) < len(self.script) else 19]


def scripted_session() -> tuple[Session, Scripted]:
    scripted = Scripted()
    return table_session(scripted, max_seq_len=500, verify_lens=(2, 4, 8), vocab_size=20), scripted  # type: ignore[arg-type]


def drafts(session: Session, scripted: Scripted, text: Sequence[int], start: int, limit: int) -> list[Draft]:
    """Generate the rest of a text from ``start`` on, and return what was verified."""
    scripted.script, stats = text, Trace()
    session.reset()
    tokens = session.generate(
        text[:start], max_new_tokens=len(text) - start, drafter=PromptLookup(), block_length=limit + 1, stats=stats
    )
    assert list(tokens) == list(text[start:])
    return [each.draft for each in stats.rounds if each.draft is not None]


@pytest.mark.slow
@given(text=texts, others=st.lists(texts, max_size=2), start=st.integers(1, 40), limit=st.integers(1, 7))
def test_what_is_verified_is_what_a_search_of_the_whole_text_finds(
    text: list[int], others: list[list[int]], start: int, limit: int
) -> None:
    """In each round of a growing text, in one session after other texts, and as far as there are tokens to come."""
    session, scripted = scripted_session()
    for each in (*others, text, text):
        begin = min(start, len(each) - 1)
        found = drafts(session, scripted, each, begin, limit)
        at, wanted = begin + 1, []  # the first token comes with the prompt's logits
        while at < len(each):
            proposed = looked_up(each[:at], min(limit, len(each) - at - 1))
            accepted = sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(proposed, each[at:], strict=False))
            )
            if proposed:
                wanted.append((at - begin, proposed, accepted))
            at += accepted + 1
        assert [(each.first, each.tokens, each.accepted) for each in found] == wanted


def test_it_trusts_matches_that_were_right_and_no_others() -> None:
    """By itself, in a session that goes from text to text; on a clock on which a block takes as long as a decode."""
    right = [1, 2, 3, 9] * 40
    wrong = [token for i in range(40) for token in (1, 2, 3, 4 + i % 15)]
    verified = {}
    for name, text in {"right": right, "wrong": wrong}.items():
        session, scripted = scripted_session()
        for _ in range(2):
            scripted.script, stats, clock = text, GenerationStats(), itertools.count(0.0)
            session.reset()
            options = {"drafter": PromptLookup(), "stats": stats, "clock": lambda clock=clock: float(next(clock))}
            list(session.generate(text[:12], max_new_tokens=100, **options))  # type: ignore[arg-type]
        verified[name] = stats
    assert verified["right"].acceptance_rate == 1.0
    assert verified["right"].accepted > 70
    assert verified["wrong"].acceptance_rate < 0.3
