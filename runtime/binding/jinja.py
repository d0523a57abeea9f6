"""Chat templates in Jinja, which the core renders as transformers' sandbox does, within limits."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping
from ctypes import POINTER, byref, c_size_t, c_void_p, string_at
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hybridge.runtime.binding.interface import AnswerFormHandle, CText, SpanStruct, TemplateHandle
from hybridge.runtime.binding.library import copied_text, load, run
from hybridge.runtime.binding.tokenizer import characters_before

Spans = tuple[tuple[int, int], ...]
"""Parts of a text, begin and end in characters."""


@dataclass(frozen=True)
class RenderedChat:
    """The text of a conversation. words: the parts of it that are words of messages, in which special tokens are text."""

    text: str
    words: Spans = ()

    def after(self, place: int) -> RenderedChat:
        """Return the text after its first ``place`` characters."""
        return RenderedChat(self.text[place:], tuple((max(a - place, 0), b - place) for a, b in self.words if b > place))


@dataclass(frozen=True)
class TemplateDescription:
    """The templates of a model.

    thinking_switch: the default one's variable that switches thinking, or ""; sources: of all. warning: why the tokenizer's own
    response template is not followed, or "".
    """

    names: list[str]
    thinking_switch: str
    sources: str
    warning: str


class JinjaTemplate:
    """A template that was read, or those of a model. Threads may share it; one at a time renders by it."""

    def __init__(self, source: str | Path) -> None:
        """Read a template, or the templates of an artifact's folder and its special tokens.

        Raises:
            TemplateError: the template has an error in its syntax.
            ArtifactError: the folder's files are damaged, or not what its manifest says.
        """
        self.handle, self._lock = TemplateHandle(), threading.Lock()
        if isinstance(source, Path):
            run("template_read", CText("the path", os.fsencode(source)), byref(self.handle))
        else:
            data = source.encode("utf-8", "surrogatepass")
            run("template_open", data, len(data), byref(self.handle))
        weakref.finalize(self, load().hybridge_template_close, self.handle)

    @cached_property
    def description(self) -> TemplateDescription:
        """Return what the templates are."""
        return TemplateDescription(**json.loads(copied_text("template_describe", self.handle)))

    def render(
        self, variables: Mapping[str, Any], now: str | None = None, form: AnswerFormHandle | None = None
    ) -> RenderedChat:
        """Return the text for ``variables``: by the template for tools if there are some and the model has one.

        Args:
            variables: by name; those whose names end with ``_token`` are the model's own words. A template sees a value that
                is not JSON as a text that names its type.
            now: the local time in ISO's format, or None for the system's.
            form: the handle of the form of the model's answers; for a template that reads no tools, this tells them in words.

        Raises:
            TemplateError: the template refuses this, or it exceeds a limit.
        """
        given = json.dumps(variables, default=_placeholder).encode()
        time = None if now is None else CText("the time", now.encode())
        text, size, words, count = c_void_p(), c_size_t(), POINTER(SpanStruct)(), c_size_t()
        with self._lock:
            found = byref(text), byref(size), byref(words), byref(count)
            run("template_render", self.handle, form or AnswerFormHandle(), given, len(given), time, *found)
            data = string_at(text.value or 0, size.value)
            spans = [(each.begin, each.end) for each in words[: count.value]]
        written = data.decode()
        if len(written) < len(data):
            places = characters_before(data).tolist()
            spans = [(places[begin], places[end]) for begin, end in spans]
        return RenderedChat(written, tuple(spans))


def _placeholder(value: Any) -> str:
    """Return the text by which a template sees a value that is not JSON."""
    return f"<{type(value).__name__}>"
