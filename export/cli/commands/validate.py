"""``hybridge validate``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hybridge.runtime.cli.console import check_writable_file, err, out, print_json, write_json
from hybridge.runtime.cli.options import AgainstOption, ArtifactArgument, HtmlOption, JsonOption, ReportOption
from hybridge.runtime.defaults import DEFAULT_PROGRAMS

EXAMPLES = (
    "hybridge validate OUT --against CHECKPOINT",
    "hybridge validate OUT --against CHECKPOINT --report report.json",
    "hybridge validate OUT --against CHECKPOINT --html errors.html",
)


def validate(
    artifact: ArtifactArgument,
    against: AgainstOption,
    adapter: Annotated[
        list[Path] | None, typer.Option("--adapter", help="The adapters that were merged into it, in their order.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The folder whose tokenizer it was exported with, if not the checkpoint's.")
    ] = None,
    programs: Annotated[int, typer.Option(min=0, help="Random programs of 40 operations each.")] = DEFAULT_PROGRAMS,
    seed: Annotated[int, typer.Option(help="Of the random programs and prompts.")] = 0,
    runtime: Annotated[Literal["python", "native"] | None, typer.Option(hidden=True)] = None,
    report: ReportOption = None,
    html: HtmlOption = None,
    json: JsonOption = False,
) -> None:
    """Hold an artifact against the uncached eager model: random programs of all operations, greedy generation, and texts."""
    for file in filter(None, (report, html)):
        check_writable_file(file)
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib, validation_sections, write_page

        check_matplotlib("--html")
    from hybridge.export.check.validate import validate_session
    from hybridge.export.cli.steps import ConsoleProgress
    from hybridge.export.cli.validate import plain_rows, print_report
    from hybridge.export.source.checkpoint import resolve_checkpoint
    from hybridge.export.source.files import ignored_parts

    steps = ConsoleProgress(err)
    if runtime is not None:
        steps.warn("--runtime does nothing any more, and will be gone: there is one runtime, the native core.")
    source = resolve_checkpoint(against, adapter or (), tokenizer)
    result = validate_session(artifact, source, steps, programs=programs, seed=seed)
    for text in ignored_parts(source.path):
        steps.warn(text)
    if report is not None:
        write_json(report, result.to_dict())
    if html is not None:
        shown = plain_rows(result)
        if (first := result.first_divergence) is not None:
            place = f"program {first.program} of seed {result.seed}, at position {first.position}, after: "
            shown.append(("first divergence", place + " · ".join(first.operations)))
        sections = validation_sections(result.worst_at, result.largest_logit, result.tolerance, result.passed, shown)
        write_page(html, artifact.resolve().name, sections)
    if json:
        print_json(result.to_dict())
    else:
        print_report(result, out)
    result.check()
