"""Find how a chat template writes conversations: the strings around the contents of messages, which apps need no Jinja for.

The template is asked for conversations of words that occur nowhere else; what stands between them is the format. Then the words
get white space around them, to see what is trimmed, and texts of the template itself, to see which of them it reads as more
than text. What is found is kept only if the core writes ``CONVERSATIONS`` random conversations as the template does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError

from hybridge.cache.errors import UsageError
from hybridge.runtime.artifacts.chat_format import (
    DATE,
    REASONING_PLACE,
    AnswerEntry,
    ChatFormatEntry,
    PicturesEntry,
    ReasonedEntry,
    RenderingEntry,
    RenderingsEntry,
    RoleEntry,
    SectionEntry,
    TrimEntry,
    Trimmed,
)
from hybridge.runtime.artifacts.options import PictureDescription
from hybridge.runtime.core.chat import message_content, render_chat
from hybridge.runtime.core.jinja import DATES_STAY
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, CoreFormat
from hybridge.runtime.text.chat_template import ChatTemplates, Message, Render, answer_format_of
from hybridge.runtime.text.response_template import REASONING, TemplateFormat, without_calls

CONVERSATIONS = 500
SYSTEM, ASKED, ANSWERED, ASKED_AGAIN, OTHER, ASKED_LAST, THOUGHT = (
    f"qz{name}zq" for name in ("sys", "one", "two", "three", "four", "five", "why")
)
"""Words of the conversations that a template is asked for."""
GONE = "qzgonezq"
THINK_END = "</think>"
PADDING = "\n \t\n"
"""White space around a word, of which the kinds of trimming leave different parts."""
DATE_PLACE = re.compile(re.escape(DATE.format(format="%%")).replace("%%", "([^']*)"))
DATES = ("2001-02-03T04:05:06", "2022-11-12T13:14:15")
LEADS = ("<|channel|>", "<|start|>assistant<|channel|>")
CHANNELS = [
    SectionEntry(kind="reasoning", open=[f"{lead}analysis<|message|>" for lead in LEADS], close=["<|end|>"]),
    SectionEntry(
        kind="content",
        open=[f"{lead}{name}<|message|>" for lead in LEADS for name in ("final", "commentary")],
        close=["<|end|>", "<|return|>"],
    ),
]
"""Sections of gpt-oss' answers."""


class InexpressibleError(Exception):
    """The template does what strings around contents cannot say; the message says what."""


@dataclass(frozen=True)
class FoundFormat:
    """A chat format, or None and the reason why there is none."""

    entry: ChatFormatEntry | None
    reason: str | None = None


@dataclass(frozen=True)
class WrittenFolder:
    """The files that an export has written so far, in a folder whose name nobody will know."""

    path: Path
    folder: Path = Path("the checkpoint")

    @property
    def names(self) -> Collection[str]:
        """Return the names of the files."""
        return [path.name for path in self.path.iterdir()]

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return (self.path / name).read_bytes()


def chat_format_of(folder: Path, pictures: PictureDescription | None = None) -> FoundFormat:
    """Return the chat format of the tokenizer's files in ``folder``, of a model that takes ``pictures``."""
    files = WrittenFolder(folder)
    if "tokenizer.json" not in files.names:
        return FoundFormat(None, "there is no tokenizer.json, so words cannot be made tokens of")
    try:
        form = answer_format_of(files, Tokenizer(files.read("tokenizer.json")))
        return find_chat_format(ChatTemplates.of(files, pictures), form)
    except UsageError as error:
        return FoundFormat(None, str(error))


def find_chat_format(templates: ChatTemplates, form: AnswerFormat | None, seed: int = 0) -> FoundFormat:
    """Return the chat format of a model's default template.

    Args:
        templates: of the artifact.
        form: the format of its answers, if it is known.
        seed: of the random conversations.
    """
    try:
        template = templates.chosen(tools=False)
        renderings = {"default": _rendering(_plain(templates), template, seed)}
        for name, switch in (("thinking", True), ("no_thinking", False)):
            if (render := _switched(templates, switch)) is not None:
                renderings[name] = _rendering(render, template, seed)
    except (UsageError, InexpressibleError) as error:
        return FoundFormat(None, f"the chat template cannot be written without Jinja: {error}")
    sections, rest_is_content = sections_of(form)
    return FoundFormat(
        ChatFormatEntry(renderings=RenderingsEntry(**renderings), sections=sections, rest_is_content=rest_is_content)
    )


def _plain(templates: ChatTemplates) -> Render:
    """Return a render with places in place of dates. Raises InexpressibleError if dates do more than stand in the text."""
    render = templates.with_variables({}, now=DATES_STAY)
    text = render(_asked(ASKED))
    for now in DATES:
        wanted, date = templates.with_variables({}, now=now)(_asked(ASKED)), datetime.fromisoformat(now)
        filled = DATE_PLACE.sub(lambda place, date=date: date.strftime(place[1]), text)  # type: ignore[misc]
        if filled != wanted:
            raise InexpressibleError("its text depends on the date")
    return render


def _switched(templates: ChatTemplates, thinking: bool) -> Render | None:
    """Return a render with thinking switched on or off, or None if the template has no switch."""
    try:
        return templates.with_variables({}, thinking, now=DATES_STAY)
    except UsageError:
        return None


def sections_of(form: AnswerFormat | None) -> tuple[list[SectionEntry], bool]:
    """Return the sections of a model's answers, as far as plain texts mark them, and whether what is outside is content."""
    if isinstance(form, CoreFormat):
        if form.description["has_channels"]:
            return CHANNELS, False
        opening, closing = form.description["reasoning_open"], form.description["reasoning_close"]
        return [SectionEntry(kind="reasoning", open=opening, close=closing)] if opening else [], True
    if not isinstance(form, TemplateFormat):
        return [], True
    sections, rest_is_content = [], False
    for name, each in without_calls(form.response)["fields"].items():
        if "open" in each:
            marks = {key: [value] if isinstance(value := each.get(key, []), str) else value for key in ("open", "close")}
            sections.append(SectionEntry(kind="reasoning" if name in REASONING else "content", **marks))
        elif "open_pattern" in each:
            return [], True
        else:
            rest_is_content = True
    return sections, rest_is_content


# One rendering


def _rendering(render: Render, template: str, seed: int) -> RenderingEntry:
    """Return how ``render`` writes conversations. Raises InexpressibleError, and UsageError if it refuses one."""
    derivation = Derivation(render)
    literals = list(_literals(template))
    found = _with_reserved(derivation.rendering(), render, literals)
    _verify(found, render, literals, seed)
    if (pictures := derivation.pictures()) is None:
        return found
    shown = _with_reserved(found.model_copy(update={"pictures": pictures}), render, literals)
    try:
        _verify(shown, render, literals, seed)
    except InexpressibleError:
        return found  # texts are written, and pictures are refused by name
    return shown


@dataclass
class Derivation:
    """Finds the strings between the words of conversations. before, answer: those around a first message."""

    render: Render
    before: str = field(init=False)
    answer: str = field(init=False)

    def __post_init__(self) -> None:
        self.before, self.answer = _between(self.render(_asked(ASKED)), ASKED)

    def rendering(self) -> RenderingEntry:
        """Return the rendering but for reserved words. Raises InexpressibleError."""
        earlier, last = (self._answer(_Place(is_last)) for is_last in (False, True))
        user = RoleEntry(before=self.before, trim=self._trim(_asked, self.before, self.answer))
        found = RenderingEntry(system=self._system(), user=user, earlier=earlier, last=last, answer=self.answer)
        return found.model_copy(update={"dates": sorted(set(DATE_PLACE.findall(found.model_dump_json())))})

    def pictures(self) -> PicturesEntry | None:
        """Return how the pictures of a question are written, or None if the template has no place for them."""
        try:
            one, two = (self.render(_shown(ASKED, count)) for count in (1, 2))
            each = _cut(one, self.before, ASKED + self.answer)
            self._check(bool(each) and two == f"{self.before}{each}{each}{ASKED}{self.answer}", "pictures change the text")
            return PicturesEntry(
                each=each, words=RoleEntry(before="", trim=self._trim(_shown, self.before + each, self.answer))
            )
        except (UsageError, InexpressibleError):
            return None

    def _system(self) -> RoleEntry | None:
        try:
            text = self.render(_instructed(SYSTEM))
        except UsageError:
            return None
        before, after, answer = _between(text, SYSTEM, ASKED)
        self._check(answer == self.answer, "with a message of the system, another text opens the answer")
        tail = after + ASKED + answer
        role = RoleEntry(before=before, after=after, trim=self._trim(_instructed, before, tail))
        return self._with_empty(role, _instructed, "", ASKED + answer)

    def _answer(self, place: _Place) -> AnswerEntry:
        """Return how an answer at a place is written."""
        around = place.around(self.render)
        plain, reasoned = self._plain_answer(place, *around), self._reasoned_answer(place, *around)
        if reasoned.between is None and RoleEntry(**dict(_role_fields(reasoned))) == plain:
            return AnswerEntry(plain=plain, reasoned=None)
        return AnswerEntry(plain=plain, reasoned=reasoned)

    def _plain_answer(self, place: _Place, head: str, tail: str) -> RoleEntry:
        before, after = _between(_cut(self.render(place(ANSWERED)), head, tail), ANSWERED)
        return self._role(place, head, before, after, tail)

    def _reasoned_answer(self, place: _Place, head: str, tail: str) -> ReasonedEntry:
        def messages(content: str) -> list[Message]:
            return place(content, THOUGHT)

        text = _cut(self.render(messages(ANSWERED)), head, tail)
        if THOUGHT not in text:
            before, after = _between(text, ANSWERED)
            return ReasonedEntry(**dict(_role_fields(self._role(messages, head, before, after, tail))))
        before, between, after = _between(text, THOUGHT, ANSWERED)
        role = self._role(messages, head, before + THOUGHT + between, after, tail)
        end = between + ANSWERED + after + tail
        trim = self._trim(lambda thought: place(ANSWERED, thought), head + before, end, word=THOUGHT)
        fields = {**dict(_role_fields(role)), "before": before}
        return ReasonedEntry(**fields, between=between, trim_reasoning=trim)

    def _role(self, messages: Callable[[str], list[Message]], head: str, before: str, after: str, tail: str) -> RoleEntry:
        """Return how answers are written that have ``before`` and ``after`` around them, between ``head`` and ``tail``."""
        trim = self._trim(messages, head + before, after + tail)
        behind_last = self.render(messages(f"{GONE}{THINK_END}{GONE}{THINK_END}{ANSWERED}"))
        last_of = THINK_END if ANSWERED in behind_last and GONE not in behind_last else ""
        trim_last = self._trim(messages, head + before, after + tail, prefix=GONE + last_of) if last_of else TrimEntry()
        role = RoleEntry(before=before, after=after, trim=trim, last_of=last_of, trim_last=trim_last)
        return self._with_empty(role, messages, head, tail)

    def _with_empty(self, role: RoleEntry, messages: Callable[[str], list[Message]], head: str, tail: str) -> RoleEntry:
        """Return the role with what is written for a message without content, if that differs or is refused."""
        try:
            empty = _cut(self.render(messages("")), head, tail)
        except UsageError:
            return role.model_copy(update={"refuses_empty": True})
        empty = empty.replace(THOUGHT, REASONING_PLACE)
        usual = (role.before + role.after).replace(THOUGHT, REASONING_PLACE)
        return role if empty == usual else role.model_copy(update={"empty": empty})

    def _trim(
        self, messages: Callable[[str], list[Message]], before: str, after: str, *, prefix: str = "", word: str = GONE
    ) -> TrimEntry:
        """Return what is trimmed of a content in front of which is ``prefix``; ``before`` and ``after`` are around it."""
        text = self.render(messages(prefix + PADDING + word + PADDING))
        head, found, tail = text.partition(word)
        self._check(
            bool(found) and head.startswith(before) and tail.endswith(after),
            "white space in a message changes the text around it",
        )
        left, right = head[len(before) :], tail[: len(tail) - len(after)]
        lefts: dict[str, Trimmed] = {PADDING: "nothing", "": "whitespace", PADDING.lstrip("\n"): "newlines"}
        rights: dict[str, Trimmed] = {PADDING: "nothing", "": "whitespace", PADDING.rstrip("\n"): "newlines"}
        self._check(left in lefts and right in rights, "white space around a message is changed")
        return TrimEntry(left=lefts[left], right=rights[right])

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise InexpressibleError(otherwise)


def _asked(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


def _shown(content: str, pictures: int = 1) -> list[Message]:
    return [{"role": "user", "content": message_content(content, pictures)}]


def _instructed(content: str) -> list[Message]:
    return [{"role": "system", "content": content}, *_asked(ASKED)]


@dataclass(frozen=True)
class _Place:
    """The place of an answer in a conversation: the last one, or one before it, or the only one."""

    is_last: bool
    is_alone: bool = False

    def __call__(self, content: str, reasoning: str | None = None) -> list[Message]:
        said: Message = {"role": "assistant", "content": content}
        if reasoning is not None:
            said["reasoning_content"] = reasoning
        if self.is_alone:
            return [*_asked(ASKED), said, *_asked(ASKED_LAST)]
        other: Message = {"role": "assistant", "content": OTHER}
        first, last = (other, said) if self.is_last else (said, other)
        return [*_asked(ASKED), first, *_asked(ASKED_AGAIN), last, *_asked(ASKED_LAST)]

    def around(self, render: Render) -> tuple[str, str]:
        """Return what is written before and behind the answer, up to the words of the messages next to it."""
        text = render(self(ANSWERED))
        before, after = (ASKED_AGAIN, ASKED_LAST) if self.is_last else (ASKED, ASKED_AGAIN)
        middle = (OTHER, ASKED_AGAIN, ANSWERED) if self.is_last else (ANSWERED, ASKED_AGAIN, OTHER)
        _between(text, ASKED, *middle, ASKED_LAST)  # each is there once
        return text[: text.index(before) + len(before)], text[text.index(after) :]


def _cut(text: str, head: str, tail: str) -> str:
    """Return what is between a beginning and an end. Raises InexpressibleError if the text has them not."""
    if len(text) < len(head) + len(tail) or not text.startswith(head) or not text.endswith(tail):
        raise InexpressibleError("what a message says changes the text around other messages")
    return text[len(head) : len(text) - len(tail)]


def _role_fields(role: RoleEntry) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(role, name)) for name in RoleEntry.model_fields)


def _between(text: str, *words: str) -> list[str]:
    """Return the strings before, between and after words. Raises InexpressibleError unless each is there once, in order."""
    pieces = []
    for word in words:
        piece, found, text = text.partition(word)
        if not found or word in text:
            raise InexpressibleError("a message is left out, written twice or in another place")
        pieces.append(piece)
    return [*pieces, text]


# Words that a template reads as more than text


def _literals(template: str) -> Iterator[str]:
    """Yield the texts between quotation marks in a template, each once."""
    seen = set[str]()
    try:
        for _, kind, value in Environment(autoescape=True, extensions=["jinja2.ext.loopcontrols"]).lex(template):
            text = value[1:-1].replace("\\n", "\n").replace("\\'", "'").replace('\\"', '"') if kind == "string" else ""
            if len(text.strip()) > 1 and text not in seen and len(text) <= 100:
                seen.add(text)
                yield text
    except TemplateSyntaxError:
        return  # rendering has reported it


def _spelled(literal: str) -> list[str]:
    """Return contents in which a template may look for a literal."""
    closed = f"{literal}a{literal.replace('<', '</', 1)}"
    return [f"a{literal}b", f"{literal}b", f"a{literal}", literal, closed]


def _with_reserved(found: RenderingEntry, render: Render, literals: Sequence[str]) -> RenderingEntry:
    """Return the rendering with the words that the template does not take as text, for each role."""
    written = _json(found)
    tried = list(dict.fromkeys([*literals, "<think>", THINK_END, "/think", "/no_think"]))

    def marked(role: RoleEntry, *conversations: Callable[[str], list[Message]]) -> Any:
        def is_text(content: str) -> bool:
            return all(_is_same(written, render, messages(content)) for messages in conversations)

        reserved = [literal for literal in tried if not all(map(is_text, _spelled(literal)))]
        return role.model_copy(update={"reserved": reserved, "refuses_empty": role.refuses_empty or not is_text("")})

    def answer(entry: AnswerEntry, *places: _Place) -> AnswerEntry:
        def reasoned(place: _Place) -> Callable[[str], list[Message]]:
            return lambda content: place(content, THOUGHT)

        plain = marked(entry.plain, *places)
        return AnswerEntry(plain=plain, reasoned=entry.reasoned and marked(entry.reasoned, *map(reasoned, places)))

    return found.model_copy(
        update={
            "system": found.system and marked(found.system, _instructed),
            "user": marked(found.user, *_questions()),
            "pictures": found.pictures
            and found.pictures.model_copy(update={"words": marked(found.pictures.words, _shown, *_shown_with_answers())}),
            "earlier": answer(found.earlier, _Place(is_last=False)),
            "last": answer(found.last, _Place(is_last=True), _Place(is_last=True, is_alone=True)),
        }
    )


def _questions() -> Iterator[Callable[[str], list[Message]]]:
    """Yield conversations with a question of given words: alone, and before or behind an answer."""
    yield _asked
    for reasoning in ({}, {"reasoning_content": THOUGHT}):
        answer: Message = {"role": "assistant", "content": f"\n{ANSWERED}", **reasoning}
        yield lambda content, answer=answer: [*_asked(content), answer, *_asked(ASKED_LAST)]  # type: ignore[misc]
        yield lambda content, answer=answer: [*_asked(ASKED), answer, *_asked(content)]  # type: ignore[misc]


def _shown_with_answers() -> Iterator[Callable[[str], list[Message]]]:
    """Yield conversations with a question of given words behind pictures, before or behind an answer."""
    answer: Message = {"role": "assistant", "content": ANSWERED}
    yield lambda content: [*_shown(content), answer, *_asked(ASKED_LAST)]
    yield lambda content: [*_asked(ASKED), answer, *_shown(content, 2)]


def _is_same(written: str, render: Render, messages: list[Message]) -> bool:
    """Return whether the core writes a conversation by the chat format ``written`` as the template does."""
    try:
        wanted = render(messages)
    except UsageError:
        return False
    return render_chat(written, messages).text == wanted


def _json(found: RenderingEntry) -> str:
    """Return a chat format of one rendering, with places for dates left as they are."""
    dateless = found.model_copy(update={"dates": []})
    return ChatFormatEntry(renderings=RenderingsEntry(default=dateless), sections=[]).model_dump_json()


# Random conversations


PIECES = [
    *(
        "",
        " ",
        "\n",
        "\t",
        "\n\n",
        "  \n",
        "\u00a0",
        "\u3000",
        "\x1c",
        "a",
        "word",
        "two words",
        "0",
        "{{ x }}",
        "{% if %}",
        "{#",
    ),
    *("<", "&amp;", '"', "'", "\\n", "é", "漢字", "👩\u200d🚀", "\u202b", "```", "# A", "None", "/", "</", "<|", "|>"),
]


def verify_rendering(found: RenderingEntry, templates: ChatTemplates, count: int, seed: int) -> None:
    """Compare the core with a model's default template on ``count`` conversations.

    Raises:
        InexpressibleError: they write one differently; UsageError: the template refuses one.
    """
    _verify(found, _plain(templates), [*_literals(templates.chosen(tools=False))], seed, count)


def _verify(found: RenderingEntry, render: Render, literals: list[str], seed: int, count: int = CONVERSATIONS) -> None:
    """Compare the core with the template. Raises InexpressibleError for a conversation that they write differently."""
    written, chance = _json(found), random.Random(seed)
    for _ in range(count):
        messages = _random_conversation(found, literals, chance)
        if not _is_same(written, render, messages):
            said = ", ".join(f"{each['role']}: {each['content'][:40]!r}" for each in messages)
            raise InexpressibleError(f"it writes this conversation in a way of its own: {said[:400]}")


def _random_conversation(found: RenderingEntry, literals: list[str], chance: random.Random) -> list[Message]:
    def words(role: RoleEntry, *, some: bool = False) -> str:
        free = [*PIECES, *(each for each in literals if not any(mark in each for mark in role.reserved))]
        while True:
            text = "".join(chance.choices(free, k=chance.randrange(1 if some else 0, 6)))
            is_said = text.strip() or not (some or role.refuses_empty)
            if is_said and not any(mark in text for mark in role.reserved):
                return text

    def question() -> Message:
        if found.pictures is None or chance.random() < 0.5:
            return {"role": "user", "content": words(found.user)}
        return _shown(words(found.pictures.words), chance.randrange(1, 4))[0]

    messages: list[Message] = []
    if found.system is not None and chance.random() < 0.5:
        messages.append({"role": "system", "content": words(found.system)})
    count = chance.randrange(6)
    for number in range(count):
        answer = found.last if number == count - 1 else found.earlier
        said: Message = {"role": "assistant", "content": words(answer.plain)}
        if chance.random() < 0.4:
            role = answer.reasoned or answer.plain
            said = {"role": "assistant", "content": words(role), "reasoning_content": words(role, some=True)}
        messages += [question(), said]
    return [*messages, question()]
