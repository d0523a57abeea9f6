"""The ``hybridge`` command: one entry to which both halves add their commands, in the order in which they are used.

Results go to stdout, everything for people to stderr.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.markup import escape

import hybridge
from hybridge.models.cli import describes_model, takes_model
from hybridge.runtime.cli.console import run_and_exit


@dataclass(frozen=True)
class Command:
    """A command, by the module that has it: a command line that names it imports no other.

    Args:
        module: has a function of the command's name, or a group of commands, and examples for the help.
        name: of the command.
        wrap: gives the command more options.
        examples: the name of the examples in the module; empty for a group.
        settings: of the command's parser.
    """

    module: str
    name: str
    wrap: Callable[[Callable[..., None]], Callable[..., None]] | None = None
    examples: str = "EXAMPLES"
    settings: Mapping[str, Any] | None = None

    def shown_examples(self) -> Sequence[str]:
        """Return the examples of its help."""
        shown: Sequence[str] = getattr(import_module(self.module), self.examples) if self.examples else ()
        return shown

    def add_to(self, app: typer.Typer, title: str) -> None:
        """Add it to the command line, under the title of its group."""
        found = getattr(import_module(self.module), self.name.replace("-", "_"))
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name, rich_help_panel=title)
            return
        epilog = "\n".join(["[bold]Examples[/]", *(f"  [dim]$[/] {escape(each)}" for each in self.shown_examples())])
        settings = dict(self.settings) if self.settings else None
        run = self.wrap(found) if self.wrap else found
        app.command(name=self.name, epilog=epilog, rich_help_panel=title, context_settings=settings)(run)


ALL_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Leave every word after a command to it, ``run --help`` too."""
COMMANDS = {
    "Begin": [Command("hybridge.runtime.cli.doctor", "doctor"), Command("hybridge.export.cli.demo", "demo")],
    "Export and check": [
        Command("hybridge.export.cli.export", "export"),
        Command("hybridge.runtime.cli.inspect", "inspect", describes_model),
        Command("hybridge.export.cli.check", "validate", examples="VALIDATE_EXAMPLES"),
        Command("hybridge.export.cli.check", "evaluate", examples="EVALUATE_EXAMPLES"),
        Command("hybridge.runtime.cli.tools", "lm-eval", examples="LM_EVAL_EXAMPLES", settings=ALL_WORDS),
    ],
    "Generate": [
        Command("hybridge.runtime.cli.run", "run", takes_model),
        Command("hybridge.runtime.cli.chat", "chat", takes_model),
        Command("hybridge.runtime.cli.serve", "serve", takes_model),
        Command("hybridge.models.cli", "cache", examples=""),
    ],
    "Measure and build": [
        Command("hybridge.export.cli.bench", "bench", takes_model),
        Command("hybridge.runtime.cli.tools", "native", examples="NATIVE_EXAMPLES"),
        Command("hybridge.runtime.cli.tools", "bundle", examples="BUNDLE_EXAMPLES"),
        Command("hybridge.runtime.cli.tools", "kernels", examples=""),
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


def tree(words: Collection[str] = ()) -> typer.Typer:
    """Return the command line with the command that is one of ``words``, or with all if none is: for help and mistakes."""
    app = typer.Typer(
        name="hybridge",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(options)
    is_known = any(each.name in words for commands in COMMANDS.values() for each in commands)
    for title, commands in COMMANDS.items():
        for each in commands:
            if each.name in words or not is_known:
                each.add_to(app, title)
    return app


def main() -> None:
    """Run the command line."""
    gc.set_threshold(100_000)  # collections are a fifteenth of the time to start, and find hardly any garbage
    run_and_exit(lambda: tree(sys.argv[1:2])())


if __name__ == "__main__":
    main()
