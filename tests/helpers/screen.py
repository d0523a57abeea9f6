"""A terminal's screen, as far as the chat draws on one."""

from __future__ import annotations

import re

SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([@-~])|\x1b[@-Z\\^_=>78]")


class Screen:
    """Lines that a program has written, those that scrolled away included.

    The cursor reaches what is on the screen and no more, as a real one does. A wide letter counts as one cell.
    """

    def __init__(self, columns: int = 80, height: int = 24) -> None:
        self.columns, self.height = columns, height
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            found = SEQUENCE.match(text, at)
            if found:
                at = found.end()
                if found[2]:
                    self._command(found[2], found[1])
                continue
            self._put(text[at])
            at += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\b":
            self.column = max(0, self.column - 1)
        elif letter == "\n":
            self._down()
            self.column = 0  # as a terminal's line discipline writes it
        elif letter.isprintable():
            if self.column == self.columns:
                self._down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _command(self, name: str, given: str) -> None:
        count = int(given) if given.isdigit() else 1
        line = self.lines[self.row]
        if name == "A":
            self.row = max(self.row - count, len(self.lines) - self.height, 0)
        elif name == "B":
            self.row = min(self.row + count, len(self.lines) - 1)
        elif name == "C":
            self.column = min(self.column + count, self.columns - 1)
        elif name == "D":
            self.column = max(0, self.column - count)
        elif name == "J":
            self.lines[self.row] = line[: self.column]
            del self.lines[self.row + 1 :]
        elif name == "K":
            self.lines[self.row] = line[: self.column]
