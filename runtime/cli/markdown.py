"""Show Markdown while it is written: finished blocks once, and the open block in place, redrawn from its first changed line."""

from __future__ import annotations

import re
import shutil
import sys
import time
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax

from hybridge.runtime.cli.console import printable

LEAST_SECONDS = 0.05
"""Time between two redraws; more where a redraw takes long."""
SHARE = 10
"""Redrawing takes at most a tenth of the time: the model computes on the same cores."""
PADDING = re.compile(r" +((?:\x1b\[0m)?)$")


class PlainHeading(Heading):
    """A heading on the left; rich would put the first one in a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the heading's text."""
        self.text.justify = "left"
        yield self.text


class PlainCode(CodeBlock):
    """Code in colors on the terminal's own background, without padding, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the highlighted code."""
        code = str(self.text).rstrip()
        yield Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True, background_color="default")


class AnswerMarkdown(Markdown):
    """Markdown as models write it: a line break in a paragraph is one."""

    elements: ClassVar = {**Markdown.elements, "heading_open": PlainHeading, "fence": PlainCode, "code_block": PlainCode}

    def __init__(self, text: str) -> None:
        super().__init__(text, hyperlinks=False)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


class MarkdownStream:
    """Writes an answer to a terminal as its pieces come.

    What is above the open block is final. A block that outgrows the screen keeps its lines above the screen as they were drawn;
    of a table, whose columns may still widen, the last lines are shown, and the whole once it is complete.
    """

    def __init__(self, begun: str = "") -> None:
        """begun: text before the stream, whose last block goes on in it."""
        self._parser = MarkdownIt().enable("strikethrough").enable("table")
        self._text = ""
        self._drawn: list[str] = []
        self._first = 0
        """Of the drawn lines, the first one that is on the screen."""
        self._has_blocks = False
        self._width = 0
        self._next_draw = 0.0
        if begun:
            self._text = printable(begun)
            _, self._text = self._last_block()
            self._draw()

    def write(self, piece: str) -> None:
        """Show the next piece of the answer."""
        self._text += printable(piece)
        now = time.monotonic()
        if now < self._next_draw:
            return
        self._draw()
        self._next_draw = now + max(LEAST_SECONDS, SHARE * (time.monotonic() - now))

    def end(self) -> None:
        """Show what is left."""
        self._draw()
        self._finish(self._text)
        self._text, self._has_blocks = "", False

    def _draw(self) -> None:
        finished, last = self._last_block()
        if finished:
            self._finish(finished)
            self._text = last
        shown, room = self._lines(last), max(1, shutil.get_terminal_size().lines - 1)
        is_table = self._parser.parse(last)[:1] and self._parser.parse(last)[0].type == "table_open"
        self._show(shown[-room:] if is_table else shown, room)

    def _last_block(self) -> tuple[str, str]:
        """Return the text of the blocks that are complete, and that of the last one."""
        starts = [token.map[0] for token in self._parser.parse(self._text) if token.level == 0 and token.map]
        lines = re.split(r"(?<=\n)", self._text)
        return "".join(lines[: starts[-1]]) if starts else "", "".join(lines[starts[-1] :]) if starts else self._text

    def _finish(self, text: str) -> None:
        """Draw blocks for the last time."""
        lines = self._lines(text)
        self._show(lines, len(lines) + 1)
        self._has_blocks = self._has_blocks or bool(lines)
        self._drawn, self._first = [], 0

    def _lines(self, text: str) -> list[str]:
        width = shutil.get_terminal_size().columns
        if width < self._width:  # the terminal broke the drawn lines anew, so it is unknown where they are
            self._drawn, self._first = [], 0
        self._width = width
        if not text.strip():
            return []
        console = Console(file=sys.stdout, width=width, force_terminal=True, legacy_windows=False)
        with console.capture() as captured:
            console.print(AnswerMarkdown(text))
        lines = [PADDING.sub(r"\1", line) for line in captured.get().strip("\n").split("\n")]
        return ["", *lines] if self._has_blocks else lines

    def _show(self, lines: list[str], room: int) -> None:
        """Redraw from the first line that differs, in one write, so that nothing flickers."""
        same = self._first
        while same < min(len(lines), len(self._drawn)) and lines[same] == self._drawn[same]:
            same += 1
        if same == len(lines) == len(self._drawn):
            return
        back = len(self._drawn) - min(same, len(self._drawn))
        sys.stdout.write((f"\x1b[{back}A" if back else "") + "\r\x1b[J" + "".join(f"{line}\n" for line in lines[same:]))
        sys.stdout.flush()
        self._drawn, self._first = lines, max(0, len(lines) - room)
