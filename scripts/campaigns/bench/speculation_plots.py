"""Plots of speed by acceptance, in the peers' environment, which has matplotlib.

Usage: python -m campaigns.bench.speculation_plots SPECULATION.json FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def main(raw: Path, folder: Path) -> None:
    """A picture for each shape and number of threads."""
    curves = json.loads(raw.read_text())
    for shape, threads in dict.fromkeys((each["shape"], each["threads"]) for each in curves):
        mine = [each for each in curves if (each["shape"], each["threads"]) == (shape, threads)]
        plot(
            mine,
            f"{shape}, {threads} {'thread' if threads == 1 else 'threads'}",
            folder / f"speculation-{shape}-{threads}t.png",
        )


def plot(curves: list[dict[str, Any]], title: str, path: Path) -> None:
    """Times plain decoding over the chance that a guess is right; dashed where the pace chooses the block."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    kinds = list(dict.fromkeys(each["drafter"] for each in curves))
    for each in curves:
        points = sorted((float(share), times) for share, times in each["times"].items())
        style = "--" if each["block"] == 0 else "-"
        label = f"{each['drafter']}, " + (f"block {each['block']}" if each["block"] else "as the pace chooses")
        axes.plot(
            *zip(*points, strict=True), style, marker="o", markersize=3, color=f"C{kinds.index(each['drafter'])}",
            alpha=1 if not each["block"] else 0.35 + 0.6 * each["block"] / 16, label=label,
        )  # fmt: skip
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set(xlabel="chance that a guess is right", ylabel="tokens/s ÷ plain decoding", title=title, ylim=(0, None))
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
