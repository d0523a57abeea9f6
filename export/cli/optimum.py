"""``hybridge export`` as optimum's command line has it: the checkpoint is ``--model``, the output comes last."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridge.export.cli.commands.export import export
from hybridge.runtime.cli.process import ended


def main(words: Sequence[str]) -> None:
    """Export by the words after ``optimum-cli export hybridge``; exit codes and messages are those of ``hybridge``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(in_optimums_words(export))
    ended(lambda: app(args=list(words), prog_name="optimum-cli export hybridge"))


def in_optimums_words(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with the two of its parameters renamed that optimum calls otherwise; all others are its own."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters
    renamed = {
        "checkpoint": Annotated[str, typer.Option("--model", "-m", help=_help(parameters["checkpoint"]))],
        "output": Annotated[Path, typer.Argument(help=_help(parameters["output"]))],
    }

    @wraps(command)
    def same(**given: Any) -> None:
        command(**given)

    each = [parameter.replace(annotation=renamed.get(name, parameter.annotation)) for name, parameter in parameters.items()]
    same.__signature__ = signature.replace(parameters=each)  # type: ignore[attr-defined]  # what typer reads
    return same


def _help(parameter: inspect.Parameter) -> str:
    return str(parameter.annotation.__metadata__[0].help)
