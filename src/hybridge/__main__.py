"""The ``hybridge`` command: one entry to which both halves add their commands, in the order in which they are used.

Results go to stdout, everything for people to stderr.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.markup import escape

import hybridge
from hybridge.export.cli import bench, check, demo, export
from hybridge.models import cli as models
from hybridge.runtime.cli import chat, doctor, inspect, run, serve, tools
from hybridge.runtime.cli.console import run_and_exit


@dataclass(frozen=True)
class Command:
    """A command, the examples in its help, and settings of its parser."""

    run: Callable[..., None]
    examples: Sequence[str]
    settings: dict[str, Any] | None = None


COMMANDS = {
    "Begin": [Command(doctor.doctor, doctor.EXAMPLES), Command(demo.demo, demo.EXAMPLES)],
    "Export and check": [
        Command(export.export, export.EXAMPLES),
        Command(models.describes_model(inspect.inspect), inspect.EXAMPLES),
        Command(check.validate, check.VALIDATE_EXAMPLES),
        Command(check.evaluate, check.EVALUATE_EXAMPLES),
        Command(tools.lm_eval, tools.LM_EVAL_EXAMPLES, tools.LM_EVAL_PARSER),
    ],
    "Generate": [
        Command(models.takes_model(run.run), run.EXAMPLES),
        Command(models.takes_model(chat.chat), chat.EXAMPLES),
        Command(models.takes_model(serve.serve), serve.EXAMPLES),
    ],
    "Measure and build": [
        Command(models.takes_model(bench.bench), bench.EXAMPLES),
        Command(tools.native, tools.NATIVE_EXAMPLES),
        Command(tools.bundle, tools.BUNDLE_EXAMPLES),
    ],
}
"""The commands by the title of their group in the help."""


def version(asked: bool) -> None:
    """Print the version and exit."""
    if asked:
        typer.echo(f"hybridge {hybridge.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Export hybrid language models to one ExecuTorch program and run it with speculative rollback."""


def examples(commands: Sequence[str]) -> str:
    """Return the examples below a command's options."""
    return "\n".join(["[bold]Examples[/]", *(f"  [dim]$[/] {escape(command)}" for command in commands)])


def tree() -> typer.Typer:
    """Return the command line with all its commands."""
    app = typer.Typer(
        name="hybridge",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(options)
    for title, commands in COMMANDS.items():
        for each in commands:
            app.command(epilog=examples(each.examples), rich_help_panel=title, context_settings=each.settings)(each.run)
    app.add_typer(models.cache, name="cache", rich_help_panel="Generate")
    app.add_typer(tools.kernels, name="kernels", rich_help_panel=title)
    return app


app = tree()


def main() -> None:
    """Run the command line."""
    run_and_exit(app)


if __name__ == "__main__":
    main()
