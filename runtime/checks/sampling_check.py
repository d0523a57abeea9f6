"""Is sampled text distributed as the target says? A chi-square test of the engine over real models' logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.core.drafters import DraftModel, Sampler
from hybridge.runtime.core.programs import Logits, TextDescription, TextProgram
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats

DEPTH = 3
"""Tokens drawn one after the other from each start: the draft tokens and the bonus token are all among them."""

FEWEST = 5.0
"""Cells that fewer draws are expected to fall into are counted together, as the test's approximation needs."""


def sampling_p_value(
    target: Session, draft: Session | None, text: Sequence[int], sampling: Sampling, samples: int
) -> tuple[float, float]:
    """Return the p-value of ``samples`` tokens after ``text`` against exact probabilities, and the share accepted.

    The forward being the same each time, each text's logits are computed once; what is tested is all that comes after them.
    A p-value below 0.01 says that speculation changes the distribution.
    """
    logits = remembered(target)
    session = _text_session(logits, target.vocab_size)
    drafter = DraftModel(_text_session(remembered(draft), target.vocab_size), session) if draft is not None else None
    session.prefill(list(text[:-1]))
    session.snapshot(0)
    counts: Counter[tuple[int, ...]] = Counter()
    block = DEPTH if drafter is not None else None
    draws, stats = samples // DEPTH, GenerationStats()
    for _ in range(draws):
        session.restore(0)
        stats.new_tokens = 0
        new = session.generate(
            [text[-1]], max_new_tokens=DEPTH, drafter=drafter, sampling=sampling, block_length=block, stats=stats
        )
        counts[tuple(new)] += 1
    return p_value(counts, exact(logits, tuple(text), sampling), draws), stats.acceptance_rate


def remembered(session: Session) -> Logits:
    """Return a function to a session's logits after a text, computed once for each."""
    known: dict[tuple[int, ...], Tensor] = {}

    def logits(text: tuple[int, ...]) -> Tensor:
        if text not in known:
            session.reset()
            known[text] = session.prefill(text)
        return known[text]

    return logits


def exact(logits: Logits, text: tuple[int, ...], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Return the probability of each way to go on from ``text`` for ``DEPTH`` tokens."""
    ways: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(DEPTH):
        longer: dict[tuple[int, ...], float] = {}
        for way, chance in ways.items():
            p = Sampler(sampling).distribution(logits((*text, *way)), (*text, *way))
            longer |= {(*way, token): chance * float(p[token]) for token in p.nonzero()[:, 0].tolist()}
        ways = longer
    return ways


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], draws: int) -> float:
    """Return the p-value of Pearson's chi-square; 0 if something came that cannot come."""
    if counts.keys() - expected.keys():
        return 0.0
    likely = [way for way, p in expected.items() if p * draws >= FEWEST]
    cells = [(counts[way], expected[way] * draws) for way in likely]
    rest = draws - sum(p for _, p in cells)
    if rest >= FEWEST:
        cells.append((draws - sum(count for count, _ in cells), rest))
    statistic = sum((count - p) ** 2 / p for count, p in cells)
    halves = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _text_session(logits: Logits, vocab_size: int) -> Session:
    options = ExportOptions(max_seq_len=4096, verify_len=DEPTH)
    return Session.over(TextProgram(logits), TextDescription(vocab_size=vocab_size, options=options))
