"""The tree of commands, in the order in which they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.markup import escape

import hybridge
from hybridge.export.cli.commands import (
    bench,
    chat,
    demo,
    doctor,
    evaluate,
    export,
    inspect,
    kernels,
    lm_eval,
    native,
    run,
    serve,
    validate,
)

COMMANDS: dict[str, list[tuple[Callable[..., None], Sequence[str]]]] = {
    "Begin": [(doctor.doctor, doctor.EXAMPLES), (demo.demo, demo.EXAMPLES)],
    "Export and check": [
        (export.export, export.EXAMPLES),
        (inspect.inspect, inspect.EXAMPLES),
        (validate.validate, validate.EXAMPLES),
        (evaluate.evaluate, evaluate.EXAMPLES),
        (lm_eval.lm_eval, lm_eval.EXAMPLES),
    ],
    "Generate": [(run.run, run.EXAMPLES), (chat.chat, chat.EXAMPLES), (serve.serve, serve.EXAMPLES)],
    "Measure and build": [(bench.bench, bench.EXAMPLES), (native.native, native.EXAMPLES)],
}
"""Each command with its examples, by the title that it stands under."""


def version(asked: bool) -> None:
    """Print the version and leave."""
    if asked:
        typer.echo(f"hybridge {hybridge.__version__}")
        raise typer.Exit


def main(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Export hybrid language models to one ExecuTorch program and run it with speculative rollback."""


def examples(commands: Sequence[str]) -> str:
    """Return what stands below a command's options."""
    return "\n".join(["[bold]Examples[/]", *(f"  [dim]$[/] {escape(command)}" for command in commands)])


def tree() -> typer.Typer:
    """Return the command line with all its commands."""
    app = typer.Typer(
        name="hybridge",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(main)
    for title, commands in COMMANDS.items():
        for command, shown in commands:
            settings = lm_eval.PASSED_ON if command is lm_eval.lm_eval else None
            app.command(epilog=examples(shown), rich_help_panel=title, context_settings=settings)(command)
    app.add_typer(kernels.app, name="kernels", rich_help_panel=title)
    return app


app = tree()
