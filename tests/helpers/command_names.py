"""The options of every command: ``hybridge``'s from its command tree, the scripts' from their sources."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer.main
from source_names import ROOT

from hybridge.__main__ import app

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@dataclass
class Options:
    """Each option by name, with the values that it takes where those are a fixed list."""

    values: dict[str, set[str]] = field(default_factory=dict)

    def add(self, name: str, choices: set[str]) -> None:
        """Several commands may have the option: any of their values is one."""
        known = self.values.get(name)
        self.values[name] = choices if known is None else known | choices if known and choices else set()

    def faults(self, words: list[str]) -> Iterator[str]:
        """What is wrong with the options among ``words``; a value may list several with bars between them."""
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, equals, value = word.partition("=")
            if not OPTION.fullmatch(name):
                continue
            if name not in self.values:
                yield f"there is no option {name}"
                continue
            given = (value if equals else following).rstrip(".,;:")
            if (
                given
                and not given.startswith("-")
                and (wrong := set(given.split("|")) - self.values[name])
                and self.values[name]
            ):
                yield f"{name} does not take {', '.join(sorted(wrong))}"


def hybridge_commands() -> Mapping[str, Options]:
    """``export``, ``kernels build`` and so on."""
    return dict(_commands(typer.main.get_command(app), ""))


def _commands(command: Any, name: str) -> Iterator[tuple[str, Options]]:
    """Values come from annotations, because what Typer makes of them differs from version to version."""
    options, hints = Options({"--help": set()}), get_type_hints(command.callback) if command.callback else {}
    for each in command.params:
        for spelling in (*each.opts, *each.secondary_opts):
            options.add(spelling, set(_literals(hints.get(each.name))))
    yield name, options
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child, f"{name} {child.name}".strip())


def _literals(annotation: Any) -> Iterator[str]:
    """The values of ``Literal[...]``, also where it is one of several types."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, UnionType):
        yield from (value for each in get_args(annotation) for value in _literals(each))


def script_options(script: Path) -> Options:
    """What an argparse script names, and the arguments of a Typer one's ``main``; a shell script's are those of its Python."""
    options = Options({"--help": set()})
    for name in re.findall(r"^ +(--[a-z][a-z0-9-]*)\)", script.read_text(encoding="utf-8"), re.MULTILINE):
        options.add(name, set())  # a case of a shell script
    for path in (script, script.with_name(f"{script.name.replace('-', '_')}.py")):
        if path.is_file() and b"bash" not in path.read_bytes().partition(b"\n")[0]:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and OPTION.fullmatch(node.value):
                    options.add(node.value, set())
                if isinstance(node, ast.FunctionDef) and node.name == "main":
                    for argument in node.args.args:
                        options.add(f"--{argument.arg.replace('_', '-')}", set())
    return options


PASSED_ON = ("lm-eval",)
"""Commands whose options are another program's."""


class Commands:
    """All commands of the project."""

    def __init__(self, root: Path = ROOT) -> None:
        self.hybridge = hybridge_commands()
        scripts = [path for path in (root / "scripts").iterdir() if path.is_file() and not path.suffix]
        self.scripts = {f"scripts/{path.name}": script_options(path) for path in scripts}
        self.scripts["scripts/demo"] = self.hybridge["demo"]  # which hands its words on
        self.any = Options()
        for options in (*self.hybridge.values(), *self.scripts.values()):
            for name, values in options.values.items():
                self.any.add(name, values)

    def faults(self, line: str) -> Iterator[str]:
        """What is wrong with a command line, or with an option that stands alone; other programs are not looked at."""
        words = split(line)
        if not words:
            return
        if words[0] == "hybridge" and len(words) > 1:
            name = " ".join(words[1:3]) if " ".join(words[1:3]) in self.hybridge else words[1]
            name = "" if name.startswith("-") else name  # hybridge --version
            if name not in self.hybridge:
                yield f"there is no command hybridge {name}"
                return
            if name not in PASSED_ON:
                yield from self.hybridge[name].faults(words)
        elif words[0].startswith("scripts/") and "." not in words[0]:  # others are files
            if words[0] not in self.scripts:
                yield f"there is no script {words[0]}"
                return
            yield from self.scripts[words[0]].faults(words)
        elif words[0].startswith("--"):
            yield from self.any.faults(words)


def split(line: str) -> list[str]:
    """The words of a shell's line without its comment."""
    try:
        return shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:  # a quotation mark that is no shell's
        return line.split()
