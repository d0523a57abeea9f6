"""Markdown files, and the check that files, commands, options and dotted names that they mention exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import typer.main
from checkout import CHECKOUT
from markdown_it import MarkdownIt

from hybridge.__main__ import tree

TOP = ("cache", "export", "runtime", "docs", "tests", "scripts", "src", "examples", ".ci")
PATH = re.compile(rf"(?<![\w./<-])(?:{'|'.join(map(re.escape, TOP))})/[\w./*-]*")
OPTION = re.compile(r"--[a-z][a-z0-9-]*(?==|$)")
NAME = re.compile(r"([A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)+)(\(.*\))?(\.\w+\(.*\))?")
NOT_OURS = {"llama.cpp", "llama_eagle3.py", "qwen3_5_mtp.py"}
SHELL = ("sh", "console", "")


@dataclass
class Document:
    """The inline code and the fenced blocks (language, content) of a Markdown file."""

    codes: list[str] = field(default_factory=list)
    fences: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Document:
        return cls.parse(path.read_text(encoding="utf-8"))

    @classmethod
    def parse(cls, text: str) -> Document:
        tokens = MarkdownIt().enable("table").parse(text)
        codes = [child.content for token in tokens for child in token.children or [] if child.type == "code_inline"]
        return cls(codes, [(token.info.strip(), token.content) for token in tokens if token.type == "fence"])

    def blocks(self, *languages: str) -> list[str]:
        """Return the contents of the fenced blocks in these languages."""
        return [content for language, content in self.fences if language in languages]

    def faults(self) -> list[str]:
        """Return what the document mentions and does not exist."""
        texts, examples = [*self.codes, *self.blocks(*SHELL)], "".join(self.blocks("cpp", "python"))
        paths = {match[0].rstrip(".,") for text in texts for match in PATH.finditer(text)}
        lines = [line for text in texts for line in text.splitlines()]
        return sorted(
            {f"no file {path}" for path in paths if not any(CHECKOUT.glob(path))}
            | {fault for line in lines for fault in command_faults(line)}
            | {f"no name {code}" for code in self.codes if (match := NAME.fullmatch(code)) and not _exists(match[1], examples)}
        )


def command_faults(line: str) -> Iterator[str]:
    """Yield what a command line names and does not exist: a command or an option; other programs are skipped."""
    try:
        words = shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:  # a quotation mark that is no shell's
        words = line.split()
    options = [match[0] for word in words if (match := OPTION.match(word))]
    if words[:1] == ["hybridge"]:
        command: Any = commands()
        for word in words[1:]:
            if hasattr(command, "commands") and not word.startswith("-"):
                if word not in command.commands:
                    yield f"no command {line}"
                    return
                command = command.commands[word]
        known = {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
        if command.name != "lm-eval":  # whose options are another program's
            yield from (f"no option {name}: {line}" for name in options if name not in known)
    elif words and words[0].startswith(("scripts/", "--")):
        yield from (f"no option {name}: {line}" for name in options if name[2:].replace("-", "_") not in words_of_sources())


def _exists(name: str, examples: str) -> bool:
    """Return whether a dotted name is a file's, or each of its parts occurs in the sources or in the document's examples."""
    parts = re.split(r"\.|::", name)
    known = words_of_sources()
    return name in NOT_OURS or name in known or all(part in known or part in examples for part in parts)


@cache
def commands() -> Any:
    """Return the whole command line, which takes a tenth of a second to make."""
    return typer.main.get_command(tree())


@cache
def words_of_sources() -> frozenset[str]:
    """Return all words of the sources, with `_` for `-`, and the names of files."""
    files = [path for top in TOP if top not in ("docs", "tests") for path in (CHECKOUT / top).rglob("*") if path.is_file()]
    texts = (
        path.read_text(encoding="utf-8", errors="ignore").replace("-", "_") for path in files if path.suffix != ".safetensors"
    )
    words = {part for text in texts for word in re.findall(r"\w+", text) for part in (word, word.strip("_"))}
    return frozenset(words | {path.name for path in files} | {path.stem for path in files} | {"hybridge"})
