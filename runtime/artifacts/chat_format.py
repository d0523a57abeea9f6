"""The chat format in a manifest: the strings around the contents of messages, by which apps write conversations without Jinja.

The core reads it (``runtime/native/text/chat_format.h`` says what each entry means); ``export/write/chat_format.py`` finds it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(max_length=1 << 16)]
Mark = Annotated[str, StringConstraints(min_length=1, max_length=1 << 10)]
DATE = "{{{{ strftime_now('{format}') }}}}"
"""A place for the date and time, in the strings of a rendering: as templates have it."""
REASONING_PLACE = "{{ reasoning }}"
"""A place for the reasoning, in what is written for an answer that has nothing else."""
Trimmed = Literal["nothing", "whitespace", "newlines"]


class ChatEntry(BaseModel):
    """Base of what a chat format holds: immutable, no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TrimEntry(ChatEntry):
    """What is taken off either end of a content."""

    left: Trimmed = "nothing"
    right: Trimmed = "nothing"


class RoleEntry(ChatEntry):
    """The strings around the messages of a role, and what becomes of their content.

    empty: what is written in place of a message whose content is empty, once it is trimmed; None for the strings around it.
    last_of: of a content that has this in it, only what is behind the last one is written. reserved: words that the template
    reads as something else than text.
    """

    before: Text
    after: Text = ""
    empty: Text | None = None
    refuses_empty: bool = False
    trim: TrimEntry = TrimEntry()
    last_of: Annotated[str, StringConstraints(max_length=1 << 10)] = ""
    trim_last: TrimEntry = TrimEntry()
    reserved: Annotated[list[Mark], Field(max_length=256)] = Field(default_factory=list)


class ReasonedEntry(RoleEntry):
    """An answer that had reasoning. between: what is written between that and the content; None where it is dropped."""

    between: Text | None = None
    trim_reasoning: TrimEntry = TrimEntry()


class AnswerEntry(ChatEntry):
    """How an answer is written once there is a message behind it. reasoned: None if reasoning changes nothing."""

    plain: RoleEntry
    reasoned: ReasonedEntry | None


class PicturesEntry(ChatEntry):
    """How the pictures of a user's message are written, before its words. words: what becomes of words behind pictures.

    each: what is written for one picture, with the placeholder in it.
    """

    each: Annotated[str, StringConstraints(min_length=1, max_length=1 << 10)]
    words: RoleEntry


class RenderingEntry(ChatEntry):
    """What conversations are written with. answer: what opens the answer that is asked for.

    system: None if the template takes no such message. earlier, last: answers, the last before the message that is asked.
    dates: formats of dates, which stand in the strings as ``DATE`` says. pictures: None without a place for them.
    """

    system: RoleEntry | None
    user: RoleEntry
    earlier: AnswerEntry
    last: AnswerEntry
    answer: Text
    dates: Annotated[list[Mark], Field(max_length=16)] = Field(default_factory=list)
    pictures: PicturesEntry | None = None


class RenderingsEntry(ChatEntry):
    """Renderings by the template's switch for thinking, if it has one."""

    default: RenderingEntry
    thinking: RenderingEntry | None = None
    no_thinking: RenderingEntry | None = None


class SectionEntry(ChatEntry):
    """A part of an answer that is marked by texts around it; without one that closes it, it lasts to the end."""

    kind: Literal["reasoning", "content"]
    open: Annotated[list[Mark], Field(min_length=1, max_length=256)]
    close: Annotated[list[Mark], Field(max_length=256)]


class ChatFormatEntry(ChatEntry):
    """How conversations are written, and how answers are split. rest_is_content: text outside of sections is content."""

    renderings: RenderingsEntry
    sections: Annotated[list[SectionEntry], Field(max_length=256)]
    rest_is_content: bool = True
