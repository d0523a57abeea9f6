"""Draw what a run kept: decode by context, and speed by acceptance."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure


def plot_speeds(raw: Path, folder: Path) -> None:
    """Draw decode by context, one line an engine, and bars of prefill, for each shape and number of threads."""
    for run in json.loads(raw.read_text()):
        for threads in run["threads"]:
            _plot_speeds(run, threads, folder / f"{run['shape']}-{threads}t.png")


def _plot_speeds(run: dict[str, Any], threads: int, path: Path) -> None:
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    bars = []
    for index, row in enumerate(row for row in run["rows"] if row["samples"]):
        color, style = f"C{index % 10}", "-" if row["variant"].startswith("hybridge") else "--"
        mine = [each for each in row["samples"] if each["threads"] == threads]
        points = [(each["context"], 1 / _seconds(each)) for each in mine if each["measure"] == "decode"]
        if points:
            left.plot(*zip(*points, strict=True), style, marker="o", color=color, label=row["variant"])
        bars += [(row["variant"], 512 / _seconds(each), color) for each in mine if each["measure"] == "prefill"]
    left.set(xscale="log", xlabel="context, tokens", ylabel="decode, tokens/s", xticks=run["contexts"], ylim=(0, None))
    left.set_xticks(run["contexts"], [f"{context:,}" for context in run["contexts"]])
    left.minorticks_off()
    left.legend(fontsize="small")
    names, heights, colors = zip(*bars, strict=True) if bars else ((), (), ())
    right.barh(names, heights, color=colors)
    right.invert_yaxis()
    right.set(xlabel="prefill of 512, tokens/s")
    figure.suptitle(_title(run["shape"], threads))
    figure.savefig(path, dpi=110)


def _seconds(samples: dict[str, Any]) -> float:
    return float(median(second for steps in samples["rounds"] for second in steps))


def _title(shape: str, threads: int) -> str:
    return f"{shape}, {threads} {'thread' if threads == 1 else 'threads'}"


def plot_acceptance(raw: Path, folder: Path) -> None:
    """Draw the speed over plain decoding by the share of right draft tokens, for each shape and number of threads.

    Lines are dashed if the controller chooses the block.
    """
    curves = json.loads(raw.read_text())
    for shape, threads in dict.fromkeys((each["shape"], each["threads"]) for each in curves):
        mine = [each for each in curves if (each["shape"], each["threads"]) == (shape, threads)]
        kinds = list(dict.fromkeys(each["drafter"] for each in mine))
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for each in mine:
            block, points = each["block"], sorted((float(share), times) for share, times in each["times"].items())
            axes.plot(
                *zip(*points, strict=True), "-" if block else "--", marker="o", markersize=3,
                color=f"C{kinds.index(each['drafter'])}", alpha=0.35 + 0.6 * block / 16 if block else 1,
                label=f"{each['drafter']}, {f'block {block}' if block else 'as the controller chooses'}",
            )  # fmt: skip
        axes.axhline(1, color="gray", linewidth=0.8)
        axes.set(xlabel="share of right draft tokens", ylabel="tokens/s ÷ plain decoding", ylim=(0, None))
        axes.set_title(_title(shape, threads))
        axes.legend(fontsize="small")
        figure.savefig(folder / f"speculation-{shape}-{threads}t.png", dpi=110)
