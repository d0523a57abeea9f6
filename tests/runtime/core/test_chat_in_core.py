"""Chats in the core against Python's conversations and Python's parser of answers, over models that say what a test asks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from babbling import END, TEMPLATE, babble, fresh_session
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from hybridge.cache.errors import CapacityError, HybridgeError, NumericalError, StateFileError, UsageError
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.export.write.chat_format import find_chat_format, sections_of
from hybridge.runtime import GenerationStats, Session
from hybridge.runtime.artifacts.chat_format import (
    AnswerEntry,
    ChatFormatEntry,
    RenderingEntry,
    RenderingsEntry,
    RoleEntry,
)
from hybridge.runtime.core.chat import Chat
from hybridge.runtime.core.checkpoint import PrefixCache
from hybridge.runtime.core.interface import Ending, GenerationStruct, SamplingStruct
from hybridge.runtime.core.programs import TextProgram
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.text.answers import FORMATS, AnswerFormat
from hybridge.runtime.text.chat_template import ChatTemplates, render
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
THOUGHTFUL = format_of(THINKING, next(each for each in FORMATS if each.name == "thinking"))


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


class Twins:
    """The same conversation in Python and in the core, each over a session of its own."""

    def __init__(
        self,
        sessions: tuple[Session, Session],
        folder: Path,
        cache_bytes: int,
        seed: int | None = None,
        tokenizer: Path = EMBEDDED,
    ) -> None:
        own = Tokenizer.from_file(tokenizer / "tokenizer.json")
        self.python_session, self.core_session = sessions
        sampling = None if seed is None else SamplingStruct(temperature=0.8, seed=seed, has_seed=1)
        self.sampling, self.folder = sampling, folder
        settings = GenerationSettings(
            max_new_tokens=25, sampling=Sampling() if seed is None else Sampling(temperature=0.8, seed=seed)
        )
        cache = PrefixCache(self.python_session.model, cache_bytes)
        reference = Conversation(self.python_session, own, lambda said: render(TEMPLATE, said, {}), settings, checkpoints=cache)
        self.python, self.core = reference, Chat.over(self.core_session, own, PLAIN, checkpoint_bytes=max(cache_bytes, 1))

    def step(self, name: str, words: str) -> None:
        """Do the same to both; both answer, or both refuse."""
        outcomes = [self._outcome(twin, name, words) for twin in ("python", "core")]
        assert outcomes[0] == outcomes[1], name
        assert self.core.messages == self.python.messages
        assert self.core_session.tokens == self.python_session.tokens

    def _outcome(self, twin: str, name: str, words: str) -> str | type:
        try:
            return getattr(self, f"_{twin}")(name, words)
        except HybridgeError as error:
            return CapacityError if isinstance(error, CapacityError) else HybridgeError

    def _python(self, name: str, words: str) -> str:
        match name:
            case "say":
                return "".join(self.python.say(words, GenerationStats()))
            case "retry":
                return "".join(self.python.retry(GenerationStats()))
            case "save":
                self.python.save(self.folder / "python.state")
            case "load":
                self.python.load(self.folder / "core.state")
            case _:
                getattr(self.python, name)()
        return ""

    def _core(self, name: str, words: str) -> str:
        pieces: list[str] = []
        asked = GenerationStruct(max_new_tokens=25)
        if self.sampling is not None:
            asked.sampling.contents = self.sampling
        match name:
            case "say":
                self.core.send(words, lambda content, _: pieces.append(content), asked)
            case "retry":
                self.core.retry(lambda content, _: pieces.append(content), asked)
            case "save":
                self.core.save(self.folder / "core.state")
            case "load":
                self.core.load(self.folder / "python.state")
            case _:
                getattr(self.core, name)()
        return "".join(pieces)


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
def test_whatever_is_done_a_chat_says_what_pythons_conversation_says(
    steps: list[tuple[str, str]], slots: int, cache_bytes: int, seed: int | None
) -> None:
    twins = Twins((fresh_session(slots), fresh_session(slots)), Path(), cache_bytes, seed)
    for name, said in steps:
        twins.step(name, said)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=saved_steps)
def test_saved_chats_go_on_in_python_and_pythons_in_the_core(
    kernels_artifact: Path, tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    """Each loads what the other has saved."""
    twins = Twins((Session.load(kernels_artifact), Session.load(kernels_artifact)), tmp_path, 10**6, tokenizer=kernels_artifact)
    twins.step("save", "")
    for name, said in [*steps, ("load", ""), ("say", "b")]:
        twins.step(name, said)


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
def test_a_state_without_a_conversation_begins_anew(kernels_artifact: Path, tmp_path: Path, note: str) -> None:
    session = Session.load(kernels_artifact)
    session.prefill([1, 2, 3])
    session.save(tmp_path / "plain.state", note)
    chat = Chat.over(session, Tokenizer.from_file(kernels_artifact / "tokenizer.json"), PLAIN)
    with pytest.raises(StateFileError):
        chat.load(tmp_path / "plain.state")
    assert chat.messages == []
    assert session.length == 0


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
    """What was shown before the model failed stays; a failure before anything was leaves nothing."""

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


@settings(max_examples=120, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(
            [
                *("<think>", "</think>", "<thi", "</", "nk>", " ", "\n", "\n\n", "a", "é漢", "<|channel|>", "analysis"),
                *("final", "<|message|>", "<|end|>", "<|return|>", "<|start|>assistant", "commentary"),
            ]
        ),
        max_size=14,
    ).map("".join),
    name=st.sampled_from(["thinking", "harmony"]),
    begun=st.sampled_from(["", "<think>\n", "<think>\n\n</think>\n\n"]),
)  # fmt: skip
def test_answers_are_split_as_pythons_parser_does(text: str, name: str, begun: str) -> None:
    form = next(each for each in FORMATS if each.name == name)
    anchor = "<|im_start|>assistant\n" if name == "thinking" else "<|start|>assistant"
    opening = anchor + (begun if name == "thinking" else "")
    reference = form.answer("Prompt" + opening, ())
    for letter in text:
        list(reference.feed(letter))
    list(reference.finish())
    chat = Chat.over(fresh_session(program=TextProgram(spelling(opening, text))), BYTES, format_around(opening, form))
    parts: list[tuple[str, str]] = []
    chat.send("a", lambda *each: parts.append(each), options(400))
    assert "".join(content for content, _ in parts) == reference.content
    assert "".join(reasoning for _, reasoning in parts) == reference.reasoning
    assert chat.messages[-1]["content"] == reference.content
    assert chat.messages[-1].get("reasoning_content", "") == reference.reasoning


def spelling(opening: str, answer: str) -> Callable[[tuple[int, ...]], Tensor]:
    """A model that spells one answer behind a prompt, byte by byte."""
    begun, spelled = len(BYTES.encode("Prompta" + opening, around=False).ids), answer.encode()

    def say(text: tuple[int, ...]) -> Tensor:
        logits = torch.full((260,), -10.0)
        rest = spelled[max(0, len(text) - begun) :]
        logits[rest[0] if rest else END] = 10.0
        return logits

    return say


def format_around(opening: str, form: AnswerFormat) -> str:
    sections, rest = sections_of(form)
    nothing = AnswerEntry(plain=RoleEntry(before=""), reasoned=None)
    found = RenderingEntry(system=None, user=RoleEntry(before="Prompt"), earlier=nothing, last=nothing, answer=opening)
    entry = ChatFormatEntry(renderings=RenderingsEntry(default=found), sections=sections, rest_is_content=rest)
    return entry.model_dump_json()
