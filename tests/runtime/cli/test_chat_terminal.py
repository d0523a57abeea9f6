"""A chat at a real terminal: what is typed, pasted, interrupted, killed and continued."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from babbling import TEMPLATE, talk
from forgery import forge
from person import Person

from hybridge.errors import StateFileError, UsageError
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.cli.chat import Terminal
from hybridge.runtime.cli.prompt import Lines, unquoted
from hybridge.runtime.cli.talks import Talks

SHORT = ("--max-new-tokens", "8")


@pytest.fixture(scope="module")
def chatting_artifact(long_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of a long context with a chat template."""
    folder = Path(shutil.copytree(long_artifact, tmp_path_factory.mktemp("talking") / "artifact"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    entry = file_entry(folder / "chat_template.jinja").model_dump()
    forge(folder, lambda content: content["files"].update({"chat_template.jinja": entry}))
    return folder


@pytest.mark.slow
def test_messages_of_several_lines_are_one_message_and_come_back_in_the_next_chat(
    chatting_artifact: Path, tmp_path: Path
) -> None:
    first = Person(chatting_artifact, tmp_path, *SHORT)
    first.is_asked()
    first.types("not this")
    first.shows("> not this")
    first.interrupts()
    first.pastes("one\ntwo\nthree\nfour")
    first.types("\r")
    first.sees("/continue goes on")
    first.types('"""\rfive\r\rsix\r"""\r')
    first.sees("/continue goes on")
    first.types("seven\x1b\reight\r")
    first.sees("/continue goes on")
    first.interrupts()
    first.sees("Ctrl-D leaves")
    asked = [each["content"] for each in first.messages() if each["role"] == "user"]
    assert asked == ["one\ntwo\nthree\nfour", "five\n\nsix", "seven\neight"]
    first.leaves()
    history = tmp_path / "hybridge" / "chat-history"
    assert (history.stat().st_mode & 0o777, history.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    second = Person(chatting_artifact, tmp_path, *SHORT, "--continue", columns=20)
    second.sees("3 exchanges")
    second.is_asked()
    second.types("sev\x1b[A")  # the newest message that begins so
    second.shows(". eight")
    second.types(" nine\r")
    second.sees("goes on")
    assert second.messages()[-2]["content"] == "seven\neight nine"
    assert [each["name"] for each in second.kept()] == [f"{time.strftime('%Y-%m-%d')}-one-two-three-four"]
    second.leaves()


@pytest.mark.slow
def test_an_interrupt_stops_an_answer_and_a_killed_chat_loses_no_more_than_its_answer(
    chatting_artifact: Path, tmp_path: Path
) -> None:
    person = Person(chatting_artifact, tmp_path, "--max-new-tokens", "8000")
    person.is_asked()
    person.types("hello\r")
    person.sees_an_answer()
    person.types("typed ahead")
    person.resizes(30, 12)
    time.sleep(0.2)
    person.interrupts()
    person.sees("(stopped)")
    person.shows("> typed ahead")
    stopped = person.messages()
    assert [each["role"] for each in stopped] == ["user", "assistant"]
    person.types("\r")
    person.sees_an_answer()
    person.is_killed()
    later = Person(chatting_artifact, tmp_path, *SHORT, "--continue")
    later.sees("1 exchange")
    later.shows("> typed ahead")  # it waits to be sent again
    assert later.messages() == stopped
    later.interrupts()
    later.leaves()


@pytest.mark.slow
def test_nothing_is_remembered_where_that_is_not_wanted(chatting_artifact: Path, tmp_path: Path) -> None:
    person = Person(chatting_artifact, tmp_path, *SHORT, "--no-history", "--plain", term="dumb")
    person.sees("> ")
    person.types("hello\r")
    person.sees("/continue goes on")
    person.types("/exit\r")
    person.has_left()
    assert not list(tmp_path.iterdir())


# The commands, without a terminal


def test_settings_are_those_of_sampling_and_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(talk(), json=False)
    terminal._do("/set temperature 0.7")
    terminal._do("/set top-k=5")
    terminal._do("/set seed 3")
    terminal._do("/set max_new_tokens 9")
    now = terminal.conversation.settings
    assert (now.sampling.temperature, now.sampling.top_k, now.sampling.seed, now.max_new_tokens) == (0.7, 5, 3, 9)
    terminal._do("/set seed none")
    assert terminal.conversation.settings.sampling.seed is None
    for wrong in ("/set heat 1", "/set temperature hot", "/set top_p 2", "/set max_new_tokens 0"):
        with pytest.raises(UsageError):
            terminal._do(wrong)
    capsys.readouterr()
    terminal._do("/set")
    assert {"temperature 0.7", "top_k 5", "seed none"} <= set(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize("setting", ["temperature 0", "seed 3"])
def test_another_answer_is_another_one(setting: str) -> None:
    terminal = Terminal(talk(), json=False)
    terminal._do("/set temperature 1")
    terminal._do(f"/set {setting}")
    terminal._do("hello")
    answers = {terminal.conversation.messages[-1]["content"]}
    for _ in range(8):
        terminal._do("/retry")
        answers.add(terminal.conversation.messages[-1]["content"])
    assert len(answers) > 4
    assert terminal.conversation.settings.sampling.seed == (3 if setting.startswith("seed") else None)


def test_an_answer_that_ended_by_length_says_so_and_is_continued(capsys: pytest.CaptureFixture[str]) -> None:
    terminal, whole = Terminal(talk(max_new_tokens=3), json=False), talk()
    terminal._do("one")
    assert "(ended after 3 tokens; /continue goes on)" in capsys.readouterr().err
    terminal._do("/set max_new_tokens 100")
    terminal._do("/continue")
    assert terminal.conversation.messages[-1]["content"] == whole.say("one")
    terminal._do("/system Be brief.")
    terminal._do("/tokens")
    assert f"{len(json.loads(terminal.conversation.note)['tokens'])} of 600 tokens are used" in capsys.readouterr().err
    assert terminal.conversation.messages[0] == {"role": "system", "content": "Be brief."}


def test_lines_between_three_quotes_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(['"""one', "two", 'three"""', "four", '"""', "five"])

    def typed() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    reader = Lines()
    assert [reader.read() for _ in range(3)] == ["one\ntwo\nthree", "four", "\nfive"]
    assert unquoted('"""quoted"""') == "quoted"


def test_kept_conversations_are_found_by_model_and_never_overwrite_each_other(tmp_path: Path) -> None:
    one, two = Talks(tmp_path / "chats", "model", "hash"), Talks(tmp_path / "chats", "model", "hash")
    conversation = talk()
    conversation.say("Hello there")
    one.keep(conversation.note)
    assert two.newest().note == conversation.note
    one.keep(conversation.note, "more")
    two.keep(conversation.note, "other")
    assert (one.name + "-2", one.named(one.name).asked, two.named(two.name).asked) == (two.name, "more", "other")
    assert (tmp_path / "chats" / f"{one.name}.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="no earlier conversation with another"):
        Talks(tmp_path / "chats", "another", "hash").newest()
    with pytest.raises(StateFileError, match="tokens are others"):
        Talks(tmp_path / "chats", "model", "other").named(one.name)
    with pytest.raises(UsageError, match=r"no conversation '\.\./secret'"):
        one.named("../secret")
    (tmp_path / "chats" / f"{one.name}.json").write_text("{}")
    os.utime(tmp_path / "chats" / f"{one.name}.json")
    assert Talks(tmp_path / "chats", "model", "hash").newest().asked == "other", "a damaged file is passed over"
    with pytest.raises(StateFileError, match="damaged"):
        one.named(one.name)
