"""Checkpoints against the states that they were made of, and against sessions that read the same text from the start."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from states import around_a_restore, same, seen
from table import VOCABULARY, Table, table_session
from tiny import lively, tiny_config, tiny_model
from torch import Tensor

from hybridge.cache.errors import SnapshotError, UsageError
from hybridge.export.reference.eager import eager_session
from hybridge.runtime import Context, ExportOptions, Proposal, Session
from hybridge.runtime.core.checkpoint import Checkpoint, PrefixCache, bring_to
from hybridge.runtime.core.checkpoint import Reading as Prompt
from hybridge.runtime.core.programs import TextDescription, TextProgram

SIZES = ExportOptions(max_seq_len=140, prefill_chunk=9, verify_len=4, snapshot_slots=2, kernels="aten")
INT8 = replace(SIZES, kernels="hybridge", kv_cache="int8")


def hybrid(**overrides: Any) -> Any:
    return tiny_config("qwen3_5_text", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], **overrides)


EAGER: dict[str, tuple[Callable[[], Any], ExportOptions]] = {
    "a delta rule beside attention": (hybrid, SIZES),
    "8-bit keys and values": (hybrid, INT8),
    "pools of keys": (lambda: tiny_config("glm5_next_text"), SIZES),
    "rings": (lambda: tiny_config("mistral"), SIZES),
    "parts side by side": (lambda: tiny_config("falcon_h1"), SIZES),
    "latents": (lambda: tiny_config("kimi_linear"), SIZES),
}


class Wanderer:
    """Goes anywhere at random and comes back; every checkpoint is held against the state that it was made of."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session, self.rng = session, random.Random(seed)
        self.kept: list[tuple[Checkpoint, list[int], dict[str, Tensor]]] = []
        self.resumed = self.shared = 0

    def tokens(self, most: int) -> list[int]:
        count = self.rng.randint(1, min(most, self.session.room))
        return [self.rng.randrange(1, min(100, self.session.vocab_size)) for _ in range(count)]

    def step(self) -> None:
        if self.session.room < 30:
            self.session.reset()
        step = self.rng.choice(
            ["prefill", "prefill", "decode", "verify", "slot", "back", "keep", "keep", "drop", "resume", "resume"]
        )
        getattr(self, step)()

    def prefill(self) -> None:
        self.session.prefill(self.tokens(20))

    def decode(self) -> None:
        self.session.decode(self.tokens(1)[0])

    def verify(self) -> None:
        block = self.tokens(self.session.verify_len)
        self.session.verify(block)
        if self.rng.random() < 0.5:
            self.keep()
        if self.rng.random() < 0.8:
            self.session.commit(self.rng.randint(0, len(block)))

    def slot(self) -> None:
        if self.session.snapshot_slots:
            self.session.snapshot(self.rng.randrange(self.session.snapshot_slots))

    def back(self) -> None:
        for slot in self.session.slots:
            try:
                self.session.restore(slot)
            except SnapshotError:
                continue
            return

    def keep(self) -> None:
        made = self.session.checkpoint()
        assert made.tokens == self.session.tokens
        self.shared += made.segment.parent is not None
        self.kept.append((made, self.session.tokens, seen(self.session)))

    def drop(self) -> None:
        if len(self.kept) > 2:
            self.kept.pop(self.rng.randrange(len(self.kept)))

    def resume(self) -> None:
        if self.kept:
            checkpoint, tokens, state = self.rng.choice(self.kept)
            assert self.session.resume(checkpoint) == len(tokens)
            assert self.session.tokens == tokens
            assert same(seen(self.session), state), "bit for bit"
            self.resumed += 1


def check_resuming(session: Session, seed: int, steps: int) -> None:
    """Wander, then compare what is predicted from each checkpoint with a fresh prefill of its text."""
    wanderer = Wanderer(session, seed)
    for _ in range(steps):
        wanderer.step()
    wanderer.keep()
    for checkpoint, tokens, _ in wanderer.kept[-4:]:
        session.resume(checkpoint)
        resumed, greedy = session.decode(7), list(session.generate([7], max_new_tokens=6))
        session.reset()
        fresh = session.prefill([*tokens, 7])
        assert (resumed - fresh).abs().max() <= 2e-3 * fresh.abs().max()
        assert list(session.generate([7], max_new_tokens=6)) == greedy
    assert wanderer.resumed
    assert wanderer.shared


@pytest.mark.parametrize("kind", EAGER)
def test_a_resumed_state_is_the_one_that_was_kept(kind: str) -> None:
    config, options = EAGER[kind]
    check_resuming(eager_session(lively(tiny_model(config())), options), seed=len(kind), steps=60)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["artifact", "own_artifact", "exported"])
@pytest.mark.parametrize("seed", range(2))
def test_programs_resume_bit_for_bit(form: str, seed: int, request: pytest.FixtureRequest) -> None:
    check_resuming(Session.load(request.getfixturevalue(form)), seed, steps=120)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["own_artifact", "exported"])
def test_another_session_over_the_artifact_goes_on(form: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(form)
    one, other = Session.load(folder), Session.load(folder)
    one.prefill(list(range(1, 40)))
    kept = one.checkpoint()
    one.decode(5)
    later = one.checkpoint()
    other.prefill([9, 8, 7])
    other.snapshot(0)
    assert other.resume(later) == 40
    assert other.slots == {}
    with pytest.raises(SnapshotError):
        other.restore(0)
    assert torch.equal(other.decode(3), one.decode(3))
    assert other.resume(kept) == one.resume(kept) == 39
    assert torch.equal(other.decode(3), one.decode(3))


def test_a_checkpoint_of_another_model_is_refused() -> None:
    one, other = table_session(), table_session()
    one.prefill([1, 2])
    other.prefill([3])
    with pytest.raises(UsageError, match="another model"):
        other.resume(one.checkpoint())
    assert other.tokens == [3]


def test_a_checkpoint_is_for_every_session_of_its_artifact_and_no_other(artifact: Path, own_artifact: Path) -> None:
    one, same, other = Session.load(artifact), Session.load(artifact), Session.load(own_artifact)
    one.prefill([1, 2, 3])
    made = one.checkpoint()
    assert same.resume(made) == 3
    assert torch.equal(same.decode(4), one.decode(4))
    with pytest.raises(UsageError, match="another model"):
        other.resume(made)
    assert other.tokens == []


def test_rows_are_copied_once() -> None:
    """A checkpoint takes its bounded states and the rows of its own positions, by 1.02 at most."""
    session = eager_session(lively(tiny_model(hybrid())), SIZES)
    session.prefill(list(range(1, 51)))
    first = session.checkpoint()
    session.prefill(list(range(1, 31)))
    second = session.checkpoint()
    state = session.model.program.state()
    row = sum(each.nbytes // each.shape[1] for name, each in state.items() if name.endswith((".keys", ".values")))
    bounded = sum(each.nbytes for name, each in session.model.program.bounded().items())
    assert row > 0
    for checkpoint, tokens in ((first, 50), (second, 30)):
        assert 0.9 < checkpoint.nbytes / (bounded + tokens * (row + 8)) <= 1.02
    assert second.segment.parent is first.segment
    assert session.checkpoint().segment is second.segment, "nothing was added"


def test_rows_below_a_restored_length_are_still_known() -> None:
    first, again = around_a_restore(eager_session(lively(tiny_model(hybrid())), SIZES))
    assert again.segment.parent is first.segment


# The tree


class Reading(TextProgram):
    """Counts the tokens that it reads."""

    read = 0

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        before = len(self.text)
        answer = super().call(name, *inputs)
        self.read += max(0, len(self.text) - before)
        return answer


def reading_session(max_seq_len: int = 200) -> Session:
    options = ExportOptions(max_seq_len=max_seq_len, prefill_chunk=5, verify_len=4, snapshot_slots=0)
    return Session(Reading(Table(), max_seq_len, 0), TextDescription(vocab_size=VOCABULARY, options=options))


texts = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@settings(max_examples=150)
@given(given_texts=st.lists(texts, min_size=1, max_size=12), budget=st.integers(0, 1200))
def test_the_tree_finds_the_longest_beginning_within_its_budget(given_texts: list[list[int]], budget: int) -> None:
    session, cache = reading_session(), PrefixCache(budget)
    known: dict[tuple[int, ...], Checkpoint] = {}
    for text in given_texts:
        expected = max((len(each) for each in alive(cache) if text[: len(each)] == each), default=0)
        found = cache.find(text)
        assert (found.length if found else 0) == expected
        session.model.program.read = 0  # type: ignore[attr-defined]
        at_hand = session.tokens if text[: session.length] == session.tokens else []
        got = bring_to(session, text, cache, marks=[len(text) // 2])
        assert session.tokens == text
        assert got == max(expected, len(at_hand))
        assert session.model.program.read == len(text) - got  # type: ignore[attr-defined]
        assert cache.nbytes <= budget
        assert cache.nbytes == counted(cache)
        known = {tuple(each.tokens): each for each in cache._nodes}
    for tokens, checkpoint in known.items():
        assert session.resume(checkpoint) == len(tokens)
        assert tuple(session.model.program.text) == tokens  # type: ignore[attr-defined]
    cache.clear()
    assert (cache.nbytes, len(cache), cache._root.children) == (0, 0, {})


class Wants:
    """A drafter that reads hidden states, or none."""

    is_free = False

    def __init__(self, needs_hidden: bool) -> None:
        self.needs_hidden = needs_hidden

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal([])


def test_hidden_states_are_for_drafters_that_read_them() -> None:
    """Of all tokens that were read, in order; none where the program has no taps."""
    model, options = lively(tiny_model(hybrid())), replace(SIZES, tap_layers=(0, 1))
    text, session = list(range(1, 15)), eager_session(model, options)
    prompt = Prompt(session, text, PrefixCache(0))
    list(prompt.steps())
    hidden = prompt.hidden_for(Wants(True))
    assert hidden is not None
    assert len(hidden) == len(text)
    session.reset()
    session.prefill(text[:9])
    assert torch.equal(hidden[:9], session.hidden)
    assert prompt.hidden_for(Wants(False)) is None
    assert prompt.hidden_for(None) is None
    without = Prompt(reading_session(), [1, 2, 3], PrefixCache(0))
    list(without.steps())
    assert without.hidden_for(Wants(True)) is None


def alive(cache: PrefixCache) -> list[list[int]]:
    return [each.tokens for each in cache._nodes]


def counted(cache: PrefixCache) -> int:
    """Bytes of everything that the checkpoints reach, each tensor once."""
    segments = {id(segment): segment for each in cache._nodes for segment in each.segment.chain()}
    return sum(each.nbytes for each in segments.values()) + sum(each.bounded_bytes for each in cache._nodes)


def test_what_was_used_last_goes_last() -> None:
    session = reading_session()
    cache = PrefixCache(10**6)
    bring_to(session, [1] * 10, cache)
    cache.budget = 3 * cache.nbytes
    for first in (2, 3):
        bring_to(session, [first] * 10, cache)
    assert cache.find([1] * 12) is not None
    bring_to(session, [4] * 10, cache)
    assert sorted(each[0] for each in alive(cache)) == [1, 3, 4]


def test_rows_stay_as_long_as_a_longer_text_needs_them() -> None:
    session = reading_session()
    cache = PrefixCache(10**6)
    bring_to(session, [1] * 50, cache)
    bring_to(session, [1] * 50 + [2] * 10, cache)
    long = cache.find([1] * 50 + [2] * 10)
    assert long is not None
    cache.budget = cache.nbytes - 1  # the shorter text goes; it has no bounded states, so its rows have to go as well
    bring_to(session, [3], cache)
    session.reset()
    assert cache.nbytes == counted(cache) <= cache.budget
    session.resume(long)
    assert session.tokens == [1] * 50 + [2] * 10


def test_a_long_prompt_is_kept_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridge.runtime.core.checkpoint.EVERY", 20)
    session, cache = reading_session(), PrefixCache()
    bring_to(session, [1, 2] * 35, cache, marks=[33])
    assert sorted(map(len, alive(cache))) == [20, 33, 40, 60, 70]
    assert bring_to(session, [*[1, 2] * 22, 5], cache) == 40


def test_a_few_tokens_at_the_end_are_left_to_what_reads_on() -> None:
    session, cache = reading_session(), PrefixCache()
    for length, marks, read, kept in (
        (12, [], 10, [10]),
        (13, [], 10, [10]),
        (13, [12], 12, [10, 12]),
        (3, [], 3, [3, 10, 12]),
    ):
        prompt = Prompt(session, [int(length == 3)] * length, cache, marks, rest=3 if length > 3 else 0)
        list(prompt.steps())
        assert session.length == read
        assert sorted(map(len, alive(cache))) == kept


def test_a_cache_without_bytes_keeps_nothing() -> None:
    session, cache = reading_session(), PrefixCache(0)
    bring_to(session, [1, 2, 3], cache)
    assert (len(cache), cache.nbytes) == (0, 0)
    with pytest.raises(UsageError, match="0 or more"):
        PrefixCache(-1)
