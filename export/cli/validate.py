"""The report of a validation as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from hybridge.export.check.evaluate import Drift
from hybridge.export.check.validate import Divergence, GenerationCheck, TextCheck, ValidationReport
from hybridge.runtime.cli.console import table


def print_report(report: ValidationReport, console: Console) -> None:
    """Print the table of a validation."""
    grid = table(f"Validation against the uncached eager model (seed {report.seed})", "", "value")
    for name, value in rows(report):
        grid.add_row(name, value)
    console.print(grid)
    if report.first_divergence is not None:
        _explain(report.first_divergence, report, console)


def rows(report: ValidationReport) -> list[tuple[str, Any]]:
    """Name and value of each line of the table."""
    generation = report.generation
    mark = "[green]passed[/]" if report.passed else "[bold red]FAILED[/]"
    kinds = ", ".join(f"{count} {name}" for name, count in report.operations.most_common())
    return [
        ("random operations", f"{report.operations.total()} ({kinds})"),
        ("logit vectors compared", f"{report.compared}"),
        ("worst error", f"{report.worst:.2e} = {report.worst_relative:.2e} of the largest logit"),
        ("mean error", f"{report.mean:.2e} = {report.mean_relative:.2e} of the largest logit"),
        ("tolerance", f"{report.tolerance:.0e} of the largest logit"),
        ("top-1 agreement", f"{report.top1_agreement:.4%}"),
        ("greedy = eager, plain", f"{generation.plain_matches} of {generation.prompts} prompts"),
        ("greedy = eager, speculative", f"{generation.speculative_matches} of {generation.prompts} prompts"),
        *_drafted_rows(generation),
        (
            "tokens generated each way",
            f"{generation.tokens} ({generation.ties} ties; draft tokens: {generation.accepted} accepted, "
            f"{generation.rejected} rejected, {generation.rollbacks} rollbacks)",
        ),
        *_tokenizer_rows(report.tokenizer),
        *drift_rows(report.drift),
        ("result", mark),
    ]


def _drafted_rows(check: GenerationCheck) -> list[tuple[str, Any]]:
    """What generations with the artifact's own drafter gave; nothing for an artifact without one."""
    if not check.drafted_prompts:
        return []
    counts = f"draft tokens: {check.drafted_accepted} accepted, {check.drafted_rejected} rejected"
    return [("greedy = eager, own drafter", f"{check.drafted_matches} of {check.drafted_prompts} prompts ({counts})")]


def _tokenizer_rows(check: TextCheck) -> list[tuple[str, Any]]:
    """How the tokenizers compare; nothing where there is none."""
    return [("texts with the checkpoint's tokens", f"{check.equal} of {check.texts}")] if check.texts else []


def plain_rows(report: ValidationReport) -> list[tuple[str, str]]:
    """The same without a console's colours."""
    return [(name, Text.from_markup(value).plain) for name, value in rows(report)]


def drift_rows(drift: Drift | None) -> list[tuple[str, Any]]:
    """Return what rounding costs, in words; nothing for an artifact that rounds nothing."""
    if drift is None:
        return []
    found = f"KL divergence {drift.kl:.4f} nats, top-1 agreement {drift.top1_agreement:.1%} ({drift.positions} positions)"
    return [("drift from the original", found)]


def _explain(divergence: Divergence, report: ValidationReport, console: Console) -> None:
    console.print(
        f"First divergence: program {divergence.program} of seed {report.seed}, at position {divergence.position}, "
        f"error {divergence.error:.2e}, after:\n  " + " · ".join(divergence.operations),
        highlight=False,
    )
