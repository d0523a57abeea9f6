"""Draw what a command found: the page of ``--html``, one file without scripts or requests, and the plot of ``evaluate``.

A page is a list of sections that one template writes and escapes. Its chart is an SVG of matplotlib in stand-in colours, which
become the page's variables, so that it follows the browser's light or dark scheme. Only drawing imports matplotlib, an extra.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO, StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hybridge.errors import UsageError
from hybridge.runtime.artifact.manifest import LayerEntry, Manifest
from hybridge.runtime.binding.statistics import GenerationStats, Trace
from hybridge.runtime.files import write_output
from hybridge.runtime.text.answers import TokenDecoder

SERIES = tuple(f"#00002{i}" for i in range(8))
INK, DIM, LINE, BAD = "#000010", "#000011", "#000012", "#000013"
VARIABLES = {INK: "ink", DIM: "dim", LINE: "line", BAD: "bad"} | {each: f"c{i}" for i, each in enumerate(SERIES)}
"""The stand-in colours, and the variables of html_report.html.jinja that replace them."""
PHASES = {"prefill": SERIES[4], "draft": SERIES[1], "verify": SERIES[0], "commit": SERIES[2], "decode": SERIES[5], "rest": LINE}
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "hybridge", "text.parse_math": False, "text.usetex": False, "font.size": 9,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": LINE, "xtick.color": DIM, "ytick.color": INK,
}  # fmt: skip
"""Texts stay texts, and a ``$`` in one begins no formula."""
ROW, MOST_ROUNDS, POSITION_RANGES, LOWEST_ERROR = 0.21, 400, 96, 1e-9
"""Inches of a bar's row, rows of a timeline, dots of an operation, and the lower end of the axis of errors."""

Bar = tuple[str, Sequence[tuple[float, object, str, str]], str]
"""A label, the parts of a bar (length, colour, key in the legend, tooltip), and the text after it."""


@dataclass(frozen=True)
class Section:
    """A part of a page; what is empty is left out. pieces: styles and texts; folded: titles and lists."""

    title: str
    note: str = ""
    passed: bool | None = None
    svg: str = ""
    pieces: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    folded: Sequence[tuple[str, Sequence[str]]] = ()


@dataclass(frozen=True)
class Speed:
    """The speed of a way to generate, its ratio to plain decoding, and its time by phase."""

    tokens_per_second: float
    times: float
    total: GenerationStats


def check_matplotlib(option: str) -> None:
    """Raise UsageError if what ``option`` draws with is not installed; call it before any work."""
    if find_spec("matplotlib") is None:
        raise UsageError(f"{option} needs matplotlib: pip install 'hybridge[html]'")


def write_page(path: Path, title: str, sections: Iterable[Section]) -> None:
    """Write a page, whole or not at all; its texts are escaped, for manifests and tokens are hostile. Raises OutputError."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("html_report.html.jinja")
    text = template.render(title=title, sections=sections, version=version("hybridge"))
    write_output(path, text.encode("utf-8", errors="replace"))  # half of a surrogate pair is no character


def artifact_sections(
    manifest: Manifest, summary: Sequence[tuple[str, str]], bits: Sequence[tuple[str, int, int]]
) -> Iterator[Section]:
    """Yield the page of ``inspect``. summary: names and values of a table; bits: kinds of weights, their bits and number."""
    kinds = Counter(layer.kind for layer in manifest.layers)
    colours = {kind: SERIES[i % len(SERIES)] for i, kind in enumerate(kinds)}
    bars: list[Bar] = []
    for i, layer in enumerate(manifest.layers):
        shades, key = [(colours[layer.kind], share) for share in (1, 0.5, 0.25)], f"{_label(layer.kind)} × {kinds[layer.kind]}"
        tip = "\n".join([layer.kind, *(f"{name} {entry.dtype}{entry.shape}" for name, entry in layer.buffers.items())])
        parts = [(size, shade, key, tip) for size, shade in zip(_bytes([layer]), shades, strict=True)]
        bars.append((f"{_label(layer.kind)}  {i}", parts, " + ".join(f"{size:,}" for size in _bytes([layer]))))
    totals = [(kind, *_bytes([each for each in manifest.layers if each.kind == kind])) for kind in kinds]
    rows = [*totals, ("all layers", *_bytes(manifest.layers))]
    plan = _svg("The layers and their bytes", len(bars) * ROW, lambda figure: _draw_bars(figure.subplots(), bars))
    yield Section("The layer plan", svg=plan, columns=("", "state", "rollback", "slots"), rows=rows)
    methods = {manifest.program_method(name): method for name, method in manifest.methods.items()}
    yield Section("Methods", columns=("method", "takes", "gives", "operators", "delegates"), rows=[
        (
            name, *(" ".join(f"{e.dtype}{e.shape}" for e in side) or "nothing" for side in (method.inputs, method.outputs)),
            len(method.operators), ", ".join(f"{count} × {backend}" for backend, count in method.delegates.items()) or "none",
        ) for name, method in methods.items()
    ], folded=[(f"Operators of {name}", method.operators) for name, method in methods.items() if method.operators])  # fmt: skip
    if bits:
        yield Section("Weights of fewer bits", columns=("weight", "bits", "layers"), rows=bits)
    yield Section("The artifact", rows=summary)


def _bytes(layers: Sequence[LayerEntry]) -> tuple[int, ...]:
    """Return the bytes of the layers' state, of what a rollback needs, and of snapshot slots."""
    return tuple(sum(getattr(each, name) for each in layers) for name in ("state_bytes", "rollback_bytes", "slot_bytes"))


def run_sections(
    prompt: str, tokens: Sequence[int], trace: Trace, decoder: TokenDecoder, rows: Sequence[tuple[str, str]]
) -> Iterator[Section]:
    """Yield the page of ``run``. tokens: the new ones; rows: names and values of a table."""
    bars = list(_round_bars(trace))
    shown, more = bars[:MOST_ROUNDS], len(bars) - MOST_ROUNDS
    slowest = max((sum(part[0] for part in parts) for label, parts, _ in shown if label != "reading the prompt"), default=0)
    timeline = _svg("The phases of each round", len(shown) * ROW, lambda figure: _draw_bars(figure.subplots(), shown, slowest))
    yield Section("The text", pieces=[("prompt", prompt), *_pieces(tokens, trace, decoder)])
    yield Section("What it took", rows=rows)
    yield Section("Rounds", f"{more} more lines are left out." if more > 0 else "", svg=timeline)


def _pieces(tokens: Sequence[int], trace: Trace, decoder: TokenDecoder) -> Iterator[tuple[str, str]]:
    """Yield the text in order with the origin of each piece; rejected tokens come before the one that took their place."""
    styles, rejected, stream = ["own"] * len(tokens), dict[int, list[int]](), decoder.stream()
    for draft in (each.draft for each in trace.rounds if each.draft is not None):
        end = draft.first + draft.accepted
        styles[draft.first : end] = ["forced" if draft.forced else "accepted"] * len(styles[draft.first : end])
        rejected[end] = draft.tokens[draft.accepted :]
    for place, (token, style) in enumerate(zip(tokens, styles, strict=True)):
        if rejected.get(place):
            yield "rejected", decoder.decode(rejected[place]).replace("\n", "↵")  # a struck line break would not show
        yield style, stream.push(token)
    yield "own", stream.finish()


def _round_bars(trace: Trace) -> Iterator[Bar]:
    """Yield a bar for each round; decodes in a row are one bar of their mean seconds."""
    for decoded, group in groupby(trace.rounds, key=lambda each: any(phase == "decode" for phase, _ in each.phases)):
        several = list(group)
        for joined in [several] if decoded else [[each] for each in several]:
            draft, label, spent = joined[0].draft, "reading the prompt", defaultdict[str, float](float)
            for phase, seconds in (pair for each in joined for pair in each.phases):
                spent[phase] += seconds / len(joined)
            if decoded:
                label = f"{len(joined)} decoded"
            elif draft is not None:
                accepted = f"{draft.accepted} of {len(draft.tokens)} draft tokens accepted"
                label = f"{len(draft.tokens)} forced" if draft.forced else accepted
            parts = [(each, PHASES[phase], phase, f"{phase}: {_time(each)}") for phase, each in spent.items()]
            yield label, parts, _time(sum(spent.values()))


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def validation_sections(
    worst_at: Mapping[tuple[str, int], float], largest: float, tolerance: float, passed: bool, rows: Sequence[tuple[str, str]]
) -> Iterator[Section]:
    """Yield the page of ``validate``. worst_at: the worst error by operation and position; largest: the largest logit."""
    end = max((position for _, position in worst_at), default=0) + 1
    width = math.ceil(end / POSITION_RANGES)
    operations = sorted({operation for operation, _ in worst_at})
    worst = defaultdict[tuple[str, int], float](float)
    for (operation, position), error in worst_at.items():
        cell = (operation, position // width)
        worst[cell] = max(worst[cell], error / largest if largest else 0.0)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set(yscale="log", ylim=(LOWEST_ERROR / 2, 2), xlim=(-end / 50, end * 1.02), xlabel="position", ylabel="error")
        powers = [f"1e{power}" for power in range(-9, 1, 3)]
        axes.set_yticks([float(power) for power in powers], powers)
        axes.set_yticks([], minor=True)
        axes.grid(axis="y", color=LINE)
        axes.axhline(tolerance, color=BAD, linestyle="--", label="tolerance")
        for (operation, column), share in sorted(worst.items()):
            first, last, number = column * width, min(end, (column + 1) * width) - 1, operations.index(operation) % 8
            place = ((first + last) / 2, min(max(share, LOWEST_ERROR), 1.0))  # beyond the axis is at its ends
            tip = f"tip:{operation}, positions {first} to {last}: {share:.1e}"
            axes.plot(*place, "os^vDPX*"[number], color=SERIES[number], markersize=5, label=_label(operation), gid=tip)

    chart = _svg("Errors by position and operation", 3.2, draw)
    yield Section("Errors by position and operation", "Passed" if passed else "Failed", passed, chart)
    yield Section("What was compared", rows=rows)


def speed_sections(
    speeds: Mapping[str, Mapping[str, Speed]], figures: Sequence[tuple[str, str, str, bool]], memory: tuple[float, float] | None
) -> Iterator[Section]:
    """Yield the page of ``bench``.

    Args:
        speeds: by text and way of generating.
        figures: names, targets, measured values, and whether they reached their targets.
        memory: the bytes that a plain decode moves and those that memory moves in a second: the roofline of plain decoding.
    """
    roof, note = math.inf, ""
    if memory is not None:
        roof, moved = memory[1] / memory[0], f"{memory[0] / 1e6:.1f} MB a token at {memory[1] / 1e9:.1f} GB/s"
        note = f"Plain decoding is bound by memory at {roof:.0f} tokens/s: {moved}."

    def draw(figure: Any) -> None:
        heights = [len(ways) for ways in speeds.values()]
        grid = figure.subplots(len(speeds), 2, squeeze=False, width_ratios=(3, 2), height_ratios=heights)
        for (text, ways), (left, right) in zip(speeds.items(), grid, strict=True):
            left.set_title(_label(text, 60), loc="left", fontweight="bold")
            bars: list[Bar] = []
            for i, (name, way) in enumerate(ways.items()):
                end = f"{way.tokens_per_second:.0f} tokens/s, {way.times:.2f}×"
                bars.append((_label(name), [(way.tokens_per_second, SERIES[i % 8], "", name)], end))
            _draw_bars(left, bars)
            if roof <= max(way.tokens_per_second for way in ways.values()):
                left.axvline(roof, color=INK, linestyle=":", label="the limit of plain decoding")
            _draw_bars(right, [("", _shares(way.total), "") for way in ways.values()])

    chart = _svg("Speeds and shares of time", sum(ROW * len(ways) + 0.35 for ways in speeds.values()), draw)
    yield Section("Speeds", note, svg=chart)
    yield Section("Figures", columns=("what", "target", "measured", "result"), rows=figures)


def _shares(total: GenerationStats) -> list[tuple[float, str, str, str]]:
    """Return the phases' shares of the time of new tokens as the parts of a bar."""
    spent = {phase: getattr(total, f"{phase}_seconds") for phase in ("draft", "verify", "commit", "decode")}
    spent["rest"] = max(0.0, total.new_seconds - sum(spent.values()))
    whole = sum(spent.values()) or 1.0
    return [(each / whole, PHASES[phase], phase, f"{phase}: {each / whole:.0%}") for phase, each in spent.items()]


def _svg(label: str, height: float, draw: Callable[[Any], None]) -> str:
    """Return the chart that ``draw`` puts into a figure, some inches high, and the legend of what has labels in it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with warnings.catch_warnings(), mpl.rc_context({**mpl.rcParamsDefault, **STYLE}):
        warnings.simplefilter("ignore")  # the font that measures texts lacks some characters; the browser's may have them
        figure, svg, legend = Figure(figsize=(9.6, height + 0.6), layout="constrained"), StringIO(), dict[str, Any]()
        draw(figure)
        for axes in figure.axes:
            for handle, key in zip(*axes.get_legend_handles_labels(), strict=True):
                legend.setdefault(key, handle)
        columns = max(1, 110 // (max(map(len, legend), default=0) + 6))
        figure.legend(legend.values(), legend.keys(), loc="outside upper left", ncols=columns, frameon=False)
        figure.savefig(svg, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = re.sub("<[^>]*>", _with_variables, svg.getvalue())
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _with_variables(tag: re.Match[str]) -> str:
    """Return an SVG's tag with the page's colours, or the tooltip that is its id as a title."""
    if tip := re.fullmatch('<g id="tip:([^"]*)">', tag[0]):
        return f"<g><title>{tip[1]}</title>"
    return re.sub("#0000[12][0-7]", lambda colour: f"var(--{VARIABLES[colour[0]]})", tag[0])


def _draw_bars(axes: Any, bars: Sequence[Bar], longest: float = 0) -> None:
    """Draw ``bars`` from top to bottom; the parts beyond ``longest``, if it is given, are cut off."""
    longest = longest or max((sum(part[0] for part in parts) for _, parts, _ in bars), default=0) or 1.0
    rectangles = []
    for number, (_, parts, end) in enumerate(bars):
        x = 0.0
        for length, *looks in parts:
            width = min(max(length, longest / 400 if length else 0), longest - x)  # the smallest parts stay visible
            rectangles.append((number, width, x, *looks))
            x += width
        axes.text(x + longest / 60, number, end, color=DIM, verticalalignment="center")
    rows, widths, lefts, colours, keys, tips = zip(*rectangles, strict=True) if rectangles else [()] * 6
    for rectangle, tip in zip(axes.barh(rows, widths, 0.75, lefts, color=colours, label=keys), tips, strict=True):
        rectangle.set_gid(f"tip:{tip}")
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(0, longest * (1.45 if any(end for *_, end in bars) else 1)), ylim=(len(bars) - 0.5, -0.5))


def _label(text: str, most: int = 27) -> str:
    """Return a text as a chart can have it: short, and without control characters, which XML forbids."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def check_plot(path: Path) -> None:
    """Raise UsageError if ``path`` has no ending of a picture, or matplotlib is missing."""
    if path.suffix.lower() not in (endings := (".svg", ".png", ".pdf")):
        raise UsageError(f"--plot {path} has no ending of a picture; expected one of {', '.join(endings)}.")
    check_matplotlib("--plot")


def plot_divergence(ranges: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw an evaluation by ranges of positions: the divergence with its 99 % bound, and how often the best token differs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    divergence, agreement = figure.subplots(1, 2)
    names = [f"{each['first']}–{each['last']}" for each in ranges]
    mean, error, most, same = ([each[name] for each in ranges] for name in ("kl", "kl_error", "kl_99", "top1_agreement"))
    divergence.errorbar(names, mean, error, marker="o", label="mean")
    divergence.plot(names, most, marker=".", linestyle=":", label="99 % stay below")
    divergence.set(yscale="log", ylabel="KL divergence, nats")
    divergence.legend()
    agreement.plot(names, [100 * (1 - each) for each in same], marker="o")
    agreement.set(ylabel="another best token, %", ylim=(0, None))
    for axes in (divergence, agreement):
        axes.set_xlabel("position")
        axes.tick_params(axis="x", rotation=45)
    drawn = BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    write_output(path, drawn.getvalue())
