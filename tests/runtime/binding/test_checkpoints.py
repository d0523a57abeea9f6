"""Checkpoints against the states that they were made of, and against sessions that read the same text from the start."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from states import Arrays, around_a_restore, same, seen
from store import exported as stored
from table import VOCABULARY, Table
from tiny import lively, tiny_config, tiny_model

from hybridge.errors import CommitError, SnapshotError, UsageError
from hybridge.export.program.eager import eager_session
from hybridge.runtime import Context, ExportOptions, Model, Proposal, Session, open_artifact
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.checkpoint import Checkpoint, PrefixCache
from hybridge.runtime.binding.programs import Numbers, TextProgram
from hybridge.runtime.binding.prompt_prefill import PromptPrefill, bring_to

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
        self.kept: list[tuple[Checkpoint, list[int], Arrays]] = []
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
        assert made.length == self.session.length
        self.shared += made.shared_nbytes > 0
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
        assert np.abs(resumed - fresh).max() <= 2e-3 * np.abs(fresh).max()
        assert list(session.generate([7], max_new_tokens=6)) == greedy
    assert wanderer.resumed
    assert wanderer.shared


@pytest.mark.parametrize("kind", EAGER)
def test_a_resumed_state_is_the_one_that_was_kept(kind: str) -> None:
    config, options = EAGER[kind]
    check_resuming(eager_session(lively(tiny_model(config())), options), seed=len(kind), steps=60)


@pytest.fixture(scope="module")
def int8_artifact(checkpoint: Path) -> Path:
    """One whose keys and values are in 8 bits."""
    sizes = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, snapshot_slots=2, kernels="hybridge", kv_cache="int8")
    return stored(checkpoint, sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["artifact", "kernels_artifact", pytest.param("int8_artifact", marks=pytest.mark.thorough), "onnx_artifact"]
)
@pytest.mark.parametrize("seed", range(2))
def test_programs_resume_bit_for_bit(form: str, seed: int, request: pytest.FixtureRequest) -> None:
    check_resuming(Session.load(request.getfixturevalue(form)), seed, steps=120)


def test_it_outlives_its_session_and_serves_others_of_the_model(kernels_artifact: Path) -> None:
    model, text = Model.open(open_artifact(kernels_artifact)), list(range(1, 32))
    one, other = Session(model), Session(model)
    one.prefill(text)
    kept = one.checkpoint()
    want = list(one.generate([9], max_new_tokens=8))
    one.close()
    other.prefill([3, 4])
    for session in (other, Session(model), other):
        assert session.resume(kept) == 31
        assert list(session.generate([9], max_new_tokens=8)) == want
    kept.close()
    with pytest.raises(UsageError, match="closed"):
        other.resume(kept)
    other.decode(1)


def test_a_block_goes_on_waiting_and_is_no_part_of_it(kernels_artifact: Path) -> None:
    session = Session.load(kernels_artifact)
    session.prefill([1, 2, 3])
    session.verify([4, 5])
    kept = session.checkpoint()
    assert session.commit(2) == 5
    assert session.resume(kept) == 3
    with pytest.raises(CommitError):
        session.commit(1)


def test_a_checkpoint_is_for_every_session_of_its_artifact_and_no_other(artifact: Path, kernels_artifact: Path) -> None:
    one, same, other = Session.load(artifact), Session.load(artifact), Session.load(kernels_artifact)
    one.prefill([1, 2, 3])
    made = one.checkpoint()
    assert same.resume(made) == 3
    assert np.array_equal(same.decode(4), one.decode(4))
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
    program = session.model.program
    assert program is not None
    state = session.state()
    row = sum(each.nbytes // each.shape[1] for name, each in state.items() if name.endswith((".keys", ".values")))
    bounded = sum(state[name].nbytes for name in program.bounded)
    assert row > 0
    for checkpoint, tokens in ((first, 50), (second, 30)):
        assert 0.9 < checkpoint.nbytes / (bounded + tokens * (row + 8)) <= 1.02
    assert second.parts()[:-1] == [*first.parts()[:-1], second.parts()[-2]]
    assert second.shared_nbytes == 50 * (row + 8)
    assert session.checkpoint().parts()[:-1] == second.parts()[:-1], "nothing was added"


def test_rows_below_a_restored_length_are_still_known() -> None:
    first, again = around_a_restore(eager_session(lively(tiny_model(hybrid())), SIZES))
    assert again.parts()[:-2] == first.parts()[:-1]


# The tree


class Reading(TextProgram):
    """Counts the tokens that it reads."""

    read = 0

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        before = len(self.text)
        answer = super().call(name, *inputs)
        self.read += max(0, len(self.text) - before)
        return answer


def reading_session(max_seq_len: int = 200) -> Session:
    options = ExportOptions(max_seq_len=max_seq_len, prefill_chunk=5, verify_len=4, snapshot_slots=0)
    return Session.over(Reading(Table(), max_seq_len, 0), ProgramInfo(vocab_size=VOCABULARY, options=options, identity="table"))


texts = st.lists(st.integers(0, 2), min_size=1, max_size=14)


class Kept:
    """A cache, and what it was given in the order of its last use."""

    def __init__(self, session: Session, budget: int) -> None:
        self.used: list[Checkpoint] = []
        self.cache = PrefixCache(session.model, budget, self.use)
        self.reader = reading_session()

    def use(self, checkpoint: Checkpoint) -> None:
        self.used.append(checkpoint)

    def text(self, checkpoint: Checkpoint) -> list[int]:
        self.reader.resume(checkpoint)
        return self.reader.tokens

    def alive(self) -> list[list[int]]:
        """The texts of what is kept; asking for them uses them in their order."""
        known = list(dict.fromkeys(tuple(self.text(each)) for each in reversed(self.used)))[::-1]
        self.cache.watch(None)
        found = [list(text) for text in known if self.cache.has(text)]
        self.cache.watch(self.use)
        return found


@settings(max_examples=3 * settings().max_examples)
@given(given_texts=st.lists(texts, min_size=1, max_size=12), budget=st.integers(0, 1200))
def test_the_tree_finds_the_longest_beginning_within_its_budget(given_texts: list[list[int]], budget: int) -> None:
    session = reading_session()
    kept = Kept(session, budget)
    cache, program = kept.cache, session.model.program
    assert isinstance(program, Reading)
    for text in given_texts:
        expected = max((len(each) for each in kept.alive() if text[: len(each)] == each), default=0)
        found = cache.find(text)
        assert (found.length if found else 0) == expected
        at_hand = session.tokens if text[: session.length] == session.tokens else []
        program.read = 0
        got = bring_to(session, text, cache, marks=[len(text) // 2])
        assert session.tokens == text
        assert got == max(expected, len(at_hand))
        assert program.read == len(text) - got
        assert cache.nbytes <= budget
        assert cache.nbytes == counted(kept)
        assert len(cache) == len(kept.alive())
    for tokens in kept.alive():
        checkpoint = cache.find(tokens)
        assert checkpoint is not None
        assert session.resume(checkpoint) == len(tokens)
        assert session.tokens == program.text == tokens
    cache.clear()
    assert (cache.nbytes, len(cache)) == (0, 0)


class Wants:
    """A drafter that reads hidden states, or none."""

    is_cheap = False

    def __init__(self, needs_hidden: bool) -> None:
        self.needs_hidden = needs_hidden

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal([])


class Hears(Wants):
    """Notes the hidden states that it reads."""

    def __init__(self) -> None:
        super().__init__(needs_hidden=True)
        self.heard: list[Numbers] = []

    def propose(self, context: Context, limit: int) -> Proposal:
        self.heard.append(context.pop_hidden())
        return Proposal([])


def test_hidden_states_are_for_drafters_that_read_them() -> None:
    """Give them of all tokens that were read, in order; none where the program has no taps."""
    model, options = lively(tiny_model(hybrid())), replace(SIZES, tap_layers=(0, 1))
    text, session, drafter = list(range(1, 15)), eager_session(model, options), Hears()
    cache = PrefixCache(session.model, 0)
    list(PromptPrefill(session, text, cache, drafter=drafter).steps())
    list(session.generate([5], max_new_tokens=2, drafter=drafter, eos_ids=()))
    assert len(drafter.heard[0]) == len(text) + 1
    session.reset()
    session.prefill(text[:9])
    assert np.array_equal(drafter.heard[0][:9], session.hidden)
    for other in (Wants(False), None):
        session.reset()
        drafter.heard.clear()
        list(PromptPrefill(session, text, cache, drafter=other).steps())
        list(session.generate([5], max_new_tokens=2, drafter=drafter, eos_ids=()))
        assert len(drafter.heard[0]) == 1, "those of the prompt were not kept"
    without = reading_session()
    drafter.heard.clear()
    list(PromptPrefill(without, [1, 2, 3], PrefixCache(without.model, 0), drafter=drafter).steps())
    list(without.generate([1], max_new_tokens=2, drafter=drafter, eos_ids=()))
    assert {len(each) for each in drafter.heard} == {0}


def counted(kept: Kept) -> int:
    """Bytes of everything that the checkpoints reach, each part once."""
    found = [each for text in kept.alive() if (each := kept.cache.find(text)) is not None]
    parts = {number: len(each.part(place)) for each in found for place, number in enumerate(each.parts()[:-1])}
    return sum(size - HEAD for size in parts.values())


HEAD = 16
"""Bytes of a segment's part that are numbers: of its tokens, and of the rows of its one buffer."""


def test_what_was_used_last_goes_last() -> None:
    session = reading_session()
    size = bytes_of(session, [1] * 10)
    kept = Kept(session, 3 * size)
    for first in (1, 2, 3):
        bring_to(session, [first] * 10, kept.cache)
    assert kept.cache.find([1] * 12) is not None
    bring_to(session, [4] * 10, kept.cache)
    assert sorted(each[0] for each in kept.alive()) == [1, 3, 4]


def bytes_of(session: Session, *given_texts: list[int]) -> int:
    """Return the bytes that a cache takes for these texts."""
    cache = PrefixCache(session.model, 1 << 30)
    for text in given_texts:
        bring_to(session, text, cache)
    return cache.nbytes


def test_rows_stay_as_long_as_a_longer_text_needs_them() -> None:
    session = reading_session()
    short, longer = [1] * 50, [1] * 50 + [2] * 10
    cache = PrefixCache(session.model, bytes_of(session, short, longer) + bytes_of(session, [3]) - 1)
    for text in (short, longer):
        bring_to(session, text, cache)
    long = cache.find(longer)
    assert long is not None
    bring_to(session, [3], cache)  # the shorter text goes; it has no bounded states, so its rows have to go as well
    assert not cache.has(longer)
    assert cache.nbytes <= cache.budget
    session.reset()
    session.resume(long)
    assert session.tokens == longer


def test_a_text_that_is_larger_than_the_cache_leaves_the_others() -> None:
    session = reading_session()
    cache = PrefixCache(session.model, bytes_of(session, [1] * 5))
    for text in ([1] * 5, [2] * 50):
        bring_to(session, text, cache)
    assert cache.has([1] * 5)


def test_a_long_prompt_is_kept_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridge.runtime.binding.prompt_prefill.EVERY", 20)
    session = reading_session()
    kept = Kept(session, 1 << 20)
    bring_to(session, [1, 2] * 35, kept.cache, marks=[33])
    assert sorted(map(len, kept.alive())) == [20, 33, 40, 60, 70]
    assert bring_to(session, [*[1, 2] * 22, 5], kept.cache) == 40


def test_a_few_tokens_at_the_end_are_left_to_what_reads_on() -> None:
    session = reading_session()
    kept = Kept(session, 1 << 20)
    for length, marks, read, lengths in (
        (12, [], 10, [10]),
        (13, [], 10, [10]),
        (13, [12], 12, [10, 12]),
        (3, [], 3, [3, 10, 12]),
    ):
        prompt = PromptPrefill(session, [int(length == 3)] * length, kept.cache, marks, rest=3 if length > 3 else 0)
        list(prompt.steps())
        assert session.length == read
        assert sorted(map(len, kept.alive())) == lengths


def test_a_cache_without_bytes_keeps_nothing() -> None:
    session = reading_session()
    cache = PrefixCache(session.model, 0)
    bring_to(session, [1, 2, 3], cache)
    assert (len(cache), cache.nbytes) == (0, 0)
    with pytest.raises(UsageError, match="0 or more"):
        PrefixCache(session.model, -1)
