"""The drawing of a generation's rounds: a line each, with a bar for each phase as long as it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hybridge.runtime.core.statistics import Phase, Round

ROW, TOP, LEFT, LONGEST = 20, 28, 300, 540
MOST = 400
"""Lines of one drawing."""


@dataclass(frozen=True)
class Bar:
    """A phase; x and width are in pixels."""

    phase: Phase
    x: float
    width: float


@dataclass(frozen=True)
class Line:
    """A round, or decodes in a row; seconds of the round, or of a decode on average."""

    y: int
    label: str
    bars: list[Bar]
    end: float
    seconds: float


@dataclass(frozen=True)
class Timeline:
    """The whole drawing; left_out: lines beyond ``MOST``."""

    lines: list[Line]
    legend: list[Phase]
    height: int
    left_out: int


def timeline(rounds: Sequence[Round]) -> Timeline:
    """Return the drawing of ``rounds``; the longest line is that of the slowest round but for the prompt's."""
    merged = list(_merged(rounds))
    shown = merged[:MOST]
    slowest = max((each.seconds for _, each in shown if each.phases[0][0] != "prefill"), default=0) or 1.0
    lines = [_line(number, label, each, LONGEST / slowest) for number, (label, each) in enumerate(shown)]
    seen = {phase for each in rounds for phase, _ in each.phases}
    order: tuple[Phase, ...] = ("prefill", "draft", "verify", "commit", "decode")
    return Timeline(lines, [phase for phase in order if phase in seen], TOP + ROW * len(lines) + 4, len(merged) - len(shown))


def _merged(rounds: Sequence[Round]) -> Iterator[tuple[str, Round]]:
    """Yield each round with what it did; decodes in a row are one, of their mean seconds."""
    for decoded, group in groupby(rounds, key=lambda each: any(phase == "decode" for phase, _ in each.phases)):
        several = list(group)
        if decoded:
            yield f"{len(several)} decoded", _mean(several)
        else:
            yield from ((_label(each), each) for each in several)


def _label(each: Round) -> str:
    if each.draft is None:
        return "reading the prompt"
    count = len(each.draft.tokens)
    return f"{count} forced" if each.draft.forced else f"{each.draft.accepted} of {count} draft tokens accepted"


def _mean(rounds: Sequence[Round]) -> Round:
    phases: dict[Phase, float] = {}
    for phase, seconds in (pair for each in rounds for pair in each.phases):
        phases[phase] = phases.get(phase, 0.0) + seconds / len(rounds)
    return Round(list(phases.items()))


def _line(number: int, label: str, each: Round, scale: float) -> Line:
    bars, x = [], float(LEFT)
    for phase, seconds in each.phases:
        width = min(max(0.5, seconds * scale), LEFT + LONGEST - x)  # a long prompt ends at the edge
        bars.append(Bar(phase, round(x, 2), round(max(0.0, width), 2)))
        x += max(0.0, width)
    return Line(TOP + ROW * number, label, bars, round(x + 8, 2), each.seconds)
