"""Figures of two models' logits: against their definitions, by position."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hybridge.export.check.evaluate import Comparison, divergence


@given(st.lists(st.integers(2, 300), min_size=1, max_size=4), st.integers(2, 9), st.integers(0, 1 << 16))
def test_figures_are_those_of_their_definitions(lengths: list[int], vocab: int, seed: int) -> None:
    generator, comparison = torch.Generator().manual_seed(seed), Comparison()
    kl, same, losses = [], [], []
    for length in lengths:
        want, got = torch.randn(2, length, vocab, generator=generator)
        tokens = torch.randint(0, vocab, (length,), generator=generator)
        comparison.add(tokens.tolist(), want, got)
        kl.append(F.kl_div(got.log_softmax(-1), want.log_softmax(-1), reduction="none", log_target=True).sum(-1))
        same.append((want.argmax(-1) == got.argmax(-1)).float())
        losses.append(F.cross_entropy(got[:-1], tokens[1:], reduction="none"))
    report = comparison.report()
    whole, every = report.whole, torch.cat(kl)
    assert (report.texts, whole.positions) == (len(lengths), sum(lengths))
    assert whole.kl == pytest.approx(float(every.mean()), rel=1e-3, abs=1e-6)
    assert whole.kl_largest == pytest.approx(float(every.max()), rel=1e-3, abs=1e-6)
    assert sum(float(each) <= whole.kl_99 + 1e-6 for each in every) >= 0.99 * len(every)
    assert whole.top1_agreement == pytest.approx(float(torch.cat(same).mean()))
    assert whole.perplexity == pytest.approx(math.exp(float(torch.cat(losses).mean())), rel=1e-4)
    assert sum(each.positions for each in report.ranges) == whole.positions
    weighted = sum(each.kl * each.positions for each in report.ranges) / whole.positions
    assert weighted == pytest.approx(whole.kl, rel=1e-6)


def test_ranges_double_and_end_with_the_longest_text() -> None:
    comparison = Comparison()
    for length in (300, 70):
        comparison.add([0] * length, torch.zeros(length, 3), torch.zeros(length, 3))
    assert [(each.first, each.last, each.positions) for each in comparison.report().ranges] == [
        (0, 63, 128),
        (64, 127, 70),
        (128, 255, 128),
        (256, 299, 44),
    ]


def test_equal_models_have_no_divergence() -> None:
    logits = 50 * torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    comparison = Comparison()
    comparison.add([1] * 20, logits, logits)
    whole = comparison.report().whole
    assert (whole.kl, whole.kl_99, whole.top1_agreement) == (0, 0, 1)
    assert whole.perplexity == whole.original_perplexity
    assert divergence(logits, logits + 3).max() < 1e-5


def test_one_token_has_no_perplexity() -> None:
    comparison = Comparison()
    comparison.add([1], torch.zeros(1, 3), torch.ones(1, 3))
    assert comparison.report().whole.perplexity is None
