"""The prompt of ``hybridge run``: where it comes from, and whether the chat template goes around it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.runtime.chat.parts import Render

STDIN = "-"
LARGEST = 64 << 20
"""Bytes; far more than any artifact holds tokens."""


@dataclass(frozen=True)
class RunPrompt:
    """A prompt: the text as it was given, its tokens, and what stands before the continuation where it is shown.

    rendered: what the chat template made of it, if it did.
    """

    text: str
    ids: list[int]
    shown: str
    rendered: str = ""


def as_text(tokenizer: Tokenizer, text: str) -> RunPrompt:
    """Return a text to be continued, which is shown with what follows it."""
    return RunPrompt(text, tokenizer.encode(text).ids, text)


def as_message(tokenizer: Tokenizer, text: str, system: Sequence[str], render: Render) -> RunPrompt:
    """Return a message to be answered, in the words of the chat template; only the answer is shown."""
    opening = [{"role": "system", "content": told} for told in system]
    rendered = render([*opening, {"role": "user", "content": text}])
    return RunPrompt(text, tokenizer.encode(rendered, add_special_tokens=False).ids, "", rendered)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the text that was given, or that is in ``file`` or on stdin. Raises UsageError for none, two or no text."""
    if prompt is not None and file is not None:
        raise UsageError("--prompt and --prompt-file exclude each other; give one of them.")
    if prompt is None and file is None:
        raise UsageError("there is no text to continue; give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE.")
    if prompt == STDIN or file == Path(STDIN):
        return _text(sys.stdin.buffer, "stdin")
    if file is None:
        assert prompt is not None
        return prompt
    try:
        with file.open("rb") as opened:
            return _text(opened, str(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}); give a text file.") from None


def _text(source: BinaryIO, name: str) -> str:
    """Read it all without the end of its last line, which is the file's and not the text's."""
    content = source.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UsageError(f"{name} has more than {LARGEST >> 20} MB, which no artifact can read; give a shorter text.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text ({error.reason} at byte {error.start}); convert it.") from None
    return text.removesuffix("\n").removesuffix("\r")
