"""What tokens are drawn from, against transformers' own processors; and what a seed decides."""

import json
import math
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from native_programs import native_program
from numpy.typing import NDArray
from store import demo_folder
from table import Table, table_model, table_session
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hybridge.errors import ArtifactError, TokenError, UsageError
from hybridge.runtime import (
    Context,
    Drafter,
    DraftModel,
    GenerationStats,
    Model,
    OwnDrafter,
    Proposal,
    Sampling,
    Session,
    open_artifact,
)
from hybridge.runtime.binding.generation import read_sampling
from hybridge.runtime.binding.sampling import RANGES
from hybridge.runtime.binding.statistics import Trace
from hybridge.runtime.measure import DEPTH, distribution, exact, p_value, remembered

VOCABULARY = 11


def in_transformers(logits: Tensor, text: list[int], sampling: Sampling) -> Tensor:
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return processors(torch.tensor([text]), logits.double()[None])[0].softmax(-1)  # type: ignore[no-any-return]


@pytest.mark.slow
@given(
    seed=st.integers(0, 999),
    text=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 4, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 0.01]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    penalty=st.sampled_from([1.0, 1.3, 0.5]),
)
def test_the_distribution_is_that_of_transformers(
    seed: int, text: list[int], temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    logits = 3 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    wanted = in_transformers(logits, text, sampling)
    np.testing.assert_allclose(distribution(logits.numpy(), text, sampling), wanted, rtol=1e-6, atol=1e-9)
    session = session_of(logits)
    drawn = Counter(drawn_tokens(session, text, sampling, 60))
    assert all(wanted[token] > 0 for (token,) in drawn)
    likely = int(wanted.argmax())
    expected = 60 * float(wanted[likely])
    assert abs(drawn[(likely,)] - expected) < 5 * math.sqrt(60 / 4)


def session_of(logits: Tensor) -> Session:
    """A session over a model that always says the same."""
    return table_session(lambda text: logits, max_seq_len=200, vocab_size=len(logits))


def drawn_tokens(session: Session, text: Sequence[int], sampling: Sampling, count: int) -> list[tuple[int, ...]]:
    """One token after a text, with that many seeds."""
    found = []
    for seed in range(count):
        session.reset()
        found.append(tuple(session.generate(text, max_new_tokens=1, eos_ids=(), sampling=replace(sampling, seed=seed))))
    return found


def test_greedy_takes_the_penalty_into_account() -> None:
    """And in a verified block each draft token counts for those after it."""
    logits, sampling = torch.tensor([2.0, 1.9, -1.0]), Sampling(repetition_penalty=1.5)
    session = session_of(logits)
    assert list(session.generate([1], max_new_tokens=1, sampling=sampling)) == [0]
    session.reset()
    assert list(session.generate([0], max_new_tokens=4, sampling=sampling)) == [1, 0, 0, 0]
    for proposed in ([0, 0, 0], [0, 1, 0], [1, 1, 1]):
        session.reset()
        drafted = session.generate([0], max_new_tokens=4, sampling=sampling, drafter=Fixed(proposed), block_length=4)
        assert list(drafted) == [1, 0, 0, 0]


class Fixed:
    """Proposes the same tokens everywhere."""

    needs_hidden = is_cheap = False

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(self.tokens[:limit])


def test_noise_is_the_positions_own() -> None:
    """It does not matter how a text came to be as long as it is."""
    session, sampling = session_of(torch.zeros(VOCABULARY)), Sampling(temperature=1.0, seed=3)
    whole = list(session.generate([0], max_new_tokens=40, sampling=sampling, eos_ids=()))
    session.reset()
    session.prefill([0, *whole[:20]])
    rest = list(session.generate(whole[20:21], max_new_tokens=19, sampling=sampling, eos_ids=()))
    assert rest == whole[21:]
    session.reset()
    other = session.generate([0], max_new_tokens=40, sampling=replace(sampling, seed=4), eos_ids=())
    assert list(other) != whole


InCpp = Callable[[NDArray[np.float32], Sequence[int], Sampling], list[str]]


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> InCpp:
    """Return a function that gives the lines of tests/native/distribution.cpp."""
    program, file = native_program("distribution"), tmp_path_factory.mktemp("distribution") / "logits"

    def lines(logits: NDArray[np.float32], text: Sequence[int], sampling: Sampling) -> list[str]:
        file.write_bytes(logits.tobytes())
        options = (
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
            sampling.presence_penalty, sampling.frequency_penalty, sampling.top_n_sigma, sampling.dry_multiplier,
        )  # fmt: skip
        command = [program, file, *map(str, options), *map(str, text)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    return lines


SAMPLING = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 7, 500]),
    top_p=st.sampled_from([1.0, 0.99, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, -0.7]),
    top_n_sigma=st.sampled_from([0.0, 0.5, 3.0]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
)


@pytest.mark.slow
@given(
    size=st.sampled_from([1, 3, 63, 64, 65, 1000, 4999]),
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    sampling=SAMPLING,
)
def test_the_distribution_over_many_tokens_is_that_of_the_definitions(
    in_cpp: InCpp, size: int, seed: int, spread: float, sampling: Sampling
) -> None:
    """It looks at most of them in blocks, and weighs light ones only where they could matter. Half of the logits come twice."""
    generator = np.random.default_rng(seed)
    logits = (spread * generator.standard_normal(size)).astype(np.float32)
    logits[generator.permutation(size)[: size // 2]] = logits[generator.permutation(size)[: size // 2]]
    text = generator.integers(0, min(size, 3), 8).tolist()
    first, *lines = in_cpp(logits, text, sampling)
    assert first == f"{logits.argmax()} 1"
    found = np.zeros(size)
    for token, weight in map(str.split, lines):
        found[int(token)] = float(weight)
    np.testing.assert_allclose(found, distribution(logits, text, sampling, len(text)), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 5, 64, 67, 200])
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_found_wherever_it_is(in_cpp: InCpp, size: int, value: float) -> None:
    for sign in (1, -1):
        assert in_cpp(np.full(size, 3.4e38 * sign, np.float32), [], Sampling(temperature=1.0))[0] == "0 1"
    for at in range(0, size, 1 if size < 10 else 13):
        logits = np.full(size, 3.4e38 * (-1) ** at, np.float32)
        logits[at] = np.copysign(np.float32(value), value)
        assert in_cpp(logits, [], Sampling(temperature=1.0))[0].endswith(" 0")


NO_DISTRIBUTION: list[dict[str, Any]] = [
    *({"temperature": value} for value in (math.inf, math.nan, -1.0, 1e-320, 1e-7, 1e7, "1", None)),
    *({"repetition_penalty": value} for value in (math.inf, math.nan, 0.0, -1.0, 1e-320, 1e7, "1", None)),
    *({"top_p": value} for value in (math.nan, math.inf, 0.0, 1.5, "1")),
    *({"min_p": value} for value in (math.nan, math.inf, -0.1, 1.5, "1")),
    *({"top_k": value} for value in (-1, 1.5, "1", None)),
    *({name: value} for name in ("presence_penalty", "frequency_penalty") for value in (-2.1, 2.5, math.nan, "1", None)),
    *({"top_n_sigma": value} for value in (-1.0, math.inf, math.nan)),
    *({"dry_multiplier": value} for value in (-1.0, math.inf, math.nan)),
    *({"dry_base": value} for value in (0.9, math.inf)),
    *({"repeat_last_n": value} for value in (-2, 1.5)),
    *({"logit_bias": {1: value}} for value in (-101.0, math.inf, math.nan, "1")),
    *({"seed": value} for value in (1.5, "1")),
]


@pytest.mark.parametrize("values", NO_DISTRIBUTION, ids=str)
def test_values_that_make_no_distribution_are_refused(values: dict[str, Any]) -> None:
    """An infinite temperature, and one that makes every logit infinite, once were accepted."""
    with pytest.raises(UsageError, match=f"{next(iter(values))}.* is .*, but must"):
        Sampling(**values)


IN_C = [each for each in NO_DISTRIBUTION if each.keys() <= RANGES.keys() and type(*each.values()) is float]
IN_C = [each for each in IN_C if any(each.values())]


@pytest.mark.parametrize("values", [*IN_C, {"repeat_last_n": -2}, {"logit_bias": {1: math.nan}}], ids=str)
def test_the_core_refuses_them_too(values: dict[str, Any]) -> None:
    """It takes numbers from others than this class; a 0 there leaves the distribution as it is."""
    unchecked = Sampling(temperature=1.0)
    for name, value in values.items():
        object.__setattr__(unchecked, name, value)
    session = session_of(torch.zeros(VOCABULARY))
    with pytest.raises(UsageError, match=f"{next(iter(values))}.* is .*, but must"):
        session.generate([1], max_new_tokens=3, sampling=unchecked)
    assert session.length == 0


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**70])
def test_a_bias_of_no_token_is_refused(token: int) -> None:
    session = session_of(torch.zeros(VOCABULARY))
    with pytest.raises(TokenError, match=f"the vocabulary has {VOCABULARY} tokens"):
        session.generate([1], max_new_tokens=3, sampling=Sampling(logit_bias={token: 1.0}))
    assert session.length == 0


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
@pytest.mark.parametrize("penalty", [1e-6, 1e6])
def test_at_the_ends_of_what_is_allowed_a_token_is_drawn(temperature: float, penalty: float) -> None:
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty)
    for logits in (torch.tensor([1.0, -2.0, 3e38, -3e38]), torch.zeros(4), torch.tensor([5.0, 4.0, 3.0, 2.0])):
        session = session_of(logits)
        for noise in range(5):
            session.reset()
            tokens = list(session.generate([0, 1, 2, 3], max_new_tokens=5, sampling=sampling, noise=noise, eos_ids=()))
            assert len(tokens) == 5


PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.fixture(scope="module")
def session(artifact: Path) -> Session:
    return Session.load(artifact)


@pytest.mark.slow
def test_the_places_of_a_text_have_draws_of_their_own(session: Session) -> None:
    """At such a heat every token is as likely as any other, at each place of each text."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(80):
        session.reset()
        tokens = list(session.generate(PROMPT, max_new_tokens=40, sampling=Sampling(temperature=1e6, seed=seed)))
        counts.update((token,) for token in tokens)
    draws, size = sum(counts.values()), session.vocab_size
    assert draws > 1500
    assert p_value(counts, {(token,): 1 / size for token in range(size)}, draws) > 1e-3


TEXTS: dict[int, list[int]] = {
    0: [0, 3, 2, 1, 1, 0, 0, 4, 2, 2, 1, 1, 3, 0, 0, 5],
    7: [4, 3, 3, 1, 5, 0, 3, 3, 2, 2, 1, 1, 3, 1, 5, 4],
    2**65 + 3: [0, 4, 0, 2, 1, 2, 3, 5, 0, 0, 5, 5, 2, 5, 2, 2],
}


@pytest.mark.parametrize("seed", TEXTS)
def test_a_seeds_text_is_for_good(seed: int) -> None:
    sampling = Sampling(temperature=1.1, top_k=5, repetition_penalty=1.2, seed=seed)
    text = list(table_session(Table(3, ends=False)).generate([1, 2], max_new_tokens=16, sampling=sampling))
    assert text == TEXTS[seed]


def test_another_seed_is_another_text_and_without_one_it_is_drawn() -> None:
    session = session_of(torch.zeros(VOCABULARY))
    for seeds in (range(5), [None] * 5):
        texts = set()
        for seed in seeds:
            session.reset()
            texts.add(
                tuple(session.generate([1], max_new_tokens=30, sampling=Sampling(temperature=2.0, seed=seed), eos_ids=()))
            )
        assert len(texts) == 5


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        ({"temperature": 0.3, "min_p": 0.15, "repetition_penalty": 1.05, "max_length": 9},
         {"temperature": 0.3, "min_p": 0.15, "repetition_penalty": 1.05}),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, {"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"eos_token_id": [1, 2], "temperature": None}, {}),
        ({"temperature": -1, "top_p": 7, "top_k": -1, "min_p": "1"}, {}),
    ],
)  # fmt: skip
def test_a_models_own_sampling_is_its_generation_config(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert read_sampling(json.dumps(config).encode()) == Sampling(**wanted)


def test_a_generation_config_that_is_none_is_refused() -> None:
    for text in (b"[]", b"{", b""):
        with pytest.raises(ArtifactError):
            read_sampling(text)


# Drafters that draw


UNSURE = [*b"import os\n\ndef read_"]
"""After it model and drafter disagree, so that a wrong rule shows."""
BLOCKS = 1000


@pytest.fixture(scope="module", params=["draft model", "dspark"])
def session_and_drafter(request: pytest.FixtureRequest) -> tuple[Session, Drafter]:
    """Trained ones, of whose tokens many are accepted."""
    folder = demo_folder()
    if request.param == "dspark":
        target = Session.load(folder / "hybridge-demo-dspark")
        return target, OwnDrafter(target)
    target = Session.load(folder / "hybridge-demo")
    return target, DraftModel(Model.open(open_artifact(folder / "hybridge-demo-draft")), target)


@pytest.mark.slow
def test_drawn_draft_tokens_leave_the_models_distribution(session_and_drafter: tuple[Session, Drafter]) -> None:
    """Blocks of four, of whose tokens the first three are counted: rejected ones, accepted ones and those after them."""
    (target, drafter), sampling, stats = session_and_drafter, Sampling(temperature=1.5, top_k=4), GenerationStats()
    expected: dict[tuple[int, ...], float] = {}
    for way, chance in exact(remembered(target), tuple(UNSURE), sampling).items():
        ended = until_end(way, target.manifest.eos_ids)
        expected[ended] = expected.get(ended, 0.0) + chance
    target.reset()
    target.prefill(UNSURE[:-1])
    target.snapshot(0)
    counts: Counter[tuple[int, ...]] = Counter()
    for noise in range(BLOCKS):
        target.restore(0)
        drawn = target.generate(
            UNSURE[-1:], max_new_tokens=DEPTH + 2, drafter=drafter, sampling=sampling, noise=noise, block_length=4, stats=stats
        )
        counts[tuple(drawn)[:DEPTH]] += 1
    assert p_value(counts, expected, BLOCKS) > 1e-3
    assert BLOCKS / 3 < stats.accepted < stats.proposed - BLOCKS / 3


def test_coupled_draws_accept_most_of_what_can_be_accepted() -> None:
    """One draft token: for distributions a total variation distance d apart (1 - d) / (1 + d) at least, 1 - d at most."""
    target, draft = Table(3, ends=False), Table(3, noise=1.0, ends=False)
    session = table_session(target)
    drafter, samples, accepted, least, most = DraftModel(table_model(draft), session), 2000, 0, 0.0, 0.0
    session.prefill([1])
    session.snapshot(0)
    for noise in range(samples):
        session.restore(0)
        stats = Trace()
        first, *_ = session.generate(
            [2], max_new_tokens=3, drafter=drafter, sampling=Sampling(temperature=1.0), noise=noise, block_length=2,
            stats=stats, eos_ids=(),
        )  # fmt: skip
        accepted += next(each.draft.accepted for each in stats.rounds if each.draft is not None)
        p, q = (torch.softmax(table((2, first)).double(), 0) for table in (target, draft))
        distance = float((p - q).abs().sum()) / 2
        least, most = least + (1 - distance) / (1 + distance), most + 1 - distance
    assert least - 0.03 * samples < accepted < most + 0.03 * samples


def until_end(tokens: tuple[int, ...], ends: Collection[int]) -> tuple[int, ...]:
    return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in ends), tokens)
