"""Measure what speculation changes: the speed and the tokens of several ways to generate, and the distribution of samples.

``contest`` generates the same texts in several ways, interleaved, and compares them token by token. ``sampling_p_value`` is a
chi-square test of the engine over real models' logits: is sampled text distributed as the target says?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import takewhile
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hybridge.errors import UsageError
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.artifact.options import NEVER, ExportOptions
from hybridge.runtime.binding.drafters import Drafter, DraftModel
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats

PLAIN = "plain"
TIE = 1e-5
"""Two best logits closer than this share of the largest are a tie, which rounding may decide either way."""

Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]
Ways = Mapping[str, Drafter | None]
Notify = Callable[[], None]


@dataclass(kw_only=True)
class Outcome:
    """One way of generating, over all prompts. speeds: tokens/s of each; differing and ties: tokens other than plain's.

    beside: tokens/s of plain decoding by an artifact of its own, which may take longer: it also answers with hidden states.
    """

    total: GenerationStats = field(default_factory=GenerationStats)
    speeds: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    differing: int = 0
    ties: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Return new tokens per second, all but the first of each prompt, which the prefill pays for."""
        return self.total.new_tokens / self.total.new_seconds if self.total.new_seconds else 0.0

    def times(self, plain: Outcome) -> float:
        """Return how many times faster than ``plain`` it was: the median over the prompts, which ran in all ways in a row.

        A way with an artifact of its own is compared with plain decoding by that one.
        """
        return median(own / other for own, other in zip(self.speeds, self.beside or plain.speeds, strict=True) if other)

    def add(self, stats: GenerationStats) -> None:
        self.speeds.append(stats.tokens_per_second)
        for each in fields(stats):
            setattr(self.total, each.name, getattr(self.total, each.name) + getattr(stats, each.name))
        self.total.new_tokens -= 1


def contest(
    session: Session,
    ways: Ways,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    sampling: Sampling,
    block_length: int | None = None,
    sessions: Mapping[str, Session] | None = None,
    notify: Notify = lambda: None,
) -> dict[str, Outcome]:
    """Continue each prompt in each way, one after the other; ``ways`` names plain decoding ``PLAIN`` and has it first.

    sessions: of the ways that have one of their own, over an artifact of the same model with another drafter. Tokens are
    compared where the sampling is greedy. notify is called after each generation.
    """
    outcomes = {name: Outcome() for name in ways}
    for prompt in prompts:
        plain: list[int] = []
        for name, drafter in ways.items():
            own = (sessions or {}).get(name, session)
            tokens, stats = _generate(own, prompt, drafter, new_tokens, sampling, block_length)
            outcomes[name].add(stats)
            if own is not session:
                outcomes[name].beside.append(_generate(own, prompt, None, new_tokens, sampling, None)[1].tokens_per_second)
            plain = plain or tokens
            if sampling.temperature == 0:
                _compare(session, prompt, plain, tokens, outcomes[name])
            notify()
    return outcomes


def _generate(
    session: Session, prompt: Sequence[int], drafter: Drafter | None, new_tokens: int, sampling: Sampling, block: int | None
) -> tuple[list[int], GenerationStats]:
    stats = GenerationStats()
    session.reset()
    options = {"drafter": drafter, "block_length": block if drafter is not None else None}
    return list(session.generate(prompt, max_new_tokens=new_tokens, sampling=sampling, stats=stats, **options)), stats  # type: ignore[arg-type]


def _compare(session: Session, prompt: Sequence[int], plain: list[int], tokens: list[int], outcome: Outcome) -> None:
    """Count what differs; after a tie two texts are two texts, so the comparison of this prompt ends there."""
    first = next((i for i, pair in enumerate(zip(plain, tokens, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        outcome.differing += abs(len(plain) - len(tokens))
        return
    session.reset()
    logits = session.prefill([*prompt, *plain[:first]])
    second, best = np.sort(logits)[-2:]
    if best - second <= TIE * float(np.abs(logits).max()):
        outcome.ties += 1
    else:
        outcome.differing += len(plain) - first


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
    session = Session(_text_model(logits, target.vocab_size))
    drafter = DraftModel(_text_model(remembered(draft), target.vocab_size), session) if draft is not None else None
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
    known: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def logits(text: tuple[int, ...]) -> NDArray[np.float32]:
        if text not in known:
            session.reset()
            known[text] = session.prefill(text)
        return known[text]

    return logits


def exact(logits: Logits, text: tuple[int, ...], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Return the probability of each way to continue ``text`` for ``DEPTH`` tokens."""
    ways: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(DEPTH):
        longer: dict[tuple[int, ...], float] = {}
        for way, chance in ways.items():
            p = distribution(logits((*text, *way)), (*text, *way), sampling, len(way))
            longer |= {(*way, token): chance * float(p[token]) for token in np.flatnonzero(p).tolist()}
        ways = longer
    return ways


def distribution(logits: NDArray[np.float32], text: Sequence[int], sampling: Sampling, written: int = 0) -> NDArray[np.float64]:
    """Return float64 [V]: what the token after ``text`` should be drawn from, as the definitions say it.

    Keskar et al., arXiv:1909.05858 (penalty, as transformers does it); Nguyen et al., arXiv:2407.01082 (min-p); Tang et al.,
    arXiv:2411.07641 (top-n-sigma). written: how many tokens of the text the generation wrote.
    """
    scores = penalized(logits, text, sampling, written).astype(np.float64)
    if sampling.top_n_sigma:
        scores[scores < scores.max() - sampling.top_n_sigma * scores.std()] = -np.inf
    scores /= sampling.temperature
    if 0 < sampling.top_k < len(scores):
        scores[scores < np.sort(scores)[-sampling.top_k]] = -np.inf
    p: NDArray[np.float64] = np.exp(scores - scores.max())
    p /= p.sum()
    if sampling.top_p < 1:
        order = np.argsort(-p, kind="stable")
        p[order[np.cumsum(p[order]) - p[order] >= sampling.top_p]] = 0
    p[p < sampling.min_p * p.max()] = 0
    p /= p.sum()
    return p


def penalized(logits: NDArray[np.float32], text: Sequence[int], sampling: Sampling, written: int) -> NDArray[np.float32]:
    """Return float32 [V]: logits with biases and penalties. Nothing is skipped or remembered, unlike in the core."""
    scores, last = logits.copy(), len(text) if sampling.repeat_last_n < 0 else sampling.repeat_last_n
    seen = list(text[max(0, len(text) - last) :])
    for token, bias in sampling.logit_bias.items():
        scores[token] += np.float32(bias)
    tokens, penalty = sorted(set(seen)), np.float32(sampling.repetition_penalty)
    scores[tokens] = np.where(scores[tokens] < 0, scores[tokens] * penalty, scores[tokens] / penalty)
    for token, count in Counter(seen[len(seen) - min(written, len(seen)) :]).items():
        scores[token] -= np.float32(sampling.presence_penalty + count * sampling.frequency_penalty)
    longest: Counter[int] = Counter()
    for end in range(1, len(seen)) if sampling.dry_multiplier else ():
        pairs = zip(reversed(seen[:end]), reversed(seen), strict=False)
        same = list(takewhile(lambda pair: pair[0] == pair[1] and pair[0] not in sampling.dry_breakers, pairs))
        if seen[end] not in sampling.dry_breakers:
            longest[seen[end]] = max(longest[seen[end]], len(same))
    for token, count in longest.items():
        if count >= max(1, sampling.dry_allowed_length):
            further = count - sampling.dry_allowed_length
            scores[token] -= np.float32(sampling.dry_multiplier * sampling.dry_base**further)
    return scores


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
    return chi_square_tail(statistic, len(cells) - 1)


def chi_square_tail(statistic: float, degrees: int) -> float:
    """Return the probability that chi-square of ``degrees`` degrees of freedom, at least 1, is above ``statistic``.

    It is the regularized upper incomplete gamma function Q(degrees / 2, statistic / 2), by its recurrence
    Q(a + 1, x) = Q(a, x) + x^a e^-x / Γ(a + 1).
    """
    x = statistic / 2
    if x <= 0:
        return 1.0
    a, tail = (0.5, math.erfc(math.sqrt(x))) if degrees % 2 else (1.0, math.exp(-x))
    while a < degrees / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return tail


def _text_model(logits: Logits, vocab_size: int) -> Model:
    options = ExportOptions(max_seq_len=4096, verify_len=DEPTH)
    return Model.over(TextProgram(logits), ProgramInfo(vocab_size=vocab_size, options=options))


@contextmanager
def delegate_and_cpu(artifact: Artifact) -> Iterator[tuple[Session, Session]]:
    """Yield a session whose prompts an artifact's accelerator reads, however short, and one whose prompts it never reads.

    Raises UsageError if the artifact has no accelerator for prompts, or if it is not in use at the beginning or at the end.
    """
    if "delegate_prefill" not in artifact.manifest.options.delegated:
        raise UsageError(f"{artifact.folder} has no accelerator that reads prompts; export it with --delegate.")
    with Model.open(artifact) as model:
        model.delegate_from(NEVER)
        with Session(model) as by_cpu:
            model.delegate_from(1)
            with Session(model) as delegated:
                _check_in_use(delegated)
                yield delegated, by_cpu
                _check_in_use(delegated)


def _check_in_use(session: Session) -> None:
    if (read := session.prompts_read) is not None and read.reason:
        raise UsageError(f"{read.delegate} cannot be measured: {read.reason}")
