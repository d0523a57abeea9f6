"""Every operation of a session, interrupted everywhere: it happened or it did not, and the session goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from interrupts import Interrupt
from table import END, VOCABULARY, Table
from tiny import tiny_config, tiny_model

from hybridge.errors import ArtifactError, BrokenStateError, CommitError, HybridgeError, SnapshotError
from hybridge.export.program.eager import eager_session
from hybridge.runtime import ExportOptions, PromptLookup, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import Numbers, TextProgram

TEXT, BLOCK = [1, 2, 3, 1, 2], [3, 1, 2]
LONG = [3, 1, 4, 1, 5, 2, 3, 1, 4, 2, 2, 3]  # two chunks and a few tokens more
OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=5, verify_len=4, shorter_verify_lens=(2,), snapshot_slots=2)


def text_session() -> Session:
    description = ProgramInfo(vocab_size=VOCABULARY, options=OPTIONS, eos_ids=[END], identity="a table")
    return Session.over(TextProgram(Table(3, ends=False), OPTIONS.max_seq_len, OPTIONS.snapshot_slots), description)


@pytest.fixture(scope="module")
def eager() -> Session:
    """A recurrence, and attention in a window and over everything."""
    config = tiny_config("qwen3_5_text", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])
    session = eager_session(tiny_model(config), OPTIONS)
    session.manifest = replace(session.manifest, identity="eager")  # type: ignore[type-var]
    return session


def prepared(session: Session) -> Session:
    """A text, a slot that keeps its beginning, one that kept more and was overwritten, and a block that waits."""
    session.reset()
    session.prefill(TEXT[:2])
    session.snapshot(0)
    session.prefill([4, 4])
    session.snapshot(1)
    session.restore(0)
    session.prefill(TEXT[2:])
    session.verify(BLOCK)
    return session


def operations(file: Path) -> dict[str, Callable[[Session], object]]:
    return {
        "prefill": lambda s: s.prefill([4, 3, 2, 1, 0]),
        "prefill a few": lambda s: s.prefill([4, 3]),
        "prefill in chunks": lambda s: s.prefill(LONG),
        "decode": lambda s: s.decode(2),
        "verify": lambda s: s.verify([2, 2]),
        "commit": lambda s: s.commit(2),
        "reject": lambda s: s.commit(0),
        "snapshot": lambda s: s.snapshot(0),
        "restore": lambda s: s.restore(0),
        "reset": lambda s: s.reset(),
        "save": lambda s: s.save(file),
        "load": lambda s: s.load_state(file),
        "tokens": lambda s: (s.tokens, s.slots, s.note, s.room, s.state()),
    }


NAMES = list(operations(Path()))
Bits = tuple[list[int], dict[int, list[int]], dict[str, bytes]]


def held(session: Session) -> Bits:
    """Text, slots and committed state; rows that the length does not reach hold anything, and so does what is staged."""
    left_out = ("operations", "slot_length")
    state = {name: each for name, each in session.state().items() if "staged" not in name and name not in left_out}
    rows = {name: each[..., : session.length] for name, each in state.items() if name == "rows"}
    rows |= {name: each[:, : session.length] for name, each in state.items() if name.endswith((".keys", ".values"))}
    return session.tokens, session.slots, {name: each.tobytes() for name, each in (state | rows).items()}


def outcomes(session: Session, operation: Callable[[Session], object]) -> list[Bits]:
    """Without the operation, and with it."""
    without = held(prepared(session))
    operation(prepared(session))
    return [without, held(session)]


def goes_on(session: Session, fresh: Callable[[], Session]) -> None:
    """Everything that follows is as if nothing had been interrupted."""
    text = session.tokens
    for slot, kept in session.slots.items():
        try:
            session.restore(slot)
        except SnapshotError:
            continue
        assert session.tokens == kept
    session.prefill([1, 3])
    assert session.tokens[-2:] == [1, 3]
    got, text = session.decode(2), session.tokens
    other = fresh()
    other.reset()
    other.prefill(text[:-1])
    np.testing.assert_allclose(got, other.decode(2), rtol=1e-4, atol=1e-5)


@pytest.fixture
def state_of_another_text(tmp_path: Path) -> Path:
    """A saved state of another text."""
    session = text_session()
    session.prefill([6, 5, 4, 3])
    session.snapshot(0)
    session.decode(1)
    session.save(tmp_path / "state", "noted")
    return tmp_path / "state"


@pytest.mark.slow
@pytest.mark.parametrize("by_instruction", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_it_happened_or_it_did_not(name: str, by_instruction: bool, state_of_another_text: Path) -> None:
    if name == "save":
        state_of_another_text = state_of_another_text.with_name("another")
    operation, session = operations(state_of_another_text)[name], text_session()
    possible = outcomes(session, operation)
    strike, struck = 0, True
    while struck:
        strike += 1
        prepared(session)
        struck = Interrupt(strike, by_instruction).struck(lambda: operation(session))
        second = Interrupt(random.Random(strike).randrange(1, 60), by_instruction)
        second.struck(lambda: session.tokens)
        assert held(session) in possible, (name, strike)
        assert session.tokens == session.model.program.text  # type: ignore[union-attr]
        if struck and strike % 7 == 0:
            goes_on(session, text_session)
    assert strike > 10, "the call was interrupted in many places"
    assert held(session) == possible[1]
    assert [path.name for path in state_of_another_text.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["prefill in chunks", "prefill a few", "verify", "commit", "snapshot", "restore", "reset", "load"]
)
def test_a_model_in_pytorch_too(name: str, eager: Session, tmp_path: Path) -> None:
    """Where a call of the program itself is many steps; at some of its places."""
    prepared(eager).save(tmp_path / "state")
    operation, rng = operations(tmp_path / "state")[name], random.Random(name)
    possible = outcomes(eager, operation)
    counting = Interrupt(-1)
    prepared(eager)
    counting.struck(lambda: operation(eager))
    for _ in range(12):
        prepared(eager)
        struck = Interrupt(rng.randint(1, counting.places)).struck(lambda: operation(eager))
        Interrupt(rng.randint(1, 60)).struck(lambda: eager.tokens)
        assert struck
        assert held(eager) in possible, name
    text = [*eager.tokens, 2]
    got = eager.decode(2)
    eager.reset()
    np.testing.assert_allclose(got, eager.prefill(text), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_generation_goes_on_wherever_it_was_interrupted() -> None:
    plain = list(text_session().generate(TEXT, max_new_tokens=12))
    strike, struck = 0, True
    while struck:
        strike += 23
        session, got = text_session(), list[int]()

        def generate(session: Session = session, got: list[int] = got) -> None:
            for token in session.generate(TEXT, max_new_tokens=12, drafter=PromptLookup(), block_length=4):
                got.append(token)  # noqa: PERF402  what came before the interrupt counts

        struck = Interrupt(strike).struck(generate)
        text = session.tokens
        assert text == session.model.program.text  # type: ignore[union-attr]
        assert text == [*TEXT, *plain][: len(text)]
        if text:
            rest = list(session.generate([*TEXT, *plain][len(text) : len(text) + 1], max_new_tokens=5))
            assert rest == [*TEXT, *plain][len(text) + 1 :][:5] or len(rest) == 5
    assert got == plain


class Failing(TextProgram):
    """Fails in the call of that number, or lies about lengths."""

    fails, lie = -1, 0

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        self.fails -= 1
        if self.fails == -1:
            raise ArtifactError("the program failed")
        answer = super().call(name, *inputs)
        if self.lie and name in ("commit", "restore"):
            self.numbers[0] += self.lie
        return answer


def failing_session() -> tuple[Session, Failing]:
    program = Failing(Table(3, ends=False), OPTIONS.max_seq_len, OPTIONS.snapshot_slots)
    return Session.over(program, ProgramInfo(vocab_size=VOCABULARY, options=OPTIONS, eos_ids=[END])), program


@pytest.mark.parametrize("fails", range(3))
@pytest.mark.parametrize("empty", [True, False])
def test_a_prefill_that_fails_in_any_chunk_changes_nothing(empty: bool, fails: int) -> None:
    session, program = failing_session()
    if not empty:
        prepared(session)
    before = held(session)
    program.fails = fails
    with pytest.raises(ArtifactError, match="the program failed"):
        session.prefill(LONG)
    assert held(session) == before
    session.prefill(LONG)
    assert session.tokens == program.text == [*before[0], *LONG]


@pytest.mark.parametrize("fails", range(3))
def test_a_recurrent_state_comes_back_too(eager: Session, fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, left = held(prepared(eager)), iter(range(99))
    really = eager.model.program.call  # type: ignore[union-attr]

    def call(name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        if next(left) == fails:
            raise ArtifactError("the program failed")
        return really(name, *inputs)

    with monkeypatch.context() as patch:
        patch.setattr(eager.model.program, "call", call)
        with pytest.raises(ArtifactError, match="failed"):
            eager.prefill(LONG)
        assert held(eager) == before


@pytest.mark.parametrize("fails", range(8))
def test_a_generation_whose_program_fails_leaves_a_text_of_its_tokens(fails: int) -> None:
    plain = list(text_session().generate(TEXT, max_new_tokens=30))
    session, program = failing_session()
    program.fails, got = fails, list[int]()
    with pytest.raises(ArtifactError, match="the program failed"):
        got.extend(session.generate(TEXT, max_new_tokens=12, drafter=PromptLookup(), block_length=4))
    text = session.tokens
    assert text == program.text == [*TEXT, *plain][: len(text)]
    assert len(text) >= (len(TEXT) if fails else 0)
    rest = [*TEXT, *plain][len(text) :]
    read = 1 if text else len(TEXT)
    assert list(session.generate(rest[:read], max_new_tokens=5)) == rest[read : read + 5]


@pytest.mark.parametrize("name", ["commit", "restore"])
def test_a_program_that_holds_another_length_is_not_believed(name: str) -> None:
    session, program = failing_session()
    prepared(session)
    program.lie = 1
    with pytest.raises(ArtifactError, match="reset the session"):
        operations(Path())[name](session)
    for call in (lambda: session.decode(1), lambda: session.verify([1, 2]), lambda: session.snapshot(0)):
        with pytest.raises(BrokenStateError, match="reset the session"):
            call()
    assert session.reset() == 0
    session.decode(1)
    assert session.tokens == program.text == [1]


@pytest.mark.parametrize("name", ["prefill", "decode", "commit", "restore"])
def test_a_program_that_fails_behind_its_work_is_not_believed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is to do what it says or nothing. What it did is not the session's text, and a slot brings that back."""
    session, program = failing_session()
    prepared(session)
    really, before = program.call, session.tokens

    def call(name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        really(name, *inputs)
        raise ArtifactError("the program failed")

    with monkeypatch.context() as patch:
        patch.setattr(program, "call", call)
        with pytest.raises(ArtifactError, match="the program failed"):
            operations(Path())[name](session)
    assert session.tokens == before
    with pytest.raises(BrokenStateError, match="reset the session"):
        session.decode(1)
    assert session.restore(0) == 2
    session.decode(1)
    assert session.tokens == program.text == [*TEXT[:2], 1]


def test_another_thread_is_told_to_wait() -> None:
    inside, go_on = Event(), Event()

    class Slow(TextProgram):
        def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
            if name == "decode":
                inside.set()
                assert go_on.wait(20)
            return super().call(name, *inputs)

    session = Session.over(Slow(Table()), ProgramInfo(vocab_size=VOCABULARY, options=OPTIONS))
    thread = Thread(target=lambda: session.decode(1))
    thread.start()
    assert inside.wait(20)
    for call in (lambda: session.tokens, lambda: session.decode(2), session.reset, lambda: session.snapshot(0), session.state):
        with pytest.raises(HybridgeError, match="in another call"):
            call()
    go_on.set()
    thread.join()
    assert session.tokens == session.model.program.text == [1]  # type: ignore[union-attr]
    session.prefill([2, 3])
    assert session.tokens == [1, 2, 3]


def test_a_block_waits_through_an_interrupt_before_its_commit() -> None:
    session = prepared(text_session())
    assert Interrupt(1).struck(lambda: session.commit(2))
    assert session.commit(2) == len(TEXT) + 2
    with pytest.raises(CommitError):
        session.commit(1)
