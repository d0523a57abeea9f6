"""Logits that are NaN or infinite are an error, and so is a refusal; neither is ever handed out as a result."""

from __future__ import annotations

import math

import pytest
import torch
from hybridge.runtime.sessions.outcomes import check_numbers
from table import VOCABULARY, Table
from torch import Tensor

from hybridge.cache.errors import ArtifactError, CommitError, NumericalError
from hybridge.runtime import ExportOptions, PromptLookup, Session
from hybridge.runtime.core.programs import TextDescription, TextProgram

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
    description = TextDescription(vocab_size=VOCABULARY, options=OPTIONS)
    return Session.over(TextProgram(table, OPTIONS.max_seq_len, OPTIONS.snapshot_slots), description)


def goes_on(session: Session) -> None:
    """The text and the program's agree, and so does what follows."""
    assert session.tokens == session.model.program.text  # type: ignore[attr-defined]
    session.decode(1)
    assert session.tokens == session.model.program.text  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_decode_names_method_and_position(value: float) -> None:
    session = broken_session(value)
    session.prefill([1, 2, 3])
    with pytest.raises(NumericalError, match=r"'decode' gave (NaN|infinite) logits after position 3: .* tokens are committed"):
        session.decode(BAD)
    assert session.tokens == [1, 2, 3, BAD]
    goes_on(session)


def test_a_verify_leaves_the_state_and_no_block() -> None:
    session = broken_session()
    session.prefill([1, 2])
    with pytest.raises(NumericalError, match=r"'verify' gave NaN logits after position 3: .* state is as it was"):
        session.verify([1, BAD, 2])
    with pytest.raises(CommitError):
        session.commit(1)
    assert session.tokens == [1, 2]
    goes_on(session)


@pytest.mark.parametrize("prompt", [[BAD], [1, BAD], [1, 2, 3, 4, BAD], [1, 2, 3, 4, BAD, 1, 2], [1] * 12 + [BAD]])
def test_a_first_prefill_is_taken_back_whole(prompt: list[int]) -> None:
    session = broken_session()
    with pytest.raises(NumericalError, match="The state is as it was"):
        session.prefill(prompt)
    assert session.tokens == []
    goes_on(session)


@pytest.mark.parametrize("prompt", [[1, BAD], [1, BAD, 2], [1, 2, 3, 4, BAD, 1, 2], [1] * 12 + [BAD]])
def test_so_is_a_later_one_of_several_calls(prompt: list[int]) -> None:
    session = broken_session()
    session.prefill([4, 4, 4])
    session.snapshot(0)
    with pytest.raises(NumericalError, match="The state is as it was"):
        session.prefill(prompt)
    assert session.tokens == [4, 4, 4]
    goes_on(session)
    assert session.restore(0) == 3


def test_a_single_chunk_is_committed_and_a_slot_brings_back_what_was() -> None:
    session = broken_session()
    session.prefill([4, 4])
    session.snapshot(1)
    with pytest.raises(NumericalError, match=r"after position 6: .* restore a slot"):
        session.prefill([1, 1, 1, 1, BAD])
    assert session.length == 7
    session.restore(1)
    goes_on(session)


@pytest.mark.parametrize("drafter", [None, PromptLookup()])
def test_a_generation_ends_in_an_error_and_no_token_is_made_up(drafter: PromptLookup | None) -> None:
    session = broken_session()
    session.model.program.logits.rows[..., BAD] += 1000.0  # type: ignore[attr-defined]
    generation = session.generate([1, 2, 3, 1, 2], max_new_tokens=9, drafter=drafter)
    assert next(generation) == BAD
    with pytest.raises(NumericalError, match="position 5"):
        next(generation)
    assert session.tokens == [1, 2, 3, 1, 2, BAD]


def test_large_finite_logits_are_numbers() -> None:
    check_numbers(torch.full((2, 1000), 3e38), "decode", 0)
    check_numbers(torch.tensor([[3e38, -3e38]]), "decode", 0)
    with pytest.raises(NumericalError, match="infinite logits after position 8"):
        check_numbers(torch.tensor([[1.0, 2.0], [math.inf, 3.0]]), "verify", 7)
    with pytest.raises(NumericalError, match="NaN"):
        check_numbers(torch.tensor([[math.inf, -math.inf, math.nan]]), "verify", 7)


class Refusing(TextProgram):
    """Answers a method as a program does that refuses: with NaN, and without counting."""

    refuses = ""

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        if name == self.refuses:
            return (torch.full((1, inputs[0].shape[-1], VOCABULARY), math.nan),)
        return super().call(name, *inputs)


@pytest.mark.parametrize("name", ["decode", "prefill", "verify"])
def test_a_refusal_says_which_and_why(name: str) -> None:
    methods = Refusing(Table(3), OPTIONS.max_seq_len, OPTIONS.snapshot_slots)
    session = Session(methods, TextDescription(vocab_size=VOCABULARY, options=OPTIONS))
    session.prefill([1, 2])
    methods.refuses = name
    tokens = {"decode": [1], "prefill": [1, 2, 3, 4], "verify": [1, 2, 3]}[name]
    with pytest.raises(ArtifactError, match=f"refused '{name}': by its own count {len(tokens)} tokens do not fit after 2"):
        (session.verify if name == "verify" else session.prefill)(tokens)
    assert session.tokens == [1, 2]
    methods.refuses = ""
    goes_on(session)


def test_a_real_program_with_a_state_of_nan(artifact: object) -> None:
    session = Session.load(str(artifact))
    session.prefill([1, 2, 3])
    session.snapshot(0)
    session.model.program.state()["layers.0.recurrent_state"].fill_(math.nan)  # type: ignore[index]
    with pytest.raises(NumericalError, match="'verify' gave NaN logits after position 3"):
        session.verify([1, 2])
    with pytest.raises(NumericalError, match=r"'decode' gave NaN logits after position 3"):
        session.decode(1)
    with pytest.raises(NumericalError):
        list(session.generate([1], max_new_tokens=5))
    assert session.restore(0) == 3
    assert bool(session.decode(1).isfinite().all())
