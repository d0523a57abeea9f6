"""The report of an evaluation as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from hybridge.export.check.evaluate import ComparisonReport, Figures
from hybridge.runtime.cli.console import table

if TYPE_CHECKING:
    from hybridge.export.check.evaluate import LayerCost

MOST_ROWS = 30
"""Weights that are shown one by one; the JSON has all."""

COLUMNS = ("KL, nats", "99 %", "largest", "same best token", "perplexity", "original's")


def print_comparison(report: ComparisonReport, console: Console) -> None:
    """Print a row for each range of positions, and one for all."""
    title = f"Divergence from the checkpoint in float32, over {report.texts} texts"
    grid = table(title, "positions", "tokens", *COLUMNS)
    for each in report.ranges:
        grid.add_row(f"{each.first:,} to {each.last:,}", *_cells(each))
    grid.add_section()
    grid.add_row("all", *_cells(report.whole))
    console.print(grid)


def print_costs(costs: Sequence[LayerCost], console: Console) -> None:
    """Print what kinds of weights cost, and the weights that cost most, each by itself; most for their size first."""
    _print_groups("Each kind of weight: sum of its weights, each rounded by itself", costs, lambda cost: cost.kind, console)
    _print_groups("The weights that cost most for their size", costs, lambda cost: cost.name, console)


def _print_groups(title: str, costs: Sequence[LayerCost], key: Callable[[LayerCost], str], console: Console) -> None:
    whole = sum(cost.kl for cost in costs)
    groups: dict[tuple[str, int], list[LayerCost]] = {}
    for cost in costs:
        groups.setdefault((key(cost), cost.bits), []).append(cost)
    grid = table(title, "weight", "bits", "numbers", "KL, nats", "share", "KL for a million numbers")
    for (name, bits), members in sorted(groups.items(), key=lambda item: -_density(item[1]))[:MOST_ROWS]:
        kl, elements = sum(cost.kl for cost in members), sum(cost.elements for cost in members)
        share = f"{kl / whole:.1%}" if whole else ""
        grid.add_row(escape(name), f"{bits}", f"{elements:,}", f"{kl:.6f}", share, f"{_density(members):.6f}")
    console.print(grid)


def _density(costs: Iterable[LayerCost]) -> float:
    members = list(costs)
    return 1e6 * sum(cost.kl for cost in members) / sum(cost.elements for cost in members)


def _cells(figures: Figures) -> list[str]:
    perplexities = (figures.perplexity, figures.original_perplexity)
    return [
        f"{figures.positions:,}",
        f"{figures.kl:.5f} ± {figures.kl_error:.5f}",
        f"{figures.kl_99:.4f}",
        f"{figures.kl_largest:.3f}",
        f"{figures.top1_agreement:.2%}",
        *("" if value is None else f"{value:.4f}" if value < 1e5 else f"{value:.2e}" for value in perplexities),
    ]
