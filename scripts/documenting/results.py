"""Draw docs/results.svg: the trained models of docs/benchmarks.md beside llama.cpp. Run it after the table has changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SECTION = "## Published models"
ROW = re.compile(
    r"^\| (?P<what>[^|]*) \| 1 \| (?P<ours>[\d,.]+) \| (?P<theirs>[\d,.]+) \| (?P<ratio>[\d.]+)× \|$", re.MULTILINE
)
FONT = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
WIDTH, LEFT, LONGEST, LINE = 860, 300, 400, 22
OURS, THEIRS, INK, SOFT = "#2f6f4f", "#b6bec8", "#1f2328", "#57606a"


@dataclass(frozen=True)
class Result:
    """A figure of both engines on the same file, on one thread."""

    model: str
    what: str
    ours: str
    theirs: str
    ratio: str


def results() -> list[Result]:
    """Return the figures of the first tables of the section."""
    section = (DOCS / "benchmarks.md").read_text(encoding="utf-8").partition(SECTION)[2].partition("With AVX2 alone")[0]
    found, model = list[Result](), ""
    for row in ROW.finditer(section):
        name, colon, what = row["what"].rpartition(": ")
        model = name if colon else model
        found.append(Result(model, what, row["ours"], row["theirs"], row["ratio"]))
    return found


def drawing(found: list[Result]) -> str:
    """Return the chart: two bars for each figure, the longer one of each pair as long as the others'."""
    lines, y, model = list[str](), 40, ""
    for each in found:
        if each.model != model:
            model, y = each.model, y + 14
            lines.append(_text(24, y, model, bold=True))
            y += 12
        lines += _bars(each, y)
        y += 2 * LINE + 12
    lines.append(
        _text(
            24,
            y + 10,
            "one thread of an AMD EPYC, the same GGUF files, the server's with AVX2; docs/benchmarks.md has all figures",
            SOFT,
        )
    )
    height = y + 28
    title = "hybridge beside llama.cpp on trained models"
    frame = f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8" fill="#ffffff" stroke="#d0d7de"/>'
    legend = [
        f'<rect x="24" y="16" width="12" height="12" fill="{OURS}"/>', _text(42, 27, "hybridge"),
        f'<rect x="120" y="16" width="12" height="12" fill="{THEIRS}"/>', _text(138, 27, "llama.cpp"),
    ]  # fmt: skip
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-labelledby="title">\n<title id="title">{title}</title>'
    )
    return "\n".join([head, frame, *legend, *lines, "</svg>\n"])


def _bars(each: Result, y: int) -> Iterator[str]:
    values = [float(number.replace(",", "")) for number in (each.ours, each.theirs)]
    better = "less" if each.what.endswith((" ms", " s", " MB")) else "more"
    yield _text(24, y + 14, each.what)
    yield _text(24, y + 32, f"{better} is better", SOFT)
    for i, (value, shown, color) in enumerate(zip(values, (each.ours, each.theirs), (OURS, THEIRS), strict=True)):
        width, top = round(LONGEST * value / max(values)), y + i * LINE
        yield f'<rect x="{LEFT}" y="{top}" width="{width}" height="{LINE - 4}" rx="3" fill="{color}"/>'
        yield _text(LEFT + width + 8, top + 14, shown + (f"  ({each.ratio}×)" if i == 0 else ""), INK if i == 0 else SOFT)


def _text(x: int, y: int, text: str, color: str = INK, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" font-family="{FONT}" font-size="14"{weight} fill="{color}">{text}</text>'


if __name__ == "__main__":
    (DOCS / "results.svg").write_text(drawing(results()), encoding="utf-8")
