"""Chats in the core against sessions that read everything again and transformers' templates, over models that say what a test
asks."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from babbling import END, TEMPLATE, babble, fresh_session, options, rendered, template_of, tokens_of, told, turns_of
from hypothesis import HealthCheck, given, settings
from public_folders import CHAT_TEMPLATES
from template_oracle import reference
from torch import Tensor

from hybridge.errors import ArtifactError, CapacityError, HybridgeError, NumericalError, StateFileError, UsageError
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime import Session
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.interface import Ending, GenerationStruct, SamplingStruct, Thinking
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.tokenizer import Tokenizer
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
HARMONY = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
TEMPLATES = sorted(path.stem for path in CHAT_TEMPLATES.glob("*.jinja"))


PLAIN = JinjaTemplate(TEMPLATE)


def saying(answer: str, opening: bytes = b"") -> Callable[[tuple[int, ...]], Tensor]:
    """A model that says this after each prompt that ends with "assistant" and ``opening``; BYTES has a token for each byte."""

    def say(text: tuple[int, ...]) -> Tensor:
        logits = torch.full((260,), -10.0)
        _, _, so_far = bytes(token for token in text if token < 256).rpartition(b"assistant\n" + opening)
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
        asked, turns, most = [*self.messages, {"role": "user", "content": words}], self.turns, self.session.max_seq_len
        text, known = rendered(TEMPLATE, asked).text, turns[-1][2] if turns else ""
        tokens = self.tokens if turns and text.startswith(known) else []
        start, rest = len(tokens), text[len(known) :] if tokens else text
        tokens = [*tokens, *self._encoded(rest)]
        if len(tokens) + min(25, most // 4) > most and turns:
            gone = 1
            while gone < len(turns) and len(self._encoded(rendered(TEMPLATE, asked[2 * gone :]).text)) > most // 2:
                gone += 1
            asked, kept = asked[2 * gone :], turns[gone:]
            turns = [
                (0, each[1], rendered(TEMPLATE, asked[: 2 * i + 1]).text + asked[2 * i + 1]["content"])
                for i, each in enumerate(kept)
            ]
            text, start = rendered(TEMPLATE, asked).text, 0
            tokens = self._encoded(text)
        if len(tokens) >= most:
            raise CapacityError("no room")
        self.messages, self.tokens = asked, tokens
        self.turns = [*turns, (start, len(tokens), text)]
        return self._answer(text)

    def _encoded(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, around=False).ids

    def retry(self, _: str) -> str:
        start, answer, _ = self._last()
        self.messages.pop()
        self.tokens = self.tokens[:answer]
        text = rendered(TEMPLATE, self.messages).text
        self.turns[-1] = start, answer, text
        return self._answer(text)

    def undo(self, _: str) -> str:
        start, *_ = self._last()
        self.messages, self.tokens = self.messages[:-2], self.tokens[:start]
        self.turns.pop()
        if start == 0 and self.turns:  # the turns before were written anew, and are read as they are now
            said = self.messages[-1]["content"]
            prompt = self._encoded(self.turns[-1][2].removesuffix(said))
            self.tokens = [*prompt, *self._encoded(said)]
            self.turns[-1] = 0, len(prompt), self.turns[-1][2]
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
    """The same conversation by a chat, by Python's ``Conversation``, and in the plainest way."""

    def __init__(
        self, session: Callable[[], Session], cache_bytes: int, seed: int | None = None, tokenizer: Path = EMBEDDED
    ) -> None:
        own = Tokenizer.from_file(tokenizer / "tokenizer.json")
        self.sampling = Sampling() if seed is None else Sampling(temperature=0.8, seed=seed)
        self.struct = SamplingStruct(temperature=0.8, seed=seed or 0, has_seed=1) if seed is not None else None
        settings = GenerationSettings(max_new_tokens=25, sampling=self.sampling)
        self.sessions = {"own": session(), "python": session()}
        cache = PrefixCache(self.sessions["python"].model, cache_bytes)
        self.plain = Plain(session(), own, self.sampling)
        self.own = Chat.over(self.sessions["own"], own, PLAIN, checkpoint_bytes=max(cache_bytes, 1))
        self.conversation = Conversation(self.sessions["python"], own, template_of(TEMPLATE), settings, checkpoints=cache)

    def step(self, name: str, words: str) -> None:
        """Do the same to all; all answer, or all refuse."""
        wanted = outcome(lambda: getattr(self.plain, name)(words))
        assert outcome(lambda: self._by_own(name, words)) == wanted, name
        assert outcome(lambda: self._by_conversation(name, words)) == wanted, name
        self.check(name in ("say", "retry") and isinstance(wanted, str))

    def check(self, answered: bool = False) -> None:
        for name, chat in (("own", self.own), ("python", self.conversation)):
            read = self.sessions[name].tokens
            assert chat.messages == self.plain.messages
            assert tokens_of(chat) == self.plain.tokens
            assert [(each.start, each.answer) for each in turns_of(chat)] == [each[:2] for each in self.plain.turns]
            assert read == (self.plain.read if answered else self.plain.tokens[: len(read)])
        assert self.sessions["own"].tokens == self.sessions["python"].tokens

    def _by_own(self, name: str, words: str) -> str:
        pieces: list[str] = []
        asked = GenerationStruct(max_new_tokens=25)
        if self.struct is not None:
            asked.sampling.contents = self.struct
        match name:
            case "say":
                self.own.send(words, lambda content, _: pieces.append(content), asked)
            case "retry":
                self.own.retry(lambda content, _: pieces.append(content), asked)
            case _:
                getattr(self.own, name)()
        return "".join(pieces)

    def _by_conversation(self, name: str, words: str) -> str:
        return (self.conversation.say(words) if name == "say" else getattr(self.conversation, name)()) or ""


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


@given(
    steps=steps,
    slots=st.sampled_from([0, 2, 4]),
    cache_bytes=st.sampled_from([0, 3000, 10**6]),
    seed=st.sampled_from([None, 3]),
    max_seq_len=st.sampled_from([90, 200, 600]),
)
def test_whatever_is_done_a_chat_says_what_a_session_says_that_reads_everything_again(
    steps: list[tuple[str, str]], slots: int, cache_bytes: int, seed: int | None, max_seq_len: int
) -> None:
    """In a context that is full after a turn or two as well, of which the oldest turns go."""
    talks = Talks(lambda: fresh_session(slots, max_seq_len), cache_bytes, seed)
    for name, said in steps:
        talks.step(name, said)


@settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=saved_steps)
def test_saved_chats_go_on_as_conversations_and_the_other_way_round(
    kernels_artifact: Path, tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    """Each loads what the other has saved."""
    talks = Talks(lambda: Session.load(kernels_artifact), 10**6, tokenizer=kernels_artifact)
    chats = {"own": talks.own, "python": talks.conversation}
    for name, said in [("save", ""), *steps, ("load", ""), ("say", "b")]:
        if name == "save":
            saved = copy.deepcopy((talks.plain.messages, talks.plain.turns, talks.plain.tokens))
            for kind, chat in chats.items():
                chat.save(tmp_path / f"{kind}.state")
        elif name == "load":
            talks.plain.messages, talks.plain.turns, talks.plain.tokens = copy.deepcopy(saved)
            for kind, other in (("own", "python"), ("python", "own")):
                chats[kind].load(tmp_path / f"{other}.state")
            talks.check()
        else:
            talks.step(name, said)


def test_a_saved_chat_whose_template_rewrites_the_past_can_be_undone(kernels_artifact: Path, tmp_path: Path) -> None:
    own = Tokenizer.from_file(kernels_artifact / "tokenizer.json")

    numbered = template_of("{{ '.' * (20 - messages | length) }}" + TEMPLATE)  # so that earlier turns have more tokens

    def begun() -> Conversation:
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
    chat = Chat.over(fresh_session(max_seq_len=40, program=TextProgram(saying("b" * 400))), BYTES, JinjaTemplate(THINKING))
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
    with pytest.raises(UsageError, match="a stop string is empty; leave it out"):
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
    chat = Chat.over(fresh_session(program=TextProgram(saying("b" * 500))), BYTES, JinjaTemplate(THINKING))
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


# Templates and answers


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("system", ["", "Be <brief>."])
def test_chats_are_written_as_in_transformers(name: str, system: str) -> None:
    """The system's message, reasoning of earlier answers, and the switch for thinking."""
    source, program = (CHAT_TEMPLATES / f"{name}.jinja").read_text(), TextProgram(saying("hm</think>\n\nso", b"?"))
    names = (each for each in ("enable_thinking", "thinking") if re.search(rf"(?<![.\w]){each}\b", source))
    switch = next(names, None)
    for thinking in Thinking if switch is not None else [Thinking.AS_USUAL]:
        variables = {} if switch is None or thinking is Thinking.AS_USUAL else {switch: thinking is Thinking.ON}
        begin = partial(
            Chat.over, fresh_session(max_seq_len=9000, program=program), BYTES, JinjaTemplate(source), system, thinking
        )
        if isinstance(transformers_text(source, system, [{"role": "user", "content": "a"}], variables), Exception):
            with pytest.raises(UsageError, match="refuses this conversation"):
                begin()
            continue
        chat = begin()
        for question in ("a <b>?", "  c\n?"):
            before = chat.messages[1:] if system else chat.messages
            chat.send(question, lambda *_: None, options(30))
            wanted = transformers_text(source, system, [*before, {"role": "user", "content": question}], variables)
            assert turns_of(chat)[-1].rendered == wanted


def transformers_text(source: str, system: str, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str | Exception:
    begun = [{"role": "system", "content": system}] if system else []
    every = [{"thinking": each["reasoning_content"], **each} if "reasoning_content" in each else each for each in messages]
    given = {"tools": None, "documents": None, "messages": [*begun, *every], "add_generation_prompt": True}
    return reference(source, {**given, **variables}, datetime.now())  # noqa: DTZ005  # a local time


@pytest.mark.parametrize(
    ("marks", "opening", "answer", "content", "reasoning"),
    [
        ("", "", "<think>a</think>b", "<think>a</think>b", ""),
        ("</think>", "", "<think>a</think>\n\nb", "b", "a"),
        ("</think>", "<think>\n", "a\n</think>\n\nb", "b", "a"),
        ("</think>", "<think>\n\n</think>\n\n", "b </thin", "b </thin", ""),
        ("<tool_call>", "", "<tool_call>\n{}\n</tool_call>", "<tool_call>\n{}\n</tool_call>", ""),
        ("<|channel|>analysis<|message|>", "<|start|>assistant", HARMONY, "b", "a"),
    ],
)
def test_an_answer_is_split_by_the_form_of_the_template(
    marks: str, opening: str, answer: str, content: str, reasoning: str
) -> None:
    before = json.dumps(f"\nassistant\n{opening}")
    template = JinjaTemplate(f"{{# {marks} #}}{{{{ messages[-1].content ~ {before} }}}}")
    chat = Chat.over(fresh_session(program=TextProgram(saying(answer, opening.encode()))), BYTES, template)
    parts: list[tuple[str, str]] = []
    chat.send("a", lambda *each: parts.append(each), options(200))
    assert "".join(content for content, _ in parts) == content
    assert "".join(reasoning for _, reasoning in parts) == reasoning
    assert chat.messages[-1]["content"] == content
    assert chat.messages[-1].get("reasoning_content", "") == reasoning


def test_special_tokens_of_any_name_are_the_models_own(tmp_path: Path) -> None:
    """Only what the person wrote is text."""
    vocabulary = {"model": {"type": "WordLevel", "vocab": {"a": 0, "<image>": 1}, "unk_token": "a"}}
    added = [
        {"id": 1, "content": "<image>", "special": True, "normalized": False}
        | dict.fromkeys(("lstrip", "rstrip", "single_word"), False)
    ]
    own = Tokenizer(json.dumps({**vocabulary, "added_tokens": added}).encode())
    (tmp_path / "chat_template.jinja").write_text("{{ image }}{{ messages[-1].content }}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": {"image": "<image>"}}))
    chat = Chat.over(fresh_session(), own, JinjaTemplate(tmp_path))
    chat.send("<image>", lambda *_: None, options(1))
    assert tokens_of(chat)[:2] == [1, 0]


DAMAGED: dict[str, tuple[dict[str, str], str]] = {
    "no template": ({"tokenizer_config.json": "{}"}, "no chat template, so the model was not made to chat"),
    "no default": (
        {"chat_template.rag.jinja": "", "chat_template.tool_use.jinja": ""},
        "templates for rag, tool_use and no default",
    ),
    "no Jinja": ({"chat_template.jinja": "a\n{% for"}, r"\(line 2\)"),
    "no JSON": ({"tokenizer_config.json": "{"}, "tokenizer_config.json is no JSON"),
    "no UTF-8": ({"chat_template.jinja": "\udcff"}, "no UTF-8"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_folder_without_a_template_that_can_be_read_says_why(tmp_path: Path, name: str) -> None:
    files, why = DAMAGED[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match=why):
        Chat.over(fresh_session(), BYTES, JinjaTemplate(tmp_path))


VARIABLES: dict[str, tuple[dict[str, Any], str]] = {
    "messages": ({"messages": []}, "'messages' is the conversation's own"),
    "tools": ({"tools": []}, "'tools' is the conversation's own"),
    "the switch": (
        {"enable_thinking": True},
        "thinking is switched, and the chat template's variable 'enable_thinking' is given",
    ),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_that_a_conversation_sets_are_refused(name: str) -> None:
    variables, why = VARIABLES[name]
    with pytest.raises(UsageError, match=why):
        Chat.over(fresh_session(), BYTES, JinjaTemplate(THINKING), thinking=Thinking.OFF, variables=variables)


def test_variables_are_the_templates() -> None:
    template = JinjaTemplate("{{ effort }}{{ messages[-1].content }}")
    chat = Chat.over(fresh_session(), BYTES, template, variables={"effort": "löw"})
    chat.send("a", lambda *_: None, options(1))
    assert turns_of(chat)[-1].rendered == "löwa"
    with pytest.raises(UsageError, match="refuses this conversation: no 'x' here"):
        Chat.over(fresh_session(), BYTES, JinjaTemplate("{{ raise_exception(\"no 'x' here\") }}"))
