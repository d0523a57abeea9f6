"""Contexts that are full, or shorter than the artifact's: which messages are dropped, what is read again, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scripted
import torch
from babbling import BYTES, END, TEMPLATE, fresh_session, options, talk, tokens_of, turns_of
from process_memory import anonymous_bytes, needs_proc
from store import demo_folder
from torch import Tensor

from hybridge.errors import CapacityError, StateFileError, UsageError
from hybridge.runtime import Session
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.cli.chat import Terminal

CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Ulm"}}\n</tool_call>'
LONG = "many words " * 5


def calling(text: tuple[int, ...]) -> Tensor:
    """A model that calls a tool after a message, and says yes after a result."""
    logits = torch.full((260,), -10.0)
    prompt, _, so_far = bytes(token for token in text if token < 256).rpartition(b"assistant\n")
    answer = b"yes" if prompt.rstrip().endswith(b"wet") else CALL.encode()
    rest = answer[len(so_far) :]
    logits[rest[0] if rest else END] = 10.0
    return logits


def test_a_full_context_drops_whole_turns_and_keeps_what_the_system_said() -> None:
    chat = Chat.over(fresh_session(max_seq_len=400), BYTES, JinjaTemplate(TEMPLATE), system="Be brief. " * 8)
    dropped = 0
    for i in range(6):
        before = chat.messages
        answer = chat.send(f"{i} {LONG}", lambda *_: None, options(20))
        assert chat.messages[0] == before[0] if before else True
        gone, dropped = answer.dropped_messages, dropped + answer.dropped_messages
        assert chat.messages == [*before[:1], *before[1 + gone :], *chat.messages[-2:]] if before else not gone
        if gone:
            assert gone % 2 == 0
            assert answer.prompt_tokens + answer.cached_tokens <= 200, "down to half of the context"
            assert answer.cached_tokens >= 64, "the system's message was read once"
            chat.undo()
            assert chat.messages == [*before[:1], *before[1 + gone :]]
            chat.send(f"{i} {LONG}", lambda *_: None, options(20))
            said = chat.messages
            chat.retry(lambda *_: None, options(20))
            assert chat.messages == said
    assert dropped >= 4
    assert len(chat.messages) == 1 + 2 * 6 - dropped


def test_a_call_goes_with_its_result() -> None:
    chat = Chat.over(
        fresh_session(max_seq_len=900, program=TextProgram(calling)),
        BYTES,
        JinjaTemplate(scripted.TEMPLATE),
        tools=scripted.TOOLS,
    )
    dropped = 0
    for i in range(8):
        dropped += chat.send(f"{i} {LONG}", lambda *_: None, options(100)).dropped_messages
        dropped += chat.give_results(["wet"], lambda *_: None, options(100)).dropped_messages
        roles = [each["role"] for each in chat.messages]
        assert roles == ["user", "assistant", "tool", "assistant"] * (len(roles) // 4)
        ids = [call["id"] for each in chat.messages for call in each.get("tool_calls", ())]
        assert [each["tool_call_id"] for each in chat.messages if each["role"] == "tool"] == ids
        assert len(set(ids)) == len(ids)
    assert dropped >= 8


def test_a_conversation_that_lost_turns_is_saved_and_goes_on(kernels_artifact: Path, tmp_path: Path) -> None:
    def opened() -> Chat:
        session = Session.load(kernels_artifact)
        return Chat.over(session, Tokenizer.from_file(kernels_artifact / "tokenizer.json"), JinjaTemplate(TEMPLATE))

    chat, other = opened(), opened()
    while not chat.send("again", lambda *_: None, options(12)).dropped_messages:
        pass
    chat.save(tmp_path / "talk.state")
    other.load(tmp_path / "talk.state")
    for each in (chat, other):
        each.send("more", lambda *_: None, options(3))
        each.undo()
        each.undo()
    assert (other.note, turns_of(other), tokens_of(other)) == (chat.note, turns_of(chat), tokens_of(chat))


def test_a_message_longer_than_the_context_is_refused_and_nothing_is_dropped() -> None:
    conversation = talk(max_seq_len=200)
    conversation.say("one")
    said = conversation.messages
    with pytest.raises(CapacityError, match="leaves no room for an answer in 200: shorten it, or export with a larger"):
        conversation.say("long " * 40)
    assert conversation.messages == said


def test_the_terminal_says_what_was_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(talk(max_seq_len=160), json=False)
    for i in range(3):
        terminal._do(f"{i} {LONG}")
    assert "The context was full: the oldest 4 messages were dropped." in capsys.readouterr().err.replace("\n", " ")


# A context that is chosen when an artifact is opened


def test_a_session_takes_texts_up_to_its_context(kernels_artifact: Path, tmp_path: Path) -> None:
    whole, short = Session.load(kernels_artifact), Session.load(kernels_artifact, context=40)
    assert (short.max_seq_len, short.room, whole.room) == (40, 40, 96)
    short.prefill(list(range(1, 41)))
    whole.prefill(list(range(1, 41)))
    with pytest.raises(CapacityError, match=r"40 of max_seq_len = 40 are used.*a larger context, up to 96"):
        short.decode(1)
    whole.decode(1)
    whole.save(tmp_path / "long.state")
    for restore in (lambda: short.load_state(tmp_path / "long.state"), lambda: short.resume(whole.checkpoint())):
        with pytest.raises((CapacityError, StateFileError), match="41 tokens, and max_seq_len is 40"):
            restore()
    assert short.length == 40


@pytest.mark.parametrize("context", [0, -1, 97, 2**63])
def test_a_context_that_the_artifact_does_not_hold_is_refused(kernels_artifact: Path, context: int) -> None:
    with pytest.raises(UsageError, match="tokens cannot be: give 1 to 96, for which the artifact was exported"):
        Session.load(kernels_artifact, context=context)


def test_a_context_is_an_option_of_the_commands(cli: Callable[..., object], kernels_artifact: Path) -> None:
    done = cli("run", kernels_artifact, "--prompt", "a" * 30, "--max-new-tokens", "50", "--ctx", "40", "--json")
    assert len(json.loads(done.out)["text"]) <= 40 - 30 + 1  # type: ignore[attr-defined]  # the last one is not read


@needs_proc
def test_sessions_take_memory_for_what_was_read() -> None:
    session = Session.load(demo_folder() / "hybridge-demo")
    state = session.state_bytes
    session.prefill([1, 2, 3])
    before, others = anonymous_bytes(), [Session(session.model) for _ in range(20)]
    for each in others:
        each.prefill([1, 2, 3])
    assert anonymous_bytes() - before < 20 * state / 3
    assert all(np.array_equal(each.state()["length"], [3]) for each in others)


@needs_proc
def test_a_shorter_text_gives_its_memory_back() -> None:
    session = Session.load(demo_folder() / "hybridge-demo")
    start, more = [*range(100)], [each % 256 for each in range(1800)]
    want = session.prefill([*start, 7])
    session.reset()
    session.prefill(start)
    session.snapshot(0)
    for go_back, rest in ((lambda: session.restore(0), [7]), (session.reset, [*start, 7])):
        session.prefill(more)
        held = anonymous_bytes()
        go_back()
        assert held - anonymous_bytes() > 1500 << 10, "1,800 rows of 1 KB: the drafter has read none"
        assert np.array_equal(session.prefill(rest), want)
