"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars and line ends in its cells are kept from ending them."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines) + "\n"


def fence(text: str, language: str) -> str:
    """Return a block of code."""
    ticks = "````" if "```" in text else "```"
    return f"{ticks}{language}\n{text.strip(chr(10))}\n{ticks}\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
