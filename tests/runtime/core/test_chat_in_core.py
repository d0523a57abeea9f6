"""Chats in the core against sessions that read everything again, and Python's parser of answers, over models that say what a
test asks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from babbling import END, TEMPLATE, babble, fresh_session, tokens_of, turns_of
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from hybridge.cache.errors import CapacityError, HybridgeError, NumericalError, StateFileError, UsageError
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.export.write.chat_format import find_chat_format
from hybridge.runtime import Session
from hybridge.runtime.core.chat import Chat
from hybridge.runtime.core.checkpoint import PrefixCache
from hybridge.runtime.core.interface import Ending, GenerationStruct, SamplingStruct
from hybridge.runtime.core.programs import TextProgram
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import AnswerFormat, CoreFormat
from hybridge.runtime.text.chat_template import ChatTemplates, Message, render
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings

BYTES = Tokenizer.from_file(EMBEDDED / "tokenizer.json")
THINKING = """
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content and loop.last %}<think>{{ message.reasoning_content }}</think>{% endif %}
{{- message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
"""The form of Qwen3's, which drops earlier reasoning."""


def format_of(template: str, form: AnswerFormat | None = None) -> str:
    found = find_chat_format(ChatTemplates(Path(), {"default": template}, {}), form)
    assert found.entry is not None, found.reason
    return found.entry.model_dump_json()


PLAIN = format_of(TEMPLATE)
THOUGHTFUL = format_of(THINKING, CoreFormat.named("thinking"))


def options(count: int = 25, **further: Any) -> GenerationStruct:
    return GenerationStruct(max_new_tokens=count, **further)


def told(ask: Callable[..., Any], *words: Any, **named: Any) -> str:
    pieces: list[str] = []
    ask(*words, lambda content, reasoning: pieces.append(content), options(), **named)
    return "".join(pieces)


def saying(answer: str) -> Callable[[tuple[int, ...]], Tensor]:
    """A model that says this behind each prompt of THINKING, and then ends; BYTES has a token for each byte."""

    def say(text: tuple[int, ...]) -> Tensor:
        logits = torch.full((260,), -10.0)
        _, _, so_far = bytes(token for token in text if token < 256).rpartition(b"assistant\n")
        rest = answer.encode()[len(so_far) :]
        logits[rest[0] if rest else END] = 10.0
        return logits

    return say


@dataclass
class Plain:
    """A conversation without a state: whatever is asked, a session that was reset reads all of its tokens."""

    session: Session
    tokenizer: Tokenizer
    sampling: Sampling
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[tuple[int, int, str]] = field(default_factory=list)
    """Lengths of the tokens before a message and before its answer, and the conversation's text with the answer."""
    tokens: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    """What a session has read once there was an answer."""

    def say(self, words: str) -> str:
        asked = [*self.messages, {"role": "user", "content": words}]
        text, known = render(TEMPLATE, asked, {}), self.turns[-1][2] if self.turns else ""
        tokens = self.tokens if self.turns and text.startswith(known) else []
        start, rest = len(tokens), text[len(known) :] if tokens else text
        tokens = [*tokens, *self.tokenizer.encode(rest, around=False).ids]
        if len(tokens) >= self.session.max_seq_len:
            raise CapacityError("no room")
        self.messages, self.tokens = asked, tokens
        self.turns.append((start, len(tokens), text))
        return self._answer(text)

    def retry(self, _: str) -> str:
        start, answer, _ = self._last()
        self.messages.pop()
        self.tokens = self.tokens[:answer]
        text = render(TEMPLATE, self.messages, {})
        self.turns[-1] = start, answer, text
        return self._answer(text)

    def undo(self, _: str) -> str:
        start, *_ = self._last()
        self.messages, self.tokens = self.messages[:-2], self.tokens[:start]
        self.turns.pop()
        return ""

    def reset(self, _: str) -> str:
        self.messages, self.turns, self.tokens = [], [], []
        return ""

    def _last(self) -> tuple[int, int, str]:
        if not self.turns:
            raise UsageError("nothing was said")
        return self.turns[-1]

    def _answer(self, asked: str) -> str:
        self.session.reset()
        new = list(self.session.generate(self.tokens, max_new_tokens=25, sampling=self.sampling))
        self.read = [*self.tokens, *new][:-1]
        self.tokens = [*self.tokens, *(token for token in new if token not in self.session.manifest.eos_ids)]
        said = self.tokenizer.decode(self.tokens[self.turns[-1][1] :])
        self.messages = [*self.messages, {"role": "assistant", "content": said}]
        start, answer, _ = self.turns[-1]
        self.turns[-1] = start, answer, asked + said
        return said


class Talks:
    """The same conversation by the chat format, by the template in Jinja, and in the plainest way."""

    def __init__(
        self, session: Callable[[], Session], cache_bytes: int, seed: int | None = None, tokenizer: Path = EMBEDDED
    ) -> None:
        own = Tokenizer.from_file(tokenizer / "tokenizer.json")
        self.sampling = Sampling() if seed is None else Sampling(temperature=0.8, seed=seed)
        self.struct = SamplingStruct(temperature=0.8, seed=seed or 0, has_seed=1) if seed is not None else None
        settings = GenerationSettings(max_new_tokens=25, sampling=self.sampling)
        self.sessions = {"format": session(), "jinja": session()}
        cache = PrefixCache(self.sessions["jinja"].model, cache_bytes)
        self.plain = Plain(session(), own, self.sampling)
        self.format = Chat.over(self.sessions["format"], own, PLAIN, checkpoint_bytes=max(cache_bytes, 1))
        self.jinja = Conversation(
            self.sessions["jinja"], own, lambda said: render(TEMPLATE, said, {}), settings, checkpoints=cache
        )

    def step(self, name: str, words: str) -> None:
        """Do the same to all; all answer, or all refuse."""
        wanted = outcome(lambda: getattr(self.plain, name)(words))
        assert outcome(lambda: self._by_format(name, words)) == wanted, name
        assert outcome(lambda: self._by_jinja(name, words)) == wanted, name
        self.check(name in ("say", "retry") and isinstance(wanted, str))

    def check(self, answered: bool = False) -> None:
        for name, chat in (("format", self.format), ("jinja", self.jinja)):
            read = self.sessions[name].tokens
            assert chat.messages == self.plain.messages
            assert tokens_of(chat) == self.plain.tokens
            assert [(each.start, each.answer) for each in turns_of(chat)] == [each[:2] for each in self.plain.turns]
            assert read == (self.plain.read if answered else self.plain.tokens[: len(read)])
        assert self.sessions["format"].tokens == self.sessions["jinja"].tokens

    def _by_format(self, name: str, words: str) -> str:
        pieces: list[str] = []
        asked = GenerationStruct(max_new_tokens=25)
        if self.struct is not None:
            asked.sampling.contents = self.struct
        match name:
            case "say":
                self.format.send(words, lambda content, _: pieces.append(content), asked)
            case "retry":
                self.format.retry(lambda content, _: pieces.append(content), asked)
            case _:
                getattr(self.format, name)()
        return "".join(pieces)

    def _by_jinja(self, name: str, words: str) -> str:
        return (self.jinja.say(words) if name == "say" else getattr(self.jinja, name)()) or ""


def outcome(ask: Callable[[], str]) -> str | type:
    try:
        return ask()
    except HybridgeError as error:
        return CapacityError if isinstance(error, CapacityError) else HybridgeError


words = st.text("ab .\n#é漢", max_size=30)
steps = st.lists(st.tuples(st.sampled_from(["say", "say", "say", "undo", "retry", "reset"]), words), min_size=1, max_size=12)
saved_steps = st.lists(
    st.tuples(st.sampled_from(["say", "say", "undo", "retry", "save", "load"]), st.text("ab .\n", max_size=5)), max_size=8
)


@settings(max_examples=40, deadline=None)
@given(
    steps=steps,
    slots=st.sampled_from([0, 2, 4]),
    cache_bytes=st.sampled_from([0, 3000, 10**6]),
    seed=st.sampled_from([None, 3]),
)
def test_whatever_is_done_a_chat_says_what_a_session_says_that_reads_everything_again(
    steps: list[tuple[str, str]], slots: int, cache_bytes: int, seed: int | None
) -> None:
    talks = Talks(lambda: fresh_session(slots), cache_bytes, seed)
    for name, said in steps:
        talks.step(name, said)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=saved_steps)
def test_saved_chats_go_on_by_jinja_and_those_by_jinja_go_on_by_a_chat_format(
    kernels_artifact: Path, tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    """Each loads what the other has saved."""
    talks = Talks(lambda: Session.load(kernels_artifact), 10**6, tokenizer=kernels_artifact)
    chats = {"format": talks.format, "jinja": talks.jinja}
    for name, said in [("save", ""), *steps, ("load", ""), ("say", "b")]:
        if name == "save":
            saved = copy.deepcopy((talks.plain.messages, talks.plain.turns, talks.plain.tokens))
            for kind, chat in chats.items():
                chat.save(tmp_path / f"{kind}.state")
        elif name == "load":
            talks.plain.messages, talks.plain.turns, talks.plain.tokens = copy.deepcopy(saved)
            for kind, other in (("format", "jinja"), ("jinja", "format")):
                chats[kind].load(tmp_path / f"{other}.state")
            talks.check()
        else:
            talks.step(name, said)


def test_a_saved_chat_whose_template_rewrites_the_past_can_be_undone(kernels_artifact: Path, tmp_path: Path) -> None:
    own = Tokenizer.from_file(kernels_artifact / "tokenizer.json")

    def begun() -> Conversation:
        def numbered(said: list[Message]) -> str:
            return "." * (20 - len(said)) + render(TEMPLATE, said, {})  # so that earlier turns have more tokens

        return Conversation(Session.load(kernels_artifact), own, numbered, GenerationSettings(max_new_tokens=5))

    first, second = begun(), begun()
    first.say("a")
    retried = first.retry()
    first.say("b")
    first.say("c")
    first.save(tmp_path / "talk.state")
    second.load(tmp_path / "talk.state")
    assert (second.note, second.session.tokens) == (first.note, first.session.tokens)
    assert [each.start for each in turns_of(second)] == [0, 0, 0]
    for chat in (first, second):
        chat.undo()
        chat.undo()
        assert chat.retry() == retried
        assert len(chat.messages) == 2


def test_what_is_no_text_is_read_as_replacement_characters_and_saved(kernels_artifact: Path, tmp_path: Path) -> None:
    """JSON has no other texts: the note of a state could not be written."""
    session = Session.load(kernels_artifact)
    own = Tokenizer.from_file(kernels_artifact / "tokenizer.json")
    chat = Chat.over(session, own, PLAIN, system="\udcff")
    chat.send("a\ud800b\0", lambda *_: None, options(3))
    assert [each["content"] for each in chat.messages[:2]] == ["\ufffd" * 3, "a" + "\ufffd" * 3 + "b\0"]
    chat.save(tmp_path / "chat.state")
    said = chat.messages
    chat.reset()
    chat.load(tmp_path / "chat.state")
    assert chat.messages == said


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"messages": [], "turns": [], "tokens": [99999]}', '{"messages": 1}'])
def test_a_state_without_a_conversation_changes_nothing(kernels_artifact: Path, tmp_path: Path, note: str) -> None:
    session = Session.load(kernels_artifact)
    session.prefill([1, 2, 3])
    session.save(tmp_path / "plain.state", note)
    session.reset()
    chat = Chat.over(session, Tokenizer.from_file(kernels_artifact / "tokenizer.json"), PLAIN)
    chat.send("one", lambda *_: None, options(3))
    said, tokens = chat.messages, session.tokens
    with pytest.raises(StateFileError):
        chat.load(tmp_path / "plain.state")
    assert (chat.messages, session.tokens) == (said, tokens)
    chat.send("two", lambda *_: None, options(3))
    assert len(chat.messages) == 4


def test_going_back_reads_nothing_again() -> None:
    session = fresh_session(0)
    chat = Chat.over(session, BYTES, PLAIN)
    chat.send("one", lambda *_: None, options())
    chat.send("two " * 20, lambda *_: None, options())
    answer = chat.retry(lambda *_: None, options())
    assert answer.prompt_tokens == 1, "the last token alone, which every answer begins with"
    chat.undo()
    before = session.length
    answer = chat.send("two " * 20, lambda *_: None, options())
    assert answer.cached_tokens >= before - 1


def test_a_chat_without_room_for_checkpoints_says_the_same() -> None:
    plenty, none = (Chat.over(fresh_session(slots), BYTES, PLAIN, checkpoint_bytes=size) for slots, size in ((2, 0), (0, 1)))
    for chat in (plenty, none):
        chat.send("one", lambda *_: None, options())
        chat.send("two", lambda *_: None, options())
        chat.undo()
    assert told(plenty.send, "three") == told(none.send, "three")
    assert plenty.messages == none.messages


# Refusals, interrupts


def test_a_message_that_does_not_fit_changes_nothing() -> None:
    session = fresh_session(max_seq_len=100)
    chat = Chat.over(session, BYTES, PLAIN)
    chat.send("one", lambda *_: None, options(5))
    messages, tokens = chat.messages, session.tokens
    with pytest.raises(CapacityError, match=r"makes \d+ tokens .* leaves no room for an answer in 100"):
        chat.send("long " * 40, lambda *_: None, options())
    assert (chat.messages, session.tokens) == (messages, tokens)
    assert told(chat.send, "two") is not None


def test_an_answer_ends_where_the_context_is_full() -> None:
    chat = Chat.over(fresh_session(max_seq_len=40, program=TextProgram(saying("b" * 400))), BYTES, format_of(THINKING))
    answer = chat.send("a", lambda *_: None, options(400))
    assert Ending(answer.ending) is Ending.BY_LENGTH
    assert chat.room == 0


@pytest.mark.parametrize("name", ["undo", "retry"])
def test_there_is_nothing_to_take_back_at_first(name: str) -> None:
    chat = Chat.over(fresh_session(), BYTES, PLAIN)
    with pytest.raises(UsageError, match="there is no message yet"):
        chat.undo() if name == "undo" else chat.retry(lambda *_: None)


@pytest.mark.parametrize("stop", [[""], ["a", ""]])
def test_an_empty_stop_string_is_refused(stop: list[str]) -> None:
    with pytest.raises(UsageError, match="null pointer"):
        Chat.over(fresh_session(), BYTES, PLAIN).send("a", lambda *_: None, options(), stop)


def test_a_failure_in_an_answer_keeps_what_was_said() -> None:
    """Keep what was shown before the model failed, and nothing if it failed before."""

    def failing(text: tuple[int, ...]) -> Tensor:
        logits = babble(text)
        return logits * float("nan") if len(text) > 30 else logits

    chat = Chat.over(fresh_session(program=TextProgram(failing)), BYTES, PLAIN)
    shown: list[str] = []
    while not isinstance(caught := _caught(chat, shown), NumericalError):
        assert caught is None
    assert chat.messages == [] or chat.messages[-1]["role"] == "assistant"
    with pytest.raises(NumericalError):
        chat.send("a longer message than thirty tokens", lambda *_: None, options())
    assert chat.messages == [] or chat.messages[-1]["role"] == "assistant", "the message that was not answered is gone"


def _caught(chat: Chat, shown: list[str]) -> HybridgeError | None:
    try:
        chat.send("x", lambda content, _: shown.append(content), options(8))
    except HybridgeError as error:
        return error
    return None


def test_a_callback_ends_an_answer_and_its_error_comes_out() -> None:
    chat = Chat.over(fresh_session(), BYTES, PLAIN)
    answer = chat.send("a", lambda *_: False, options())
    assert Ending(answer.ending) is Ending.BY_CALLER
    assert answer.generated.tokens == 1

    def fail(*_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chat.send("b", fail, options())
    assert [each["role"] for each in chat.messages] == ["user", "assistant"] * 2
    assert told(chat.send, "c") is not None


def test_another_thread_cancels_an_answer() -> None:
    chat = Chat.over(fresh_session(program=TextProgram(saying("b" * 500))), BYTES, format_of(THINKING))
    begun = threading.Event()
    cancelling = threading.Thread(target=lambda: (begun.wait(10), chat.cancel()))
    cancelling.start()
    answer = chat.send("a", lambda *_: begun.set() or cancelling.join(10), options(500))
    assert Ending(answer.ending) is Ending.BY_CALLER
    assert chat.messages[-1]["content"].strip("b") == ""


def test_a_chat_is_busy_in_its_own_callback() -> None:
    chat = Chat.over(fresh_session(), BYTES, PLAIN)
    with pytest.raises(UsageError, match="in another call"):
        chat.send("a", lambda *_: chat.undo(), options())


def test_a_closed_session_ends_its_chat() -> None:
    session = fresh_session()
    chat = Chat.over(session, BYTES, PLAIN)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        chat.send("a", lambda *_: None)


# Answers
