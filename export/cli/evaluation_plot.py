"""The report of an evaluation as a picture, by matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.cache.errors import UsageError

if TYPE_CHECKING:
    from hybridge.export.check.evaluate import ComparisonReport

KINDS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Raises UsageError where ``path`` cannot become a picture, or nothing here can draw one."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot {path} has no ending of a picture; expected one of {', '.join(KINDS)}.")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed: pip install 'hybridge[eval]'.")


def plot_comparison(report: ComparisonReport, path: Path) -> None:
    """Draw the divergence and its 99 % bound, and how often the best token differs, by position."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    divergence, agreement = figure.subplots(1, 2)
    ranges = [each for each in report.ranges if each.positions]
    names = [f"{each.first}–{each.last}" for each in ranges]
    divergence.errorbar(names, [each.kl for each in ranges], [each.kl_error for each in ranges], marker="o", label="mean")
    divergence.plot(names, [each.kl_99 for each in ranges], marker=".", linestyle=":", label="99 % stay below")
    divergence.set_yscale("log")
    divergence.set_ylabel("KL divergence, nats")
    divergence.legend()
    agreement.plot(names, [100 * (1 - each.top1_agreement) for each in ranges], marker="o")
    agreement.set_ylabel("another best token, %")
    agreement.set_ylim(bottom=0)
    for axes in (divergence, agreement):
        axes.set_xlabel("position")
        axes.tick_params(axis="x", rotation=45)
    figure.savefig(path)
