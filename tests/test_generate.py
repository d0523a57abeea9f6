"""Generation over a session made of a table: what it does to any model, without one."""

import gc
from collections.abc import Iterator
from itertools import count

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from table import END, VOCABULARY, Table, table_session

from hybridge.cache.errors import CapacityError, TokenError, UsageError
from hybridge.runtime import Context, Drafter, GenerationStats, PromptLookup, Proposal, Sampling, Session
from hybridge.runtime.core.drafters import DraftModel
from hybridge.runtime.core.generation import Round


class FixedProposals:
    """Proposes from a fixed list, right or wrong."""

    needs_hidden = is_free = False

    def __init__(self, guesses: list[list[int]]) -> None:
        self.guesses = guesses

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(self.guesses[len(context.tokens) % len(self.guesses)][:limit] if self.guesses else [])


def run(session: Session, prompt: list[int], **options: object) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    return list(session.generate(prompt, **({"max_new_tokens": 30, "stats": stats} | options))), stats  # type: ignore[arg-type]


@pytest.mark.parametrize(("forced", "guessed"), [(False, "draft"), (True, "forced")])
def test_the_last_token_of_a_round_is_the_models_own(forced: bool, guessed: str) -> None:
    block = Round([5, 6, 7], proposed=4, forced=forced)
    assert [block.origin(number) for number in (1, 2, 3)] == [guessed, guessed, "own"]
    assert Round([5]).origin(1) == "own"


def test_only_forced_tokens_are_counted_as_forced() -> None:
    stats = GenerationStats()
    stats.count_block(1, 3, 4, forced=False)
    stats.count_block(5, 2, 2, forced=True)
    assert (stats.forced, stats.accepted, stats.proposed, stats.rollbacks) == (2, 5, 6, 1)


def test_the_first_token_is_not_counted_in_the_rate() -> None:
    assert GenerationStats(new_tokens=5, new_seconds=2.0).tokens_per_second == 2.0
    assert GenerationStats(new_tokens=1, new_seconds=2.0).tokens_per_second == 0.0
    assert GenerationStats(new_tokens=5).tokens_per_second == 0.0


guesses = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), max_size=5)
blocks = st.sampled_from([None, 2, 3, 4])


@pytest.mark.slow
@given(seed=st.integers(0, 99), guesses=guesses, room=st.integers(3, 60), new=st.integers(1, 40), block=blocks)
def test_greedy_is_the_same_with_any_drafter(
    seed: int, guesses: list[list[int]], room: int, new: int, block: int | None
) -> None:
    plain_session, session = table_session(Table(seed), room), table_session(Table(seed), room)
    plain, _ = run(plain_session, [1, 2], max_new_tokens=new)
    guessed, stats = run(session, [1, 2], max_new_tokens=new, drafter=FixedProposals(guesses), block_length=block)
    assert guessed == plain
    assert stats.new_tokens == len(plain) <= new
    assert session.tokens == plain_session.tokens == [1, 2, *guessed[:-1]], "all but the last token, and nothing else"
    assert END not in guessed[:-1]


@pytest.mark.slow
@given(seed=st.integers(0, 99), noise=st.sampled_from([0.0, 0.5, 5.0]), block=blocks, reach=st.sampled_from([8, 20, 60]))
def test_greedy_is_the_same_with_a_draft_model_however_bad_it_is(
    seed: int, noise: float, block: int | None, reach: int
) -> None:
    session = table_session(Table(seed, ends=False))
    plain, _ = run(session, [1, 2, 3])
    session.reset()
    draft = DraftModel(table_session(Table(seed, noise, ends=False), max_seq_len=reach), session)
    guessed, stats = run(session, [1, 2, 3], drafter=draft, block_length=block)
    assert guessed == plain
    if noise == 0 and block:
        assert stats.acceptance_rate == 1.0


@settings(max_examples=30)
@given(
    seed=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["go on", "undo", "anew", "elsewhere"])), max_size=6),
)
def test_a_draft_model_follows_a_session_wherever_it_goes(seed: int, steps: list[tuple[int, str]]) -> None:
    table = Table(seed, ends=False)
    session = table_session(table, max_seq_len=100)
    draft = DraftModel(table_session(table, max_seq_len=100), session)
    prompt = [1, 2]
    for tokens, then in steps:
        session.snapshot(0)
        new, stats = run(session, prompt, max_new_tokens=tokens, drafter=draft, block_length=3)
        assert stats.accepted == stats.proposed, "the draft is the target itself: all it says is right, if it followed"
        if then == "undo":
            session.restore(0)
        elif then == "anew":
            session.reset()
        prompt = [3, 5] if then == "elsewhere" else [new[-1]]


def test_a_full_context_ends_the_generation() -> None:
    session = table_session(Table(3, ends=False), max_seq_len=8)
    tokens, _ = run(session, [1, 2], drafter=FixedProposals([[0, 1, 2]]), block_length=4)
    assert session.length == 8
    assert len(tokens) == 7, "the last token is known without room for it"


@pytest.mark.slow
@given(seed=st.integers(0, 50), taken=st.integers(1, 12), block=blocks)
def test_wherever_the_consumer_stops_the_state_ends_just_before_the_last_token_it_saw(
    seed: int, taken: int, block: int | None
) -> None:
    table = Table(seed, ends=False)
    session = table_session(table)
    stream = session.generate([1, 2], drafter=DraftModel(table_session(table), session), block_length=block)
    seen = [next(stream) for _ in range(taken)]
    stream.close()  # type: ignore[attr-defined]
    assert session.tokens == [1, 2, *seen[:-1]]
    rest, _ = run(session, [seen[-1]], max_new_tokens=5)
    assert [*seen, *rest] == run(table_session(table), [1, 2], max_new_tokens=taken + 5)[0]


@pytest.mark.slow
@given(seed=st.integers(0, 50), last=st.integers(1, 12), block=blocks)
def test_until_ends_inside_an_accepted_block(seed: int, last: int, block: int | None) -> None:
    table, seen = Table(seed, ends=False), count(1)
    session = table_session(table)
    draft = DraftModel(table_session(table), session)
    tokens, _ = run(session, [1, 2], drafter=draft, block_length=block, until=lambda token: next(seen) == last)
    assert len(tokens) == last
    assert session.tokens == [1, 2, *tokens[:-1]]


def test_an_interrupt_in_a_verify_leaves_the_session_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    session = table_session(Table(1, ends=False))
    stream = session.generate([1, 2], drafter=FixedProposals([[0, 1, 2]]), block_length=4)
    first = next(stream)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "verify", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert session.tokens == [1, 2]
    assert run(session, [first], max_new_tokens=4)[0] == run(table_session(Table(1, ends=False)), [1, 2, first])[0][:4]


class Interrupted:
    """Methods whose next call is interrupted, after it happened or before."""

    def __init__(self, session: Session, after: bool) -> None:
        self.inner, self.after = session.model.program, after

    def call(self, name: str, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.after:
            self.inner.call(name, *inputs)
        raise KeyboardInterrupt

    def state(self) -> object:
        return self.inner.state()

    def bounded(self) -> object:
        return self.inner.bounded()

    def operations(self) -> int:
        return self.inner.operations()


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("operation", ["prefill", "decode", "commit", "restore", "reset"])
def test_an_interrupted_call_either_happened_or_not(operation: str, after: bool) -> None:
    session = table_session(Table(1))
    session.prefill([1, 2])
    session.snapshot(0)
    session.prefill([3, 4, 5])
    session.verify([0, 1])
    program = session.model.program
    session.model.program = Interrupted(session, after)  # type: ignore[assignment]
    calls = {"prefill": lambda: session.prefill([1] * 5), "decode": lambda: session.decode(2),
             "commit": lambda: session.commit(1), "restore": lambda: session.restore(0), "reset": session.reset}  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        calls[operation]()
    session.model.program = program
    assert session.tokens == program.text  # type: ignore[attr-defined]
    session.decode(1)
    assert session.tokens == program.text  # type: ignore[attr-defined]


@pytest.fixture
def counted_seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sampling without a seed draws one after the other, so that a test of chance always has the same."""
    seeds = count()
    monkeypatch.setattr("hybridge.runtime.core.drafters.secrets.randbits", lambda bits: next(seeds))
    gc.disable()
    yield
    gc.enable()


def p_value(session: Session, table: Table, drafter: Drafter | None, sampling: Sampling, samples: int) -> float:
    """Chi-square of the next three tokens of ``samples`` generations against the table's own probabilities."""
    counts = torch.zeros(VOCABULARY, VOCABULARY, VOCABULARY, dtype=torch.float64)
    for _ in range(samples):
        session.restore(0)
        one, two, three = session.generate(
            [2], max_new_tokens=3, sampling=sampling, drafter=drafter, block_length=drafter and 3
        )
        counts[one, two, three] += 1
    p = (table.rows.double() / sampling.temperature).softmax(-1)
    expected = (p[1, 2][:, None, None] * p[2][:, :, None] * p) * samples
    likely = expected > 5
    statistic = ((counts - expected) ** 2 / expected)[likely].sum()
    return float(torch.special.gammaincc((likely.sum().double() - 1) / 2, statistic / 2))


def started(table: Table) -> Session:
    session = table_session(table)
    session.prefill([1])
    session.snapshot(0)
    return session


TEMPERATE = Sampling(temperature=0.8)
SAMPLES = 12_000


@pytest.mark.slow
@pytest.mark.usefixtures("counted_seeds")
@pytest.mark.parametrize(
    "kind", [*(pytest.param(each, marks=pytest.mark.thorough) for each in ("plain", "certain", "lookup")), "draft"]
)
def test_sampled_text_is_distributed_as_the_target_says(kind: str) -> None:
    table = Table(5, ends=False)
    session = started(table)
    draft = DraftModel(table_session(Table(5, 0.5, ends=False)), session)
    drafters: dict[str, Drafter | None] = {
        "plain": None, "certain": FixedProposals([[0, 3], [1, 1], [5, 2]]), "lookup": PromptLookup((2, 1)), "draft": draft
    }  # fmt: skip
    assert p_value(session, table, drafters[kind], TEMPERATE, SAMPLES) > 0.01


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("counted_seeds")
@pytest.mark.parametrize("rule", ["accepts too much", "redraws from all"])
def test_the_distribution_check_notices_a_broken_acceptance_rule(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    from hybridge.runtime.generation.noise import Stream

    from hybridge.runtime.core.drafters import Sampler

    def broken(self: Sampler, logits: torch.Tensor, guess: int, q: torch.Tensor, text: list[int]) -> int:
        p = self.distribution(logits, text)
        chance = float(p[guess]) / float(q[guess]) * (1.3 if rule == "accepts too much" else 1.0)
        return (
            guess
            if self.noise(len(text), Stream.ACCEPT) < chance
            else self._pick((p - q).clamp(min=0) if chance > 1 else p, 0, Stream.DRAW)
        )

    monkeypatch.setattr(Sampler, "_judge", broken)
    table = Table(5, ends=False)
    session = started(table)
    draft = DraftModel(table_session(Table(5, 0.5, ends=False)), session)
    assert p_value(session, table, draft, TEMPERATE, SAMPLES) < 1e-4


@pytest.mark.slow
@settings(max_examples=20)
@given(seed=st.integers(0, 1000), noise=st.sampled_from([0.0, 1.0]), block=blocks)
def test_the_same_seed_gives_the_same_text_with_any_drafter(seed: int, noise: float, block: int | None) -> None:
    table = Table(2, ends=False)
    options = {"sampling": Sampling(temperature=1.0, top_k=5, seed=seed)}
    texts = []
    for kind in ("none", "guesses", "draft"):
        session = table_session(table)
        draft = DraftModel(table_session(Table(2, noise, ends=False)), session)
        drafter = {"none": None, "guesses": FixedProposals([[1, 2], [3]]), "draft": draft}[kind]
        texts.append(run(session, [1], drafter=drafter, block_length=drafter and block, **options)[0])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([], {}, TokenError, "empty"),
        ([1], {"max_new_tokens": 0}, UsageError, "at least 1"),
        ([1], {"temperature": -0.1}, UsageError, "0 (greedy) or lie between"),
        ([1], {"temperature": float("nan")}, UsageError, "0 (greedy) or lie between"),
        ([1] * 61, {}, CapacityError, "do not fit"),
        ([1], {"drafter": PromptLookup(), "block_length": 5}, UsageError, "between 2 and"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(
    prompt: list[int], options: dict[str, object], error: type, says: str
) -> None:
    session = table_session()
    with pytest.raises(error, match=says.replace("(", r"\(").replace(")", r"\)")):
        run(session, prompt, **options)
    assert session.tokens == []


def test_a_verify_of_one_token_leaves_nothing_to_guess() -> None:
    with pytest.raises(UsageError, match="--verify-len 2"):
        run(table_session(verify_lens=(1,)), [1], drafter=PromptLookup())
