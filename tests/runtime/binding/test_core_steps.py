"""hybridge.h as another language calls it: a generation a round at a time, states and checkpoints from anywhere, programs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from contextlib import suppress
from ctypes import byref, c_int64, c_size_t
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table import VOCABULARY, Table, table_model, table_session

from hybridge.errors import (
    ArtifactError,
    BrokenStateError,
    HybridgeError,
    StateFileError,
    UsageError,
)
from hybridge.runtime import Checkpoint, Model, PrefixCache, Session
from hybridge.runtime.binding.interface import (
    DrafterKind,
    GeneratedStruct,
    GenerationStruct,
    ModelHandle,
    OnCall,
    SessionHandle,
    Status,
)
from hybridge.runtime.binding.library import load, words
from hybridge.runtime.binding.programs import Numbers, ProgramFunctions

PROMPT, CAPACITY = [1, 2, 3, 1, 2], 4


@pytest.fixture
def session() -> Session:
    return table_session(Table(1, ends=False))


@pytest.fixture
def plain_tokens() -> list[int]:
    return list(table_session(Table(1, ends=False)).generate(PROMPT, max_new_tokens=30))


class Steps:
    """The functions over one session; the tokens of the last call are in ``tokens``."""

    def __init__(self, session: Session) -> None:
        self.handle = session.handle
        self.room, self.count = (c_int64 * CAPACITY)(), c_size_t()
        self.options = GenerationStruct(max_new_tokens=20, drafter=DrafterKind.PROMPT_LOOKUP, block_length=4)

    def begin(self, prompt: list[int] = PROMPT, capacity: int = CAPACITY) -> int:
        ids = (c_int64 * len(prompt))(*prompt)
        status: int = load().hybridge_begin(
            self.handle, ids, len(prompt), byref(self.options), None, self.room, capacity, byref(self.count)
        )
        return status

    def next(self, capacity: int = CAPACITY) -> int:
        status: int = load().hybridge_next(self.handle, self.room, capacity, byref(self.count))
        return status

    def end(self, taken: int) -> int:
        status: int = load().hybridge_end(self.handle, taken, None)
        return status

    @property
    def tokens(self) -> list[int]:
        return self.room[: self.count.value]


def test_rounds_give_the_tokens_of_a_generation(session: Session, plain_tokens: list[int]) -> None:
    steps, found, done = Steps(session), list[int](), GeneratedStruct()
    assert steps.begin() == Status.OK
    while steps.tokens:
        found += steps.tokens
        assert steps.next() == Status.OK
        assert load().hybridge_progress(steps.handle, byref(done)) == Status.OK
        assert done.tokens == len(found), "all that was given before was wanted"
    assert found == plain_tokens[:20]
    assert session.tokens == [*PROMPT, *found[:-1]]
    assert done.verifies > 0
    assert load().hybridge_end(steps.handle, 0, byref(done)) == Status.OK
    assert done.tokens == 20
    assert steps.end(0) == Status.INVALID_STATE
    assert session.tokens == [*PROMPT, *found[:-1]]


LOOKS: dict[str, Callable[[Session], object]] = {
    "tokens": lambda s: s.tokens,
    "slots": lambda s: s.slots,
    "state": lambda s: s.state(),
    "note": lambda s: s.note,
    "hidden": lambda s: s.hidden,
    "checkpoint": lambda s: s.checkpoint(),
}
CHANGES: dict[str, Callable[[Session], object]] = {
    "prefill": lambda s: s.prefill([1]),
    "decode": lambda s: s.decode(1),
    "verify": lambda s: s.verify([1]),
    "snapshot": lambda s: s.snapshot(1),
    "restore": lambda s: s.restore(0),
    "reset": lambda s: s.reset(),
    "resume": lambda s: s.resume(s.checkpoint()),
    "another generation": lambda s: list(s.generate([1], max_new_tokens=3)),
    "a refused prefill": lambda s: s.prefill([1] * 1000),
}


@pytest.mark.parametrize("call", [*LOOKS, *CHANGES])
def test_another_call_in_between(session: Session, plain_tokens: list[int], call: str) -> None:
    steps = Steps(session)
    session.prefill(PROMPT[:2])
    session.snapshot(0)
    session.reset() if call != "restore" else session.restore(0)
    assert steps.begin(PROMPT if call != "restore" else PROMPT[2:]) == Status.OK
    given = steps.tokens
    while len(steps.tokens) < 2:  # until a verified block waits
        assert steps.next() == Status.OK
        given += steps.tokens
    with suppress(HybridgeError):
        (LOOKS | CHANGES)[call](session)
    if call in LOOKS:
        assert steps.next() == Status.OK
        assert given + steps.tokens == plain_tokens[: len(given) + len(steps.tokens)]
        return
    before = session.tokens
    for answer in (steps.next(), steps.end(1), load().hybridge_progress(steps.handle, byref(GeneratedStruct()))):
        assert answer == Status.INVALID_STATE
    assert session.tokens == before == session.model.program.text  # type: ignore[union-attr]
    session.decode(1)
    assert session.tokens == session.model.program.text == [*before, 1]  # type: ignore[union-attr]


def test_arguments_that_cannot_be_are_refused(session: Session) -> None:
    steps, count = Steps(session), c_size_t()
    assert steps.next() == steps.end(0) == Status.INVALID_STATE
    assert steps.begin(capacity=0) == Status.INVALID_ARGUMENT
    assert steps.begin([]) == steps.begin([99]) == Status.INVALID_TOKEN
    assert steps.begin([1] * 1000) == Status.NO_ROOM
    assert load().hybridge_begin(steps.handle, None, 3, byref(steps.options), None, steps.room, 4, byref(count)) != Status.OK
    assert session.tokens == []
    assert steps.next() == Status.INVALID_STATE, "none was begun"
    assert steps.begin() == Status.OK
    assert steps.next(capacity=3) == Status.INVALID_ARGUMENT
    assert load().hybridge_next(steps.handle, None, 4, byref(count)) == Status.INVALID_ARGUMENT
    assert load().hybridge_next(steps.handle, steps.room, 4, None) == Status.INVALID_ARGUMENT
    assert load().hybridge_progress(steps.handle, None) == Status.INVALID_ARGUMENT
    assert load().hybridge_proposed(steps.handle, None, 1, byref(count), None) == Status.INVALID_ARGUMENT
    assert steps.next() == Status.OK, "it waits on"
    for name, arguments in {"next": (None, 0, byref(count)), "end": (0, None), "progress": (byref(GeneratedStruct()),)}.items():
        assert getattr(load(), f"hybridge_{name}")(SessionHandle(10**9), *arguments) == Status.INVALID_HANDLE


# States from anywhere


def filled() -> Session:
    """Return a session with a filled slot."""
    session = table_session(Table(1, ends=False))
    session.prefill(PROMPT[:2])
    session.snapshot(0)
    session.prefill(PROMPT[2:])
    return session


# Checkpoints from anywhere


@pytest.fixture(scope="module")
def checkpoint_parts() -> list[bytes]:
    """Of a checkpoint with two segments."""
    session = table_session(Table(1, ends=False))
    session.prefill(PROMPT[:2])
    first = session.checkpoint()
    session.prefill(PROMPT[2:])
    second = session.checkpoint()
    assert first.parts()[0] == second.parts()[0]
    return [second.part(place) for place in range(len(second.parts()))]


@pytest.fixture(scope="module")
def tolerant_session() -> Session:
    """Return a session whose program answers for any row that a forged checkpoint may hold, as a real program does."""
    table = Table(1, ends=False)
    return table_session(lambda text: table(tuple(token % VOCABULARY for token in text)))


def test_parts_are_a_checkpoint_again(checkpoint_parts: list[bytes], tolerant_session: Session) -> None:
    assert len(checkpoint_parts) == 3
    tolerant_session.reset()
    assert tolerant_session.resume(tolerant_session.read_checkpoint(checkpoint_parts)) == len(PROMPT)
    assert tolerant_session.tokens == tolerant_session.model.program.text == PROMPT  # type: ignore[union-attr]
    first = tolerant_session.read_checkpoint([checkpoint_parts[0], checkpoint_parts[2]])
    assert first.length == 2
    both = tolerant_session.read_checkpoint(checkpoint_parts[1:], first, 1)
    assert both.parts()[0] == first.parts()[0], "the rows are there once"
    assert tolerant_session.resume(both) == len(PROMPT)


WRONG_PARTS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no segment": lambda parts: parts[2:],
    "an empty part": lambda parts: [b"", *parts[1:]],
    "cut off": lambda parts: [parts[0][:-1], *parts[1:]],
    "longer": lambda parts: [parts[0] + b"x", *parts[1:]],
    "the rest is longer": lambda parts: [*parts[:2], parts[2] + b"x"],
    "a token outside the vocabulary": lambda parts: [parts[0][:8] + struct.pack("<q", 99) + parts[0][16:], *parts[1:]],
    "more tokens than there are": lambda parts: [struct.pack("<Q", 2**60) + parts[0][8:], *parts[1:]],
    "more tokens than fit": lambda parts: [parts[0], *[parts[1]] * 30, parts[2]],
    "more rows than there are": lambda parts: [parts[0][:24] + struct.pack("<Q", 2**60) + parts[0][32:], *parts[1:]],
    "fewer rows than tokens": lambda parts: [parts[0][:24] + struct.pack("<Q", 1) + parts[0][32:-8], *parts[1:]],
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_parts_that_no_session_could_have_made_are_refused(
    checkpoint_parts: list[bytes], tolerant_session: Session, wrong: str
) -> None:
    with pytest.raises(StateFileError, match="no checkpoint of this artifact"):
        tolerant_session.read_checkpoint(WRONG_PARTS[wrong](checkpoint_parts))


def test_shared_segments_are_those_of_a_checkpoint_of_this_model(
    checkpoint_parts: list[bytes], tolerant_session: Session
) -> None:
    like = tolerant_session.read_checkpoint(checkpoint_parts)
    for shared, other in ((3, like), (1, table_session().checkpoint())):
        with pytest.raises(UsageError):
            tolerant_session.read_checkpoint(checkpoint_parts[-1:], other, shared)
    with pytest.raises(UsageError):
        tolerant_session.read_checkpoint([])
    like.close()
    with pytest.raises(UsageError, match="closed"):
        tolerant_session.read_checkpoint(checkpoint_parts[-1:], like, 1)
    with pytest.raises(UsageError):
        like.part(0)


@given(edits=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 12), st.integers(0, 255)), max_size=4))
def test_whatever_parts_say_they_are_read_or_refused(
    checkpoint_parts: list[bytes], tolerant_session: Session, edits: list[tuple[int, int, int]]
) -> None:
    changed = [bytearray(each) for each in checkpoint_parts]
    for part, place, value in edits:
        if changed[part]:
            changed[part][place % len(changed[part])] = value
    tolerant_session.reset()
    with suppress(StateFileError):
        tolerant_session.resume(tolerant_session.read_checkpoint([bytes(each) for each in changed]))
        tolerant_session.decode(1)
    assert all(0 <= token < tolerant_session.vocab_size for token in tolerant_session.tokens)


def test_a_cache_is_of_its_model() -> None:
    session = filled()
    cache, other = PrefixCache(session.model), PrefixCache(table_model())
    kept: Checkpoint = session.checkpoint()
    cache.add(kept)
    with pytest.raises(UsageError):
        other.add(kept)
    assert (len(cache), len(other)) == (1, 0)


# Programs


def opened(**changes: Any) -> int:
    """The status of opening a program's table that is changed."""
    model = table_model()
    table = ProgramFunctions(model.program, model.manifest)  # type: ignore[arg-type]
    for name, value in changes.items():
        setattr(table._described, name, value)
    handle = ModelHandle()
    status: int = load().hybridge_program_open(byref(table._described), byref(handle))
    load().hybridge_model_close(handle)
    return status


WRONG_TABLES: dict[str, dict[str, Any]] = {
    "no function to call": {"call": OnCall()},
    "no context": {"max_seq_len": 0},
    "a context too long": {"max_seq_len": 1 << 40},
    "no vocabulary": {"vocab_size": 0},
    "a negative number of slots": {"snapshot_slots": -1},
    "no block length": {"verify_len_count": 0},
    "no block lengths where some are said to be": {"verify_lens": None},
    "no names where some are said to be": {"names": None},
    "no bounded names where some are said to be": {"bounded": None},
    "a name that is none": {"names": (ctypes.c_char_p * 5)(b"length", None, None, None, None)},
    "a drafter without hidden states": {"draft_block_count": 1, "draft_blocks": (c_int64 * 1)(4)},
}


@pytest.mark.parametrize("wrong", WRONG_TABLES)
def test_a_table_that_cannot_be_is_refused(wrong: str) -> None:
    assert opened() == Status.OK
    assert opened(**WRONG_TABLES[wrong]) == Status.INVALID_ARGUMENT


def test_a_program_has_one_state() -> None:
    model = table_model()
    first = Session(model)
    with pytest.raises(UsageError, match="another session has"):
        Session(model)
    first.decode(1)


class Strange(Exception):  # noqa: N818
    """What a program raises."""


def strange(*_: object) -> Any:
    raise Strange


CALLS: dict[str, Callable[[Session], object]] = {
    "prefill": lambda s: s.prefill([1, 2]),
    "decode": lambda s: s.decode(1),
    "verify": lambda s: s.verify([1, 2]),
    "commit": lambda s: s.commit(1),
    "snapshot": lambda s: s.snapshot(0),
    "restore": lambda s: s.restore(1),
    "reset": lambda s: s.reset(),
    "generate": lambda s: list(s.generate([1])),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_a_program_raises_is_raised_and_changes_nothing(session: Session, call: str) -> None:
    session.prefill([1])
    session.snapshot(1)
    session.prefill(PROMPT)
    session.verify([1, 2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.model.program, "call", strange)
        with pytest.raises(Strange):
            CALLS[call](session)
    assert session.tokens == session.model.program.text == [1, *PROMPT]  # type: ignore[union-attr]
    assert len(session.decode(1)) == session.vocab_size


WRONG_ANSWERS: dict[str, tuple[Numbers, ...]] = {
    "nothing": (),
    "whole numbers": (np.zeros((1, 1, 7), np.int64),),
    "too few": (np.zeros((1, 1, 6), np.float32),),
    "numbers that C has no name for": (np.zeros((1, 1, 7), np.float64),),
    "too many dimensions": (np.zeros((1,) * 8 + (7,), np.float32),),
}


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
def test_an_answer_that_is_none_is_an_error(session: Session, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    session.prefill(PROMPT)
    monkeypatch.setattr(session.model.program, "call", lambda name, *inputs: WRONG_ANSWERS[wrong])
    for call in (session.decode, lambda token: session.verify([token])):
        with pytest.raises((ArtifactError, TypeError)):
            call(1)
    assert session.tokens == PROMPT


@pytest.mark.parametrize("gone", [True, False])
def test_buffers_that_change_their_size_are_an_error(session: Session, monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """The core would write after them."""
    session.prefill(PROMPT)
    kept, program = session.checkpoint(), session.model.program
    assert program is not None
    really = program.buffer

    def buffer(name: str) -> Numbers:
        if gone:
            raise KeyError(name)
        return really(name)[:0]

    session.reset()
    monkeypatch.setattr(program, "buffer", buffer)
    for call in (lambda: session.resume(kept), session.checkpoint, session.state, lambda: session.decode(1)):
        with pytest.raises((ArtifactError, BrokenStateError)):
            call()
    monkeypatch.undo()
    session.reset()
    assert session.resume(kept) == len(PROMPT)


def test_no_token_follows_one_that_was_not_committed(session: Session) -> None:
    """A generation went on over a session that lacked the tokens of a commit that had failed."""
    steps, program = Steps(session), session.model.program
    assert program is not None
    really = program.call

    def call(name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        return strange() if name == "commit" else really(name, *inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "call", call)
        assert steps.begin() == Status.OK
        while (status := steps.next()) == Status.OK:
            assert steps.tokens
    assert status == Status.PROGRAM_FAILED
    assert steps.next() == Status.INVALID_STATE


def test_a_model_over_a_program_may_go_before_its_session() -> None:
    model: Model = table_model()
    session = Session(model)
    model.close()
    assert len(list(session.generate([1, 2], max_new_tokens=3, eos_ids=()))) == 3


# Words


def status_of(call: str, *arguments: object) -> tuple[int, str]:
    """Return the status of a call and what the core says about it."""
    status: int = getattr(load(), f"hybridge_{call}")(*arguments)
    return status, words()


def test_every_failure_has_words_of_its_own_call(session: Session) -> None:
    """A call that is refused before it begins said what an earlier call had said."""
    assert status_of("decode", session.handle, 99, None) == (
        Status.INVALID_TOKEN,
        f"token id 99 is outside the vocabulary, 0 to {VOCABULARY - 1}",
    )
    status, said = status_of("save", session.handle, None, None)
    assert (status, said) == (Status.INVALID_ARGUMENT, load().hybridge_status_text(status).decode())
    status, said = status_of("decode", SessionHandle(10**9), 1, None)
    assert (status, said) == (Status.INVALID_HANDLE, load().hybridge_status_text(status).decode())
    assert status_of("decode", session.handle, 1, None) == (Status.OK, "")
    assert status_of("commit", session.handle, 1)[0] == Status.INVALID_COMMIT
    assert "call verify first" in words()


def test_every_code_has_a_sentence_and_an_error() -> None:
    sentences = [load().hybridge_status_text(status).decode() for status in Status]
    assert len(set(sentences)) == len(Status)
    unknown = load().hybridge_status_text(len(Status)).decode()
    assert unknown == "no status of hybridge"
    assert unknown not in sentences
