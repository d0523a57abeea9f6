"""Sessions over a real program: how they read and generate, what they refuse, and what a failure leaves."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core_child import in_core

from hybridge.errors import (
    CapacityError,
    CommitError,
    HybridgeError,
    OutputError,
    SnapshotError,
    StateFileError,
    TokenError,
    UsageError,
)
from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.random_program import RandomProgram
from hybridge.export.check.validate import TOLERANCE, compare
from hybridge.export.report import ValidationReport
from hybridge.runtime import ExportOptions, GenerationStats, Model, PromptLookup, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import Numbers, TextProgram

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.fixture
def second_session(model: Model) -> Session:
    return Session(model)


@pytest.mark.slow
def test_two_sessions_take_turns(session: Session, second_session: Session, checkpoint: Path) -> None:
    programs = [RandomProgram(each, random.Random(i)) for i, each in enumerate((session, second_session))]
    for operations in range(1, 101):
        for program in programs:
            program.play(operations)
    report = ValidationReport(seed=0, tolerance=TOLERANCE)
    oracle = load_oracle(checkpoint, session.manifest)
    for i, program in enumerate(programs):
        compare(report, i, program, oracle)
    assert report.first_divergence is None
    assert report.compared > 100


@pytest.mark.parametrize("seed", range(4))
def test_greedy_tokens_are_those_of_the_logits(session: Session, second_session: Session, seed: int) -> None:
    rng, stats = random.Random(seed), GenerationStats()
    prompt = [rng.randrange(session.vocab_size) for _ in range(rng.randint(1, 7))] * 3
    want = [int(second_session.prefill(prompt).argmax())]
    while len(want) < 50 and want[-1] not in second_session.manifest.eos_ids:
        want.append(int(second_session.decode(want[-1]).argmax()))
    assert list(session.generate(prompt, max_new_tokens=50)) == want
    assert session.length == len(prompt) + len(want) - 1
    session.reset()
    block = session.verify_len  # else measured times decide
    drafted = session.generate(prompt, max_new_tokens=50, block_length=block, stats=stats, drafter=PromptLookup())
    assert list(drafted) == want
    assert session.tokens == [*prompt, *want[:-1]]
    assert stats.accepted > 0


def test_a_generation_outlives_the_last_name_of_its_session(model: Model, session: Session) -> None:
    want = list(session.generate(PROMPT, max_new_tokens=10))
    assert list(Session(model).generate(PROMPT, max_new_tokens=10)) == want


def test_all_pieces_of_a_prompt_read_the_same(kernels_artifact: Path) -> None:
    """A prompt that ends in verifies against decodes, one token after another."""
    session = Session.load(kernels_artifact)
    size = session.prefill_chunk + max(2, 3 * session.prefill_chunk // 8)
    tokens = [token % session.vocab_size for token in range(3, 3 + size)]
    got = session.prefill(tokens)
    session.reset()
    want = [session.decode(token) for token in tokens][-1]
    assert np.allclose(got, want, atol=1e-4 * float(np.abs(want).max()))
    assert session.length == size


class Noting(TextProgram):
    """Notes which methods are called, and with how many tokens that count."""

    def __init__(self) -> None:
        super().__init__(lambda text: np.zeros(200, np.float32), 200, 0)
        self.calls: list[tuple[str, int]] = []

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        if name not in ("reset", "commit"):
            self.calls.append((name, int(inputs[1][0]) if len(inputs) > 1 else inputs[0].shape[-1]))
        return super().call(name, *inputs)


def pieces(tokens: int, **options: Any) -> list[int]:
    """Return the lengths of the pieces in which a prompt is read."""
    program = Noting()
    sizes = ExportOptions(max_seq_len=200, snapshot_slots=0, **options)
    session = Session.over(program, ProgramInfo(vocab_size=200, options=sizes))
    session.prefill(list(range(tokens)))
    assert session.tokens == program.text == list(range(tokens))
    return [count for _, count in program.calls]


@pytest.mark.parametrize(
    ("chunk", "block", "tokens", "expected"),
    [
        (64, 8, 12, [8, 4]),
        (64, 8, 16, [8, 8]),
        (64, 8, 20, [8, 8, 4]),
        (64, 8, 24, [8, 8, 8]),
        (64, 8, 25, [25]),
        (64, 8, 64, [64]),
        (64, 8, 141, [64, 64, 8, 5]),
        (64, 16, 25, [25]),
        (64, 1, 12, [12]),
        (16, 4, 7, [7]),
        (16, 4, 36, [16, 16, 4]),
        (8, 16, 11, [8, 3]),
    ],
)
def test_the_pieces_of_a_prompt(chunk: int, block: int, tokens: int, expected: list[int]) -> None:
    """A prefill of a fixed shape costs most of its time even where it is given few tokens; a verify is shorter."""
    found = pieces(tokens, prefill_chunk=chunk, verify_len=block, kernels="hybridge")
    # a verify of a fixed shape is padded
    assert [min(got, want) for got, want in zip(found, expected, strict=True)] == expected


def test_a_program_of_any_shape_reads_in_one_piece() -> None:
    assert pieces(12, prefill_chunk=64, verify_len=8, format="onnx") == [12]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
def test_rows_that_no_token_has_reached_take_no_memory(long_artifact: Path) -> None:
    """A session of a long context is as large as its text: its arena is cleared memory that nothing touches before."""
    said = in_core(
        long_artifact,
        """
        def own():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
        before = own()
        other = Session(model)
        list(other.generate([5, 6, 7], max_new_tokens=20, drafter=PromptLookup()))
        print(own() - before, sum(each.nbytes for each in other.state().values()))
        """,
    )
    grown, state = map(int, said.split())
    assert state > 10 << 20
    assert grown < state / 4


@pytest.mark.slow
def test_a_state_begins_with_zeros(model: Model) -> None:
    """Empty slots say so with -1, and the reset is counted."""
    state = Session(model).state()
    assert [name for name, buffer in state.items() if buffer.any()] == ["slot_length", "operations"]


REFUSALS: dict[str, tuple[type[HybridgeError], str, Callable[[Session], object]]] = {
    "no tokens": (TokenError, "there are no tokens; give at least one", lambda s: s.prefill([])),
    "a negative token": (TokenError, "token id -1 is outside the vocabulary, 0 to 130", lambda s: s.decode(-1)),
    "a token after the vocabulary": (TokenError, "token id 131 is outside the vocabulary", lambda s: s.verify([s.vocab_size])),
    "a long block": (TokenError, "verify takes at most 5 tokens, got 7; export with a larger --verify-len",
                     lambda s: s.verify([1] * 7)),
    "a full context": (CapacityError, "85 tokens do not fit: 12 of max_seq_len = 96 are used",
                       lambda s: s.prefill([1] * (s.room + 1))),
    "a full context in a generation": (CapacityError, "1000 tokens do not fit: 12 of max_seq_len",
                                       lambda s: s.generate([1] * 1000)),
    "nothing to generate": (UsageError, "max_new_tokens", lambda s: s.generate([1], max_new_tokens=0)),
    "nothing to generate from": (TokenError, "there are no tokens; give at least one", lambda s: s.generate([])),
    "no block": (CommitError, "there is no verified block: call verify first", lambda s: s.commit(1)),
    "a slot out of range": (SnapshotError, "slot 99 does not exist; this artifact has slots 0 to 1", lambda s: s.snapshot(99)),
    "a negative slot": (SnapshotError, "slot -1 does not exist", lambda s: s.restore(-1)),
    "an empty slot": (SnapshotError, "this slot keeps nothing", lambda s: s.restore(1)),
    "no tapped layers": (UsageError, "no drafter of its own; export it again", lambda s: s.draft([[1.0]], [1])),
    "a file that is not there": (StateFileError, "nowhere", lambda s: s.load_state(Path("nowhere"))),
    "a folder that is not there": (OutputError, "nowhere/state cannot be written", lambda s: s.save(Path("nowhere/state"))),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_what_to_do_and_changes_nothing(session: Session, second_session: Session, case: str) -> None:
    error, says, call = REFUSALS[case]
    for each in (session, second_session):
        each.prefill(PROMPT)
    with pytest.raises(error, match=re.escape(says)):
        call(session)
    assert session.length == len(PROMPT)
    assert np.array_equal(session.decode(3), second_session.decode(3))


def test_a_block_is_committed_once_and_not_longer_than_it_is(session: Session) -> None:
    session.prefill(PROMPT)
    session.verify([1, 2, 3])
    for count in (4, -1):
        with pytest.raises(CommitError, match="3 tokens"):
            session.commit(count)
    assert session.commit(2) == len(PROMPT) + 2
    with pytest.raises(CommitError):
        session.commit(0)
