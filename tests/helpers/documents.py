"""Markdown files as the parts that can be checked: links, headings, inline code, prose and fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(frozen=True)
class Fence:
    """A fenced block: the first word behind the fence, and what is inside."""

    language: str
    content: str


@dataclass
class Document:
    """The parts of one Markdown text; ``path`` is the file that its links are relative to."""

    path: Path
    links: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Document:
        return cls.parse(path, path.read_text(encoding="utf-8"))

    @classmethod
    def parse(cls, path: Path, text: str) -> Document:
        document = cls(path)
        tokens = MarkdownIt().enable("table").parse(text)
        for before, token in zip([None, *tokens], tokens, strict=False):
            if token.type == "fence":
                document.fences.append(Fence((token.info.split() or [""])[0], token.content))
            for child in token.children or []:
                document._take(child)
            if before is not None and before.type == "heading_open":
                document.headings.append("".join(child.content for child in token.children or []))
        return document

    @property
    def anchors(self) -> set[str]:
        """The headings as GitHub makes them the ends of links."""
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in self.headings}

    def blocks(self, *languages: str) -> list[str]:
        """The fenced blocks of these languages, in order."""
        return [fence.content for fence in self.fences if fence.language in languages]

    def _take(self, token: Token) -> None:
        if token.type == "code_inline":
            self.codes.append(token.content)
        elif token.type == "text":
            self.prose.append(token.content)
        elif token.type in ("link_open", "image"):
            self.links.append(str(token.attrGet("href") or token.attrGet("src")))
