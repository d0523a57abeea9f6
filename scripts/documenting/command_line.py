"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from documenting.markdown import table
from hybridge.__main__ import app

HEAD = """# Command line

Every command says the same of itself with `--help`, and prints its result as JSON with `--json`. Exit codes: 0, done; 1, the
work failed; 2, wrong usage. `hybridge --install-completion` sets up the shell, `hybridge --version` prints the version.
"""
MARKUP = re.compile(r"\[/?(?:bold|dim)?\]")


def page() -> str:
    """Return the Markdown of all commands, in the order of use."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="hybridge")
    return "\n".join([HEAD, *(part for command in group.commands.values() for part in _command(command, context))])


def _command(command: TyperCommand | TyperGroup, parent: typer.Context) -> Iterator[str]:
    context = typer.Context(command, info_name=command.name, parent=parent)
    yield f"## {context.command_path}\n"
    yield f"{command.help}\n"
    if children := getattr(command, "commands", None):
        for child in children.values():
            yield from _command(child, context)
        return
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    for title, kind in (("argument", TyperArgument), ("option", TyperOption)):
        records = [each.get_help_record(context) for each in command.params if isinstance(each, kind)]
        if shown := [_row(*each) for each in records if each]:
            yield table((title, "values", "meaning"), shown)
    if command.epilog:
        yield f"```console\n{_examples(command.epilog)}\n```\n"


def _row(names: str, text: str) -> tuple[str, str, str]:
    """Return spelling, values and meaning of what Typer writes as ``-o, --output <path>`` or ``--draft-vocab FILE|N``."""
    match = re.fullmatch(r"(.+?)(?: <(.+)>| ([A-Z].*))?", names)
    assert match is not None
    values = match[2] or match[3]
    return f"`{match[1]}`", f"`{values}`" if values else "", re.sub(r"([*<])", r"\\\1", " ".join(text.split()))


def _examples(epilog: str) -> str:
    lines = (MARKUP.sub("", line).replace("\\[", "[").strip() for line in epilog.splitlines())
    return "\n".join(line for line in lines if line.startswith("$"))
