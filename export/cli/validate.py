"""``hybridge validate``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hybridge.export.cli.common import ArtifactArgument, JsonOption, app, check_writable_file, err, out, print_json
from hybridge.export.cli.steps import ConsoleProgress
from hybridge.export.cli.validation_table import print_report
from hybridge.runtime.checks.validation import DEFAULT_PROGRAMS


@app.command()
def validate(
    artifact: ArtifactArgument,
    against: Annotated[str, typer.Option("--against", help="The checkpoint that it was exported from.")],
    adapter: Annotated[
        list[Path] | None, typer.Option("--adapter", help="The adapters that were merged into it, in their order.")
    ] = None,
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
    from hybridge.export.reference.validate import validate_native, validate_session
    from hybridge.export.source.checkpoint_path import find_checkpoint
    from hybridge.export.source.folder_kinds import ignored_parts
    from hybridge.export.source.named import Named

    steps, check = ConsoleProgress(err), validate_native if runtime == "native" else validate_session
    source = Named(checkpoint=against, adapters=tuple(adapter or ()))
    result = check(artifact, source, steps, programs=programs, seed=seed)
    for text in ignored_parts(find_checkpoint(against)):
        steps.warn(text)
    if report is not None:
        import json as json_module

        report.write_text(json_module.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")
    if json:
        print_json(result.to_dict())
    else:
        print_report(result, out)
    result.check()
