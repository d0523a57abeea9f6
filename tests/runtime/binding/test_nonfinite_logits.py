"""Logits that are NaN or infinite are an error, and so is a refusal; neither is ever handed out as a result."""

from __future__ import annotations

import math

import numpy as np
import pytest
from table import VOCABULARY, Table
from torch import Tensor

from hybridge.errors import ArtifactError, CommitError, NumericalError
from hybridge.runtime import Context, ExportOptions, GenerationStats, PromptLookup, Proposal, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import Numbers, TextProgram

OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=5, verify_len=3, snapshot_slots=2)
BAD = 6
"""The token after which this model gives no numbers."""


class Broken(Table):
    """Gives ``value`` for one logit after the token BAD."""

    value = math.nan

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        logits = super().__call__(text).clone()
        logits[2] = self.value if text[-1] == BAD else logits[2]
        return logits


def broken_session(value: float = math.nan) -> Session:
    table = Broken(3, ends=False)
    table.value = value
    description = ProgramInfo(vocab_size=VOCABULARY, options=OPTIONS)
    return Session.over(TextProgram(table, OPTIONS.max_seq_len, OPTIONS.snapshot_slots), description)


def goes_on(session: Session) -> None:
    """The text and the program's agree, and so does what follows."""
    assert session.tokens == session.model.program.text  # type: ignore[union-attr]
    session.decode(1)
    assert session.tokens == session.model.program.text  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_decode_commits_its_token(value: float) -> None:
    session = broken_session(value)
    session.prefill([1, 2, 3])
    with pytest.raises(NumericalError, match="logits in 'decode' that are NaN or infinite"):
        session.decode(BAD)
    assert session.tokens == [1, 2, 3, BAD]
    goes_on(session)


def test_a_verify_leaves_the_state_and_no_block() -> None:
    session = broken_session()
    session.prefill([1, 2])
    with pytest.raises(NumericalError, match="logits in 'verify' that are NaN"):
        session.verify([1, BAD, 2])
    with pytest.raises(CommitError):
        session.commit(1)
    assert session.tokens == [1, 2]
    goes_on(session)


@pytest.mark.parametrize("prompt", [[BAD], [1, BAD], [1, 2, 3, 4, BAD], [1, 2, 3, 4, BAD, 1, 2], [1] * 12 + [BAD]])
def test_a_first_prefill_is_taken_back_whole(prompt: list[int]) -> None:
    session = broken_session()
    with pytest.raises(NumericalError, match="that are NaN or infinite"):
        session.prefill(prompt)
    assert session.tokens == []
    goes_on(session)


@pytest.mark.parametrize("prompt", [[1, BAD], [1, BAD, 2], [1, 2, 3, 4, BAD, 1, 2], [1] * 12 + [BAD]])
def test_so_is_a_later_one_of_several_calls(prompt: list[int]) -> None:
    session = broken_session()
    session.prefill([4, 4, 4])
    session.snapshot(0)
    with pytest.raises(NumericalError, match="that are NaN or infinite"):
        session.prefill(prompt)
    assert session.tokens == [4, 4, 4]
    goes_on(session)
    assert session.restore(0) == 3


def test_a_single_chunk_is_committed_and_a_slot_brings_back_what_was() -> None:
    session = broken_session()
    session.prefill([4, 4])
    session.snapshot(1)
    with pytest.raises(NumericalError, match="reset the session, or restore"):
        session.prefill([1, 1, 1, 1, BAD])
    assert session.length == 7
    session.restore(1)
    goes_on(session)


@pytest.mark.parametrize("drafter", [None, PromptLookup()])
def test_a_generation_ends_in_an_error_and_no_token_is_made_up(drafter: PromptLookup | None) -> None:
    session = broken_session()
    session.model.program.logits.rows[..., BAD] += 1000.0  # type: ignore[union-attr]
    generation = session.generate([1, 2, 3, 1, 2], max_new_tokens=9, drafter=drafter)
    assert next(generation) == BAD
    with pytest.raises(NumericalError, match="NaN"):
        next(generation)
    assert session.tokens == [1, 2, 3, 1, 2, BAD]


@pytest.mark.parametrize("block", [2, 3])
def test_a_verified_block_of_a_generation_is_left_out_whole(block: int) -> None:
    session = broken_session()
    stats = GenerationStats()
    first = list(session.generate([1, 2, 3], max_new_tokens=1))
    stream = session.generate(first, max_new_tokens=9, drafter=Always(BAD), block_length=block, stats=stats)
    seen = [next(stream)]
    with pytest.raises(NumericalError):
        seen += stream
    assert stats.verifies == 0
    assert session.tokens == [1, 2, 3, *first]
    goes_on(session)


def test_large_finite_logits_are_numbers() -> None:
    """Also where they would add up to infinity, and in any place of them."""
    rows = np.full((4, VOCABULARY), 3e38, np.float32)
    rows[1] = -3e38
    rows[2, 3] = math.inf
    session = Session.over(
        TextProgram(lambda text: rows[text[-1]], OPTIONS.max_seq_len, OPTIONS.snapshot_slots),
        ProgramInfo(vocab_size=VOCABULARY, options=OPTIONS),
    )
    assert np.array_equal(session.decode(0), rows[0])
    assert np.array_equal(session.verify([0, 1, 0]), rows[[0, 1, 0]])
    with pytest.raises(NumericalError):
        session.verify([0, 1, 2])
    with pytest.raises(NumericalError):
        session.decode(2)


class Always:
    """Proposes one token over and over."""

    needs_hidden = is_cheap = False

    def __init__(self, token: int) -> None:
        self.token = token

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal([self.token] * limit)


class Refusing(TextProgram):
    """Answers a method as a program does that refuses: with NaN, and without counting."""

    refuses = ""

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        if name == self.refuses:
            return (np.full((1, inputs[0].shape[-1], VOCABULARY), math.nan, np.float32),)
        return super().call(name, *inputs)


@pytest.mark.parametrize("name", ["decode", "prefill", "verify"])
def test_a_refusal_is_an_error_of_the_program(name: str) -> None:
    methods = Refusing(Table(3), OPTIONS.max_seq_len, OPTIONS.snapshot_slots)
    session = Session.over(methods, ProgramInfo(vocab_size=VOCABULARY, options=OPTIONS))
    session.prefill([1, 2])
    methods.refuses = name
    tokens = {"decode": [1], "prefill": [1, 2, 3, 4], "verify": [1, 2, 3]}[name]
    with pytest.raises(ArtifactError, match="it refused what fits"):
        (session.verify if name == "verify" else session.prefill)(tokens)
    assert session.tokens == [1, 2]
    methods.refuses = ""
    goes_on(session)
