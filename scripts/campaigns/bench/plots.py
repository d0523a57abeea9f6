"""Plots of what a run kept, in the peers' environment, which has matplotlib.

Usage: python -m campaigns.bench.plots RAW.json FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def main(raw: Path, folder: Path) -> None:
    """A picture of decode by context for each shape and number of threads."""
    for run in json.loads(raw.read_text()):
        for threads in run["threads"]:
            plot(run, threads, folder / f"{run['shape']}-{threads}t.png")


def plot(run: dict[str, Any], threads: int, path: Path) -> None:
    """Tokens per second over the context, one line an engine; and bars of prefill."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), width_ratios=(3, 2), layout="constrained")
    bars = []
    for index, row in enumerate(row for row in run["rows"] if row["samples"]):
        color, style = f"C{index % 10}", "-" if row["variant"].startswith("hybridge") else "--"
        points = [(s["context"], 1 / seconds(s)) for s in row["samples"] if wanted(s, "decode", threads)]
        if points:
            left.plot(*zip(*points, strict=True), style, marker="o", color=color, label=row["variant"])
        bars += [(row["variant"], 512 / seconds(s), color) for s in row["samples"] if wanted(s, "prefill", threads)]
    left.set(xscale="log", xlabel="context, tokens", ylabel="decode, tokens/s", xticks=run["contexts"], ylim=(0, None))
    left.set_xticks(run["contexts"], [f"{context:,}" for context in run["contexts"]])
    left.minorticks_off()
    left.legend(fontsize="small")
    names, heights, colors = zip(*bars, strict=True) if bars else ((), (), ())
    right.barh(names, heights, color=colors)
    right.invert_yaxis()
    right.set(xlabel="prefill of 512, tokens/s")
    figure.suptitle(f"{run['shape']}, {threads} {'thread' if threads == 1 else 'threads'}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def wanted(samples: dict[str, Any], measure: str, threads: int) -> bool:
    """Return whether they are of this measure and number of threads."""
    return bool(samples["measure"] == measure and samples["threads"] == threads)


def seconds(samples: dict[str, Any]) -> float:
    """The median of all steps."""
    return float(median(second for steps in samples["rounds"] for second in steps))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
