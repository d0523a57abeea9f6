"""What tokens are drawn from, against transformers' own processors."""

import math
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hybridge.cache.errors import NumericalError, UsageError
from hybridge.runtime import Proposal, Sampler, Sampling
from hybridge.runtime.core.library import SOURCES
from hybridge.runtime.kernels import compiling

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
    got = Sampler(sampling).distribution(logits, text)
    torch.testing.assert_close(got, in_transformers(logits, text, sampling), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_draws_follow_the_distribution_and_never_what_was_ruled_out() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    sampler = Sampler(Sampling(temperature=0.7, top_k=3, seed=1))
    p, draws = sampler.distribution(logits, [0]), 20_000
    counts = Counter(sampler.draw(logits, [0] * (i + 1)) for i in range(draws))
    assert set(counts) == {0, 3, 4}
    assert sum((counts[i] - draws * float(p[i])) ** 2 / (draws * float(p[i])) for i in (0, 3, 4)) < 13.8  # p = 0.001


def test_greedy_takes_the_penalty_into_account() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0])
    sampler = Sampler(Sampling(repetition_penalty=1.5))
    assert sampler.draw(logits, [1]) == 0
    assert sampler.draw(logits, [0]) == 1
    rows = logits.expand(3, 3)
    assert sampler.accept(rows, Proposal([1, 0]), [0]) == [1, 0, 0], "each draft token counts for those behind it"


def test_noise_is_the_positions_own() -> None:
    logits = torch.zeros(VOCABULARY)
    one, same, other = (Sampler(Sampling(temperature=1.0, seed=seed)) for seed in (3, 3, 4))
    texts = [[0] * (i + 1) for i in range(40)]
    assert [one.draw(logits, text) for text in texts] == [same.draw(logits, text) for text in reversed(texts)][::-1]
    assert [one.draw(logits, text) for text in texts] != [other.draw(logits, text) for text in texts]


NO_NUMBERS = [float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, seed=1), Sampling(temperature=2.0, top_p=0.9, seed=1)]
)
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_no_token_is_drawn_from_what_is_no_number(sampling: Sampling, penalty: float, value: float) -> None:
    sampler, text = Sampler(replace(sampling, repetition_penalty=penalty)), [0, 3]
    spoilt = [torch.full((VOCABULARY,), value)]
    if value > 0 or math.isnan(value):  # minus infinity is a token that a grammar rules out
        spoilt += [torch.zeros(VOCABULARY).index_fill(0, torch.tensor([at]), value) for at in (0, 3, VOCABULARY - 1)]
    for logits in spoilt:
        with pytest.raises(NumericalError, match="NaN, infinite or of no token"):
            sampler.draw(logits, text)
        with pytest.raises(NumericalError):
            sampler.accept(torch.stack([torch.zeros(VOCABULARY), logits]), certain(sampler, text), text)


def certain(sampler: Sampler, text: list[int]) -> Proposal:
    """A draft token that is accepted behind ``text`` where all tokens are alike."""
    return Proposal([sampler.draw(torch.zeros(VOCABULARY), text)])


def test_cpp_draws_no_token_from_what_is_no_number(tmp_path: Path) -> None:
    program = tmp_path / "sampling"
    flags = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wconversion", f"-I{SOURCES}")
    source = Path(__file__).parent / "native/sampling.cpp"
    subprocess.run([compiling.compiler() or "g++", *flags, source, "-o", program], check=True)
    for value in NO_NUMBERS:
        lines = subprocess.run([program, str(value)], capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(lines) == 8
        for line in lines:
            *_, masked, good, first, later, every = line.split()
            assert int(good) >= 0
            assert every == "-1"
            # what a mask left out is minus infinity
            assert (first == later == "-1") == (not (masked == "1" and value == -math.inf)), line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ],
)
def test_what_makes_no_distribution_is_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Sampling(**options)  # type: ignore[arg-type]


NO_DISTRIBUTION: list[dict[str, Any]] = [
    *({"temperature": value} for value in (math.inf, math.nan, -1.0, 1e-320, 1e-7, 1e7, "1", None)),
    *({"repetition_penalty": value} for value in (math.inf, math.nan, 0.0, -1.0, 1e-320, 1e7, "1", None)),
    *({"top_p": value} for value in (math.nan, math.inf, 0.0, 1.5, "1")),
    *({"min_p": value} for value in (math.nan, math.inf, -0.1, 1.5, "1")),
    *({"top_k": value} for value in (-1, 1.5, "1", None)),
    *({"seed": value} for value in (1.5, "1")),
]


@pytest.mark.parametrize("values", NO_DISTRIBUTION, ids=str)
def test_values_that_make_no_distribution_are_refused(values: dict[str, Any]) -> None:
    """An infinite temperature, and one that makes every logit infinite, once were accepted."""
    with pytest.raises(UsageError, match=f"{next(iter(values))} is .*, but must"):
        Sampling(**values)


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
@pytest.mark.parametrize("penalty", [1e-6, 1e6])
def test_at_the_ends_of_what_is_allowed_it_is_a_distribution(temperature: float, penalty: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature, repetition_penalty=penalty, seed=0))
    for logits in (torch.tensor([1.0, -2.0, 3e38, -3e38]), torch.zeros(4), torch.tensor([5.0, 4.0, 3.0, 2.0])):
        p = sampler.distribution(logits, [0, 1, 2, 3])
        assert float(p.sum()) == pytest.approx(1.0)
        assert 0 <= sampler.draw(logits, [0, 1, 2, 3]) < 4
