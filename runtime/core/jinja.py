"""Chat templates in Jinja, which the core renders as transformers' sandbox does, within limits."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping
from ctypes import POINTER, byref, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.runtime.core.chat import text_at, utf8
from hybridge.runtime.core.interface import CText, Handle, SpanStruct, Status
from hybridge.runtime.core.library import copied_text, failure, load, run


@dataclass(frozen=True)
class RenderedChat:
    """The text of a conversation, and the parts of it in UTF-8 that are the words of messages, begin and end in bytes."""

    text: str
    words: list[tuple[int, int]]


class TemplateError(Exception):
    """A template has an error in its syntax, refuses its variables or exceeds a limit, for the message's reason."""


class JinjaTemplate:
    """A template that was read, or those of a model. Threads may share it; one at a time renders by it."""

    def __init__(self, source: str | Path) -> None:
        """Read a template, or the templates of an artifact's folder and its special tokens.

        Raises:
            TemplateError: the template has an error in its syntax.
            ArtifactError: the folder's files are damaged.
        """
        self.handle, self._lock = Handle(), threading.Lock()
        if isinstance(source, Path):
            run("template_read", CText("the path", os.fsencode(source)), byref(self.handle))
        else:
            data = utf8(source)
            _check("template_open", load().hybridge_template_open(data, len(data), byref(self.handle)))
        weakref.finalize(self, load().hybridge_template_close, self.handle)

    @property
    def warning(self) -> str:
        """Return why the tokenizer's own response template is not followed, or ""."""
        return str(json.loads(copied_text("template_describe", self.handle))["warning"])

    def render(self, variables: Mapping[str, Any], now: str | None = None) -> RenderedChat:
        """Return the text for ``variables``, and the parts of it that come from them.

        Args:
            variables: by name; those whose names end with ``_token`` are the model's own words. A template sees a value that
                is not JSON as a text that names its type.
            now: the local time in ISO's format, or None for the system's.

        Raises:
            TemplateError: the template refuses this, or it exceeds a limit.
        """
        given = json.dumps(variables, default=_placeholder).encode()
        time = None if now is None else CText("the time", now.encode())
        text, size, words, count = c_void_p(), c_size_t(), POINTER(SpanStruct)(), c_size_t()
        with self._lock:
            status = load().hybridge_template_render(
                self.handle, given, len(given), time, byref(text), byref(size), byref(words), byref(count)
            )
            _check("template_render", status)
            return RenderedChat(text_at(text.value, size.value), [(each.begin, each.end) for each in words[: count.value]])


def _check(call: str, status: int) -> None:
    if status == Status.INVALID_ARGUMENT:
        raise TemplateError(load().hybridge_failure().decode(errors="replace"))
    if status:
        raise failure(call, status)


def _placeholder(value: Any) -> str:
    """Return the text by which a template sees a value that is not JSON."""
    return f"<{type(value).__name__}>"
