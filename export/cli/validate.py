"""``hybridge validate``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hybridge.export.cli.common import ArtifactArgument, JsonOption, app, check_writable_file, err, out, print_json, table
from hybridge.runtime.artifact import open_artifact
from hybridge.runtime.drift import Drift, measure_drift
from hybridge.runtime.native import NativeProcess, NativeSession
from hybridge.runtime.protocols import CheckedSession, Oracle
from hybridge.runtime.session import Session
from hybridge.runtime.validation import validate as run_validation
from hybridge.runtime.validation_report import Divergence, ValidationReport

DEFAULT_PROGRAMS = 55
PROMPTS, NEW_TOKENS = 20, 200


@app.command()
def validate(
    artifact: ArtifactArgument,
    against: Annotated[Path, typer.Option("--against", help="The checkpoint that it was exported from.")],
    programs: Annotated[int, typer.Option(min=0, help="Random programs of 40 operations each.")] = DEFAULT_PROGRAMS,
    seed: Annotated[int, typer.Option(help="Of the random programs and prompts.")] = 0,
    runtime: Annotated[
        Literal["python", "native"], typer.Option(help="Python's harness, or the C++ one for devices, compiled at first use.")
    ] = "python",
    report: Annotated[Path | None, typer.Option("--report", help="Also write the report to this file, as JSON.")] = None,
    json: JsonOption = False,
) -> None:
    """Hold an artifact against the uncached eager model: random programs of all operations, and greedy generation."""
    if report is not None:
        check_writable_file(report)
    check = validate_native if runtime == "native" else validate_session
    result = check(artifact, against, programs=programs, seed=seed)
    if report is not None:
        import json as json_module

        report.write_text(json_module.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(result.to_dict())
    else:
        print_report(result, out)
    result.check()


def validate_session(artifact: Path, checkpoint: Path, *, programs: int, seed: int) -> ValidationReport:
    """Load both sides and compare them, with a progress bar."""
    from hybridge.export.oracle import load_oracle, load_original, uncached
    from hybridge.export.quantize import rounds

    session = Session.load(artifact)
    oracle = load_oracle(checkpoint, session.manifest)
    report = _compare(session, oracle, programs=programs, seed=seed)
    if rounds(session.manifest.options):
        original = uncached(load_original(checkpoint, session.manifest).model)
        report.drift = measure_drift(session, original, oracle, seed=seed)
    return report


def validate_native(artifact: Path, checkpoint: Path, *, programs: int, seed: int) -> ValidationReport:
    """The same for the native harness, but for the drift, which belongs to the artifact and not to what runs it."""
    from hybridge.export.oracle import load_oracle

    with NativeProcess(open_artifact(artifact)) as process:
        oracle = load_oracle(checkpoint, process.artifact.manifest)
        return _compare(NativeSession(process), oracle, programs=programs, seed=seed)


def _compare(session: CheckedSession, oracle: Oracle, *, programs: int, seed: int) -> ValidationReport:
    new_tokens = max(1, min(NEW_TOKENS, session.max_seq_len // 2))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("Validating against eager", total=None)
        return run_validation(
            session,
            oracle,
            programs=programs,
            prompts=PROMPTS,
            new_tokens=new_tokens,
            seed=seed,
            notify=lambda done, total: progress.update(task, completed=done, total=total),
        )


def print_report(report: ValidationReport, console: Console) -> None:
    """The table of a validation."""
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
        (
            "tokens generated each way",
            f"{generation.tokens} ({generation.ties} ties; guessing: {generation.accepted} accepted, "
            f"{generation.rejected} rejected, {generation.rollbacks} rollbacks)",
        ),
        *drift_rows(report.drift),
        ("result", mark),
    ]


def drift_rows(drift: Drift | None) -> list[tuple[str, Any]]:
    """What rounding costs, in words; nothing for an artifact that rounds nothing."""
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
