"""``hybridge bench --html``: speeds of each way of generating, and where their time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridge.export.pages.page import page
from hybridge.runtime.measure.speculation import PLAIN, Outcome

ROW, TOP = 24, 28
LEFT, LONGEST = 200, 280
SHARES, WHOLE = 640, 300
PHASES = ("draft", "verify", "commit", "decode", "rest")


@dataclass(frozen=True)
class Share:
    """A phase's share of the time. x and width are in pixels."""

    phase: str
    x: float
    width: float
    label: str


@dataclass(frozen=True)
class Roofline:
    """What binds plain decoding: the bytes that a token reads and writes, and how many a second the machine reads."""

    token_bytes: int
    bandwidth: float

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of a decode that does nothing but move its bytes."""
        return self.bandwidth / self.token_bytes

    def __str__(self) -> str:
        """Return it in words."""
        moved = f"{self.token_bytes / 1e6:.1f} MB a token at {self.bandwidth / 1e9:.1f} GB/s"
        return f"Plain decoding is bound by memory at {self.tokens_per_second:.0f} tokens/s: {moved}."


@dataclass(frozen=True)
class Line:
    """A way of generating: its speed, and the shares of its time."""

    y: int
    name: str
    width: float
    label: str
    shares: list[Share]


@dataclass(frozen=True)
class Chart:
    """The speeds on one text."""

    title: str
    lines: list[Line]
    height: int
    roof: float | None = None
    """Where the roofline is, if it is within the drawing."""


@dataclass(frozen=True)
class Target:
    """A figure beside its target."""

    what: str
    target: str
    measured: str
    reached: bool


def bench_page(
    title: str, outcomes: Mapping[str, Mapping[str, Outcome]], targets: Sequence[Target], roofline: Roofline | None = None
) -> str:
    """Return the page of a measurement. outcomes: by text and way of generating."""
    charts = [speed_chart(text, ways, roofline) for text, ways in outcomes.items()]
    facts = {"title": title, "charts": charts, "phases": PHASES, "targets": targets, "roofline": roofline}
    return page("bench.html.jinja", facts)


def speed_chart(text: str, ways: Mapping[str, Outcome], roofline: Roofline | None = None) -> Chart:
    """Return the drawing of the speeds on ``text``; the longest bar is the fastest way."""
    fastest = max((each.tokens_per_second for each in ways.values()), default=0.0) or 1.0
    lines = [
        Line(
            y=TOP + ROW * number,
            name=name,
            width=round(LONGEST * each.tokens_per_second / fastest, 2),
            label=f"{each.tokens_per_second:.0f} tokens/s, {each.times(ways[PLAIN]):.2f}×",
            shares=_shares(each),
        )
        for number, (name, each) in enumerate(ways.items())
    ]
    roof = LONGEST * roofline.tokens_per_second / fastest if roofline is not None else LONGEST + 1.0
    return Chart(text, lines, TOP + ROW * len(lines) + 4, round(LEFT + roof, 2) if roof <= LONGEST else None)


def _shares(outcome: Outcome) -> list[Share]:
    total = outcome.total
    known = {phase: getattr(total, f"{phase}_seconds") for phase in PHASES[:-1]}
    whole = max(total.new_seconds, sum(known.values())) or 1.0
    shares, x = [], float(SHARES)
    for phase, seconds in (*known.items(), ("rest", max(0.0, total.new_seconds - sum(known.values())))):
        width = WHOLE * seconds / whole
        shares.append(Share(phase, round(x, 2), round(width, 2), f"{phase}: {seconds / whole:.0%}"))
        x += width
    return shares
