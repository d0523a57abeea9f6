"""Conversations on disk, and the real command."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from babbling import TEMPLATE, tokens_of, turns_of
from command_line import Outcome, Run
from forgery import forge
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import OutputError
from hybridge.runtime import Session, open_artifact
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
SCRIPT = Path(sys.executable).parent / "hybridge"


@pytest.fixture(scope="module")
def chatting_artifact(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(artifact, tmp_path_factory.mktemp("talking"))


def with_template(artifact: Path, place: Path) -> Path:
    """Return a copy of the artifact with a chat template."""
    folder = Path(shutil.copytree(artifact, place / "artifact"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    entry = file_entry(folder / "chat_template.jinja").model_dump()
    forge(folder, lambda content: content["files"].update({"chat_template.jinja": entry}))
    return folder


def opened(folder: Path) -> Conversation:
    """Return a conversation in which <end> is a special token."""
    artifact = open_artifact(folder)
    content = json.loads(artifact.read("tokenizer.json"))
    content["added_tokens"] = [{"id": 130, "content": "<end>", **dict.fromkeys(FLAGS, False), "special": True}]
    tokenizer = Tokenizer(json.dumps(content).encode())
    return Conversation(Session.load(folder), tokenizer, load_template(artifact), GenerationSettings(max_new_tokens=10))


@pytest.mark.parametrize("first", ["hello", "hello<end> you"])
def test_a_saved_conversation_goes_on_and_can_still_be_undone(chatting_artifact: Path, tmp_path: Path, first: str) -> None:
    one = opened(chatting_artifact)
    one.say(first)
    one.say("more")
    one.save(tmp_path / "talk")
    other = opened(chatting_artifact)
    other.load(tmp_path / "talk")
    assert other.messages == one.messages
    assert turns_of(other) == turns_of(one)
    assert bool(turns_of(other)[1].spelled) == (first != "hello")
    assert other.session.tokens == one.session.tokens
    other.undo()
    one.undo()
    assert other.session.length == one.session.length > 0, "what the file's slots keep is not read again"
    assert other.say("again") == one.say("again")


def test_a_conversation_of_0_2_goes_on(chatting_artifact: Path, tmp_path: Path) -> None:
    """Its turns have no spelled tokens."""
    one = opened(chatting_artifact)
    one.say("hello")
    turns = [{name: value for name, value in vars(turn).items() if name != "spelled"} for turn in turns_of(one)]
    one.session.save(tmp_path / "talk", json.dumps({"messages": one.messages, "turns": turns, "tokens": tokens_of(one)}))
    other = opened(chatting_artifact)
    other.load(tmp_path / "talk")
    assert other.say("more") == one.say("more")
    assert tokens_of(other) == tokens_of(one)


@pytest.fixture
def chat(cli: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Type lines into a chat that is no terminal."""

    def chatted(folder: Path, lines: list[str], *options: str) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli("chat", folder, *options)

    return chatted


@pytest.mark.slow
def test_the_command_talks_undoes_saves_and_loads(
    chatting_artifact: Path, tmp_path: Path, chat: Callable[..., Outcome]
) -> None:
    options = ("--json", "--max-new-tokens", "8")
    done = chat(
        chatting_artifact,
        ["hello", "/retry", "/save " + str(tmp_path / "talk"), "bye", "/undo", "bye", "/stats", "/help", "/exit"],
        *options,
    )
    assert done.code == 0, done.err
    answers = read_all(done.raw)
    assert [answer["role"] for answer in answers] == ["assistant"] * 4
    assert answers[0]["content"] != answers[1]["content"], "another answer is not greedy"
    assert answers[2]["content"] == answers[3]["content"]
    later = chat(chatting_artifact, ["bye"], *options, "--load", str(tmp_path / "talk"))
    assert read_all(later.raw)[0]["content"] == answers[2]["content"]


def read_all(text: str) -> list[dict[str, Any]]:
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        content, end = decoder.raw_decode(text)
        found.append(content)
        text = text[end:]
    return found


def test_the_command_goes_on_from_a_folder_of_checkpoints(chatting_artifact: Path, tmp_path: Path) -> None:
    words = ["chat", str(chatting_artifact), "--json", "--max-new-tokens", "4", "--cache-dir", str(tmp_path / "kept")]
    read = []
    for _ in range(2):
        done = CliRunner().invoke(tree(), words, input="hello\n")
        assert done.exit_code == 0, done.output
        read.append(read_all(done.stdout)[0])
    assert read[0]["content"] == read[1]["content"]
    assert read[1]["stats"]["prompt_tokens"] == 1 < read[0]["stats"]["prompt_tokens"]
    wrong = CliRunner().invoke(tree(), [*words[:-1], str(chatting_artifact / "model.pte")], input="hello\n")
    assert isinstance(wrong.exception, OutputError)


@pytest.mark.slow
def test_wrong_commands_are_said_and_the_chat_goes_on(
    chatting_artifact: Path, tmp_path: Path, chat: Callable[..., Outcome]
) -> None:
    lines = ["/what", "/undo", "/save", f"/load {tmp_path / 'none'}", "x" * 200, "hi"]
    done = chat(chatting_artifact, lines, "--max-new-tokens", "4")
    assert done.code == 0
    for says in (
        "no command /what",
        "there is no message yet",
        "needs the name of a file",
        "does not exist",
        "no room for an answer",
    ):
        assert says in done.err
    assert done.out


@pytest.mark.slow
def test_a_model_without_a_template_is_pointed_to_run(artifact: Path, chat: Callable[..., Outcome]) -> None:
    done = chat(artifact, ["hi"])
    assert done.code == 2
    assert "hybridge run" in done.err


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_leaves_a_usable_conversation(long_artifact: Path, tmp_path: Path) -> None:
    folder = with_template(long_artifact, tmp_path)
    main, side = pty.openpty()
    # Seconds of tokens: an answer that is done when the signal comes would leave it to the prompt, where it ends the chat.
    command = [SCRIPT, "chat", folder, "--max-new-tokens", "8000", "--no-speculation"]
    process = subprocess.Popen(command, stdin=side, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    os.write(main, b"a\n")
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    os.write(main, b"/undo\nb\n/exit\n")
    _, told = process.communicate(timeout=60)
    os.close(main)
    os.close(side)
    assert process.returncode == 0, told.decode()
    assert b"0 exchanges left" in told
    assert b"Traceback" not in told


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_chat_without_a_word(chatting_artifact: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [SCRIPT, "chat", chatting_artifact, "--max-new-tokens", "8"]
    done = subprocess.run(command, input=b"hello\n", stdout=writes, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writes)
    assert done.returncode == 1
    assert b"Exception" not in done.stderr
    assert b"Error" not in done.stderr
