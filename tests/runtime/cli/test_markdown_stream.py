"""Markdown that is shown while it is written, on a terminal's screen."""

import io
import os
import random
import shutil
import sys

import pytest
from rich.console import Console
from screen import Screen

from hybridge.runtime.cli.console import WordWrap
from hybridge.runtime.cli.markdown import PADDING, AnswerMarkdown, MarkdownStream

ANSWER = """# Sorting

There are *two* ways to sort, and a **third** one that nobody should use
in a program.
Each has `O(n log n)`:

1. merge
2. heap
   - in place

```python
def merge(one, other):
    while one and other:
        yield min(one, other, key=lambda each: each[0]).pop(0)
```

| way | memory |
|---|---:|
| merge sort | n |
| heap sort, which is in place | 1 |

> Measure first.

Done.
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def whole(text: str, columns: int) -> str:
    """Return what a text looks like that is printed at once."""
    console = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
    console.print(AnswerMarkdown(text))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(PADDING.sub("", line) for line in console.file.getvalue().strip("\n").split("\n"))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch):
    """Show an answer in pieces; return the screen, and the number of characters that were written."""

    def show(text: str, columns: int, height: int, seed: int, begun: str = "") -> tuple[Screen, int]:
        terminal, screen, pieces = Terminal(), Screen(columns, height), random.Random(seed)
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((columns, height)))
        monkeypatch.setattr("hybridge.runtime.cli.markdown.LEAST_SECONDS", 0)
        monkeypatch.setattr("hybridge.runtime.cli.markdown.SHARE", 0)
        stream = MarkdownStream(begun)
        while text:
            count = pieces.randint(1, 8)
            stream.write(text[:count])
            text = text[count:]
        stream.end()
        written = terminal.getvalue()
        screen.feed(written)
        return screen, len(written)

    return show


@pytest.mark.parametrize(("columns", "height"), [(80, 40), (20, 40), (80, 6), (20, 5)])
def test_an_answer_in_pieces_looks_as_one_that_is_printed_at_once(shown, columns: int, height: int) -> None:
    screen, _ = shown(ANSWER, columns, height, seed=columns + height)
    assert screen.text.rstrip("\n") == whole(ANSWER, columns)
    assert all(len(line) <= columns for line in screen.lines)


def test_a_long_answer_is_not_printed_again_and_again(shown) -> None:
    text = "".join(f"Line {i} of an answer that is much longer than the screen is high.\n" for i in range(40))
    _, written = shown(text, 80, 10, seed=1)
    assert written < 12 * len(text), "each piece of four letters and a half redraws a line"


def test_a_continued_answer_goes_on_in_its_block(shown) -> None:
    begun, rest = ANSWER[: ANSWER.index("while")], ANSWER[ANSWER.index("while") :]
    screen, _ = shown(rest, 80, 40, seed=2, begun=begun)
    assert screen.text.rstrip("\n") == whole(ANSWER[ANSWER.index("```python") :], 80)


def test_what_a_model_writes_cannot_command_the_terminal(shown) -> None:
    screen, _ = shown("one \x1b[2J\x1b]0;title\x07 two\x9b31m", 80, 24, seed=3)
    assert screen.text.startswith("one �[2J�]0;title� two�31m")


def test_reasoning_breaks_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((20, 24)))
    wrap, text = WordWrap(), "the quick brown fox jumps over a supercalifragilisticexpialidocious dog\nand again"
    written = "".join(map(wrap.push, text)) + wrap.finish()
    assert written == ("the quick brown fox \njumps over a \nsupercalifragilisticexpialidocious dog\nand again")
