"""The bench must notice what it is there to notice."""

import pytest
from table import END, VOCABULARY, Table, table_model, table_session

from hybridge.runtime import Context, DraftModel, ExportOptions, PromptLookup, Proposal, Sampling, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import Numbers, TextProgram
from hybridge.runtime.measure import PLAIN, contest, sampling_p_value

PROMPTS = [[1, 2], [3, 4], [5, 0]]


class Skewed(TextProgram):
    """A verify that computes something else than a decode, by so much."""

    skew = 0.0

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        answer = super().call(name, *inputs)
        if name.startswith("verify"):
            answer[0][..., 0] += self.skew
        return answer


class Always:
    needs_hidden = is_cheap = False

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal([0] * limit)


def session_that_verifies(skew: float, table: Table) -> Session:
    options = ExportOptions(max_seq_len=100, prefill_chunk=5, verify_len=4, shorter_verify_lens=(2,))
    program = Skewed(table, options.max_seq_len, options.snapshot_slots)
    program.skew = skew
    return Session.over(program, ProgramInfo(vocab_size=VOCABULARY, options=options, eos_ids=[END]))


def test_equal_texts_are_counted_as_equal() -> None:
    table = Table(4, ends=False)
    session = table_session(table, max_seq_len=100)
    ways = {PLAIN: None, "lookup": PromptLookup(), "itself": DraftModel(table_model(table), session)}
    outcomes = contest(session, ways, PROMPTS, new_tokens=40, sampling=Sampling(), block_length=3)  # or it might never pay
    assert [each.total.new_tokens for each in outcomes.values()] == [39 * 3] * 3
    assert not any(each.differing or each.ties for each in outcomes.values())
    assert outcomes["itself"].total.acceptance_rate == 1.0


def test_a_drafter_with_an_artifact_of_its_own_is_compared_with_plain_decoding_by_that_one() -> None:
    """Its decode may take longer, since it also answers with hidden states."""
    session, other = (table_session(Table(4, ends=False), max_seq_len=100) for _ in range(2))
    ways = {PLAIN: None, "lookup": PromptLookup(), "other": PromptLookup()}
    outcomes = contest(session, ways, PROMPTS, new_tokens=40, sampling=Sampling(), sessions={"other": other})
    assert [len(each.beside) for each in outcomes.values()] == [0, 0, 3]
    outcomes[PLAIN].speeds, outcomes["other"].beside = [1.0] * 3, [2.0] * 3
    outcomes["lookup"].speeds = outcomes["other"].speeds = [4.0] * 3
    assert [each.times(outcomes[PLAIN]) for each in outcomes.values()] == [1.0, 4.0, 2.0]


def test_a_verify_that_computes_something_else_is_noticed() -> None:
    ways = {PLAIN: None, "always": Always()}
    session = session_that_verifies(5.0, Table(4, ends=False))
    outcomes = contest(session, ways, PROMPTS, new_tokens=40, sampling=Sampling(), block_length=3)
    assert outcomes["always"].differing > 10
    assert outcomes["always"].ties == 0


def test_rounding_at_a_tie_is_counted_apart() -> None:
    table = Table(4, ends=False)
    table.rows[:] = 0.0
    table.rows[..., 1] = 1.0
    table.rows[..., 0] = 1.0 - 1e-6
    outcomes = contest(
        session_that_verifies(2e-6, table),
        {PLAIN: None, "always": Always()},
        PROMPTS,
        new_tokens=9,
        sampling=Sampling(),
        block_length=3,
    )
    assert (outcomes["always"].differing, outcomes["always"].ties) == (0, 3)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_sampling_check_passes_what_is_right() -> None:
    target, draft = table_session(Table(5, ends=False)), table_session(Table(5, 0.7, ends=False))
    p, acceptance = sampling_p_value(target, draft, [1, 2], Sampling(temperature=0.8, top_k=4), 15_000)
    assert p > 1e-3
    assert 0.3 < acceptance < 1.0


@pytest.mark.thorough
@pytest.mark.slow
def test_the_sampling_check_notices_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridge.runtime import measure as speculation

    really = speculation.distribution
    monkeypatch.setattr(speculation, "distribution", lambda logits, text, asked: really(1.1 * logits, text, asked))
    target, draft = table_session(Table(5, ends=False)), table_session(Table(5, 0.7, ends=False))
    p, _ = sampling_p_value(target, draft, [1, 2], Sampling(temperature=0.8), 40_000)
    assert p < 1e-3
