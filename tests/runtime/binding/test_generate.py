"""Generation over a session made of a table: what it does to any model, without one."""

from collections import Counter
from collections.abc import Sequence
from itertools import count

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from table import END, VOCABULARY, Table, table_model, table_session

from hybridge.errors import CapacityError, TokenError, UsageError
from hybridge.runtime import Context, Drafter, DraftModel, GenerationStats, PromptLookup, Proposal, Sampling, Session
from hybridge.runtime.binding.statistics import Trace
from hybridge.runtime.measure import exact, p_value


class FixedProposals:
    """Proposes from a fixed list, right or wrong."""

    needs_hidden = is_cheap = False

    def __init__(self, guesses: list[list[int]]) -> None:
        self.guesses = guesses

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(self.guesses[len(context.tokens) % len(self.guesses)][:limit] if self.guesses else [])


class Knowing:
    """Proposes the tokens of a text that is known."""

    needs_hidden = is_cheap = False

    def __init__(self, text: Sequence[int]) -> None:
        self.text = text

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(self.text[len(context.tokens) : len(context.tokens) + limit])


class Dictated:
    """A constraint that leaves one token where ``tokens`` has one, and any other but the last where it has None."""

    def __init__(self, tokens: Sequence[int | None]) -> None:
        self.tokens, self.taken = tokens, list[int]()

    def mask(self, logits: NDArray[np.float32]) -> None:
        wanted = self.tokens[len(self.taken)] if len(self.taken) < len(self.tokens) else None
        kept = logits.copy()
        logits[:] = -np.inf
        if wanted is None:
            logits[:END] = kept[:END]
        else:
            logits[wanted] = kept[wanted]

    def take(self, token: int) -> None:
        self.taken.append(token)

    def forced(self) -> list[int]:
        rest = list(self.tokens[len(self.taken) :])
        return [token for token in rest[: rest.index(None) if None in rest else None] if token is not None]

    def fitting(self, tokens: Sequence[int]) -> int:
        rest = self.tokens[len(self.taken) :]
        wrong = (i for i, (got, want) in enumerate(zip(tokens, rest, strict=False)) if want not in (None, got))
        return next(wrong, len(tokens))


def run(session: Session, prompt: list[int], **options: object) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    return list(session.generate(prompt, **({"max_new_tokens": 30, "stats": stats} | options))), stats  # type: ignore[arg-type]


def origins(session: Session, prompt: list[int], **options: object) -> list[str]:
    stats = GenerationStats()
    return [stats.origin for _ in session.generate(prompt, stats=stats, **options)]  # type: ignore[arg-type]


def test_the_last_token_of_a_round_is_the_models_own() -> None:
    table = Table(1, ends=False)
    plain, _ = run(table_session(table), [1, 2], max_new_tokens=9)
    known = Knowing([1, 2, *plain])
    found = origins(table_session(table), [1, 2], max_new_tokens=9, drafter=known, block_length=4)
    assert found == ["own", *["draft", "draft", "draft", "own"] * 2]


def test_forced_tokens_are_verified_at_once_and_counted_apart() -> None:
    dictated = [3, 4, 5, 3, None, None, 1, 1]
    session, stats = table_session(Table(1, ends=False)), Trace()
    tokens = list(session.generate([1, 2], max_new_tokens=8, constraint=Dictated(dictated), stats=stats))
    assert [want in (None, got) for got, want in zip(tokens, dictated, strict=True)] == [True] * 8
    assert (stats.forced, stats.accepted, stats.proposed, stats.rollbacks) == (4, 4, 4, 0)
    drafts = [each.draft for each in stats.rounds if each.draft is not None]
    assert [(each.first, each.tokens, each.accepted, each.forced) for each in drafts] == [
        (1, [4, 5, 3], 3, True),
        (6, [1], 1, True),
    ]
    assert origins(table_session(Table(1)), [1, 2], max_new_tokens=5, constraint=Dictated(dictated)) == [
        "own", "forced", "forced", "forced", "own"
    ]  # fmt: skip


def test_what_a_constraint_refuses_is_not_verified() -> None:
    """Draft tokens are cut off before the first one that may not come."""
    table, dictated = Table(1, ends=False), [None, 3, None, 2, None, None]
    stats = GenerationStats()
    drafter = FixedProposals([[3, 5, 5], [4, 3, 2]])
    wanted, _ = run(table_session(table), [1, 2], max_new_tokens=6, constraint=Dictated(dictated))
    session = table_session(table)
    options = {"drafter": drafter, "block_length": 4, "stats": stats, "constraint": Dictated(dictated)}
    assert list(session.generate([1, 2], max_new_tokens=6, **options)) == wanted
    assert session.tokens == [1, 2, *wanted[:-1]]
    assert (wanted[1], wanted[3]) == (3, 2)


def test_watch_sees_each_token_with_the_models_own_logits() -> None:
    """In order, and each once: those of a block that is not taken whole, too."""
    table, seen = Table(2, ends=False), list[tuple[int, NDArray[np.float32]]]()
    session = table_session(table)
    known = Knowing([1, 2, *run(table_session(table), [1, 2])[0]])
    tokens, _ = run(
        session, [1, 2], drafter=known, block_length=4, watch=lambda logits, token: seen.append((token, logits.copy()))
    )
    assert [token for token, _ in seen] == tokens
    for place, (token, logits) in enumerate(seen):
        text = (1, 2, *tokens[:place])
        assert np.array_equal(logits, table(text).numpy())
        assert logits.argmax() == token


def test_statistics_add_up() -> None:
    session = table_session(Table(2, ends=False))
    known = Knowing([1, 2, *run(session, [1, 2], max_new_tokens=30)[0][:20], 1, 1, 1, 1])
    session.reset()
    tokens, stats = run(session, [1, 2], drafter=known, block_length=4)
    assert len(tokens) == stats.new_tokens == 1 + stats.decodes + stats.verifies + stats.accepted
    assert stats.proposed == sum(accepted + rejected for _, accepted, rejected in stats.spans)
    assert stats.accepted == sum(accepted for _, accepted, _ in stats.spans)
    assert stats.rollbacks == sum(rejected > 0 for *_, rejected in stats.spans) > 0
    spent = stats.draft_seconds + stats.verify_seconds + stats.commit_seconds + stats.decode_seconds
    assert 0 < spent <= stats.new_seconds * 1.01
    assert stats.prompt_tokens == 2
    assert stats.prefill_seconds > 0


def test_one_statistics_may_count_several_generations() -> None:
    session, stats = table_session(Table(2, ends=False)), GenerationStats()
    first = list(session.generate([1, 2], max_new_tokens=5, stats=stats))
    before = stats.to_dict()
    list(session.generate(first[-1:], max_new_tokens=7, stats=stats))
    assert (stats.new_tokens, stats.prompt_tokens, stats.decodes) == (12, 3, 10)
    assert stats.new_seconds > before["new_seconds"] > 0


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
    draft = DraftModel(table_model(Table(seed, noise, ends=False), max_seq_len=reach), session)
    guessed, stats = run(session, [1, 2, 3], drafter=draft, block_length=block)
    assert guessed == plain
    if noise == 0 and block:
        assert stats.acceptance_rate == 1.0


@given(
    seed=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["go on", "undo", "anew", "elsewhere"])), max_size=6),
)
def test_a_draft_model_follows_a_session_wherever_it_goes(seed: int, steps: list[tuple[int, str]]) -> None:
    table = Table(seed, ends=False)
    session = table_session(table, max_seq_len=100)
    draft = DraftModel(table_model(table, max_seq_len=100), session)
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
    stream = session.generate([1, 2], drafter=DraftModel(table_model(table), session), block_length=block)
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
    draft = DraftModel(table_model(table), session)
    tokens, _ = run(session, [1, 2], drafter=draft, block_length=block, until=lambda token: next(seen) == last)
    assert len(tokens) == last
    assert session.tokens == [1, 2, *tokens[:-1]]


def p_of(session: Session, table: Table, drafter: Drafter | None, sampling: Sampling, samples: int) -> float:
    """Chi-square of the next three tokens of ``samples`` generations against the table's own probabilities."""
    session.prefill([1])
    session.snapshot(0)
    counts: Counter[tuple[int, ...]] = Counter()
    for noise in range(samples):
        session.restore(0)
        block = 3 if drafter is not None else None
        counts[tuple(
            session.generate([2], max_new_tokens=3, sampling=sampling, drafter=drafter, block_length=block, noise=noise)
        )] += 1  # fmt: skip
    return p_value(counts, exact(lambda text: table(text).numpy(), (1, 2), sampling), samples)


SAMPLES = 4_000
"""Three times as many with --all."""
KINDS = ("plain", "certain", "lookup", "draft")
SAMPLINGS = {
    "warm": Sampling(temperature=0.8),
    "all of it": Sampling(
        temperature=1.3,
        top_k=5,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.4,
        presence_penalty=0.5,
        frequency_penalty=-0.4,
        repeat_last_n=3,
        top_n_sigma=2.0,
        dry_multiplier=0.4,
        dry_allowed_length=1,
        dry_breakers=(0,),
        logit_bias={2: 1.5},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [pytest.param("warm", marks=pytest.mark.thorough), "all of it"])
@pytest.mark.parametrize("kind", [*(pytest.param(each, marks=pytest.mark.thorough) for each in KINDS[:3]), *KINDS[3:]])
def test_sampled_text_is_distributed_as_the_target_says(pytestconfig: pytest.Config, kind: str, sampling: str) -> None:
    table = Table(5, ends=False)
    session = table_session(table)
    drafters: dict[str, Drafter | None] = {
        "plain": None,
        "certain": FixedProposals([[0, 3], [1, 1], [5, 2]]),
        "lookup": PromptLookup(),
        "draft": DraftModel(table_model(Table(5, 0.5, ends=False)), session),
    }
    samples = 3 * SAMPLES if pytestconfig.getoption("all") else SAMPLES
    assert p_of(session, table, drafters[kind], SAMPLINGS[sampling], samples) > 0.01


@pytest.mark.slow
@given(
    seed=st.integers(0, 1000), noise=st.sampled_from([0.0, 1.0]), block=blocks, temperature=st.sampled_from([0.0, 1.0]),
    penalties=st.sampled_from([
        {}, {"presence_penalty": 1.0, "frequency_penalty": 0.3}, {"dry_multiplier": 0.8, "repeat_last_n": 9},
    ]),
)  # fmt: skip
def test_the_same_seed_gives_the_same_text_with_any_drafter(
    seed: int, noise: float, block: int | None, temperature: float, penalties: dict[str, float]
) -> None:
    """Or none: a draft token counts in the penalties of those after it, and no more once it was rejected."""
    table = Table(2, ends=False)
    options = {"sampling": Sampling(temperature=temperature, top_k=5, seed=seed, **penalties)}
    texts = []
    for kind in ("none", "guesses", "draft"):
        session = table_session(table)
        draft = DraftModel(table_model(Table(2, noise, ends=False)), session)
        drafter = {"none": None, "guesses": FixedProposals([[1, 2], [3]]), "draft": draft}[kind]
        texts.append(run(session, [1], drafter=drafter, block_length=drafter and block, **options)[0])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([], {}, TokenError, "no tokens; give at least one"),
        ([1], {"max_new_tokens": 0}, UsageError, "at least 1"),
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
