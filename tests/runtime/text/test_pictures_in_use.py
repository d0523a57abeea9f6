"""Pictures in conversations and commands: encoded once, and back after undo, a save and a restart."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from babbling import tokens_of, turns_of
from command_line import Run
from picture_files import file_of, noise
from public_folders import (
    GEMMA_SPECIAL,
    GLM_SPECIAL,
    LFM2_VL_SPECIAL,
    OMNI_SPECIAL,
    PICTURE,
    QWEN_SPECIAL,
)
from state_files import forge_state

from hybridge.errors import HybridgeError, PictureError
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.statistics import GenerationStats
from hybridge.runtime.cli.chat import Terminal
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings, TextModel, open_text_model

SMALL, LARGE = file_of(noise(20, 20)), file_of(noise(100, 50, seed=1))
Begin = Callable[[], tuple[Conversation, TextModel]]


@pytest.fixture
def begin(request: pytest.FixtureRequest) -> Begin:
    """Conversations with the artifact of the fixture that a test names, LFM2-VL's if it names none."""
    artifact: Path = request.getfixturevalue(getattr(request, "param", "pictures_artifact"))

    def opened() -> tuple[Conversation, TextModel]:
        model = open_text_model(artifact, plain=True)
        settings, render = GenerationSettings(max_new_tokens=5), load_template(model.artifact)
        assert model.pictures
        return Conversation(model.session, model.tokenizer, render, settings), model

    return opened


def said(conversation: Conversation, text: str, *pictures: Picture) -> str:
    """All that the model says; some templates begin a reasoning, which a model of random weights does not end."""
    return words(conversation.say, text, pictures=pictures)


def words(ask: Callable[..., str], *given: str, **options: Sequence[Picture]) -> str:
    pieces: list[str] = []
    ask(*given, lambda content, reasoning: pieces.append(reasoning + content), **options)
    return "".join(pieces)


def reopened(begin: Begin, file: Path, *pictures: bytes) -> tuple[Conversation, list[Picture]]:
    """A saved conversation as after a restart, and its pictures, which are those that it has opened again."""
    conversation, model = begin()
    conversation.load(file)
    return conversation, [model.pictures.prepare(data) for data in pictures]


def test_a_conversation_with_two_pictures(begin: Begin, tmp_path: Path) -> None:
    conversation, model = begin()
    first, second = model.pictures.prepare(SMALL), model.pictures.prepare(LARGE)
    answers = [said(conversation, "What is this?", first), said(conversation, "And where?")]
    assert first.encodings == 1
    answers.append(said(conversation, "And this?", second))
    rows = [token for token in tokens_of(conversation) if token < 0]
    assert rows == [row for picture in (first, second) for row in picture.ids if row < 0]
    conversation.save(tmp_path / "talk.state")
    saved = tokens_of(conversation)
    assert words(conversation.retry) == answers[2]
    conversation.undo()
    assert said(conversation, "And this?", second) == answers[2]
    assert (first.encodings, second.encodings) == (1, second.parts)

    other, (again,) = reopened(begin, tmp_path / "talk.state", SMALL)
    assert tokens_of(other) == saved
    assert words(other.retry) == answers[2]
    other.undo()
    assert [len(turn.pictures) for turn in turns_of(other)] == [1, 0]
    assert again.ids == first.ids
    assert said(other, "And then?")
    assert again.encodings == 0

    # A state that no checkpoint has is read again, with the picture that was saved.
    other.checkpoints.clear()
    other.session.reset()
    assert words(other.retry)
    assert again.encodings == 1
    assert other.read_again == 0

    # The conversation keeps its pictures open, and lets go of them.
    again.close()
    other.checkpoints.clear()
    other.session.reset()
    assert words(other.retry)
    other.reset()
    with pytest.raises(PictureError, match="closed"):
        other.session.prefill(again.ids)


def test_a_picture_is_where_the_template_puts_it(begin: Begin) -> None:
    conversation, model = begin()
    picture = model.pictures.prepare(SMALL)
    said(conversation, "Say <image> in words", picture)
    at = tokens_of(conversation).index(LFM2_VL_SPECIAL.index(PICTURE["begin"]))
    assert tokens_of(conversation)[at : at + len(picture.ids)] == picture.ids
    behind = tokens_of(conversation)[at + len(picture.ids) :]
    assert model.tokenizer.decode(behind).startswith("Say <image> in words"), "what people spell stays text"
    assert LFM2_VL_SPECIAL.index("<image>") not in behind[: len("Say <image> in words")]


@pytest.mark.parametrize("begin", ["grid_artifact"], indirect=True)
@pytest.mark.parametrize("words", ["What is this? ", ""])
def test_a_template_that_drops_reasoning_has_no_picture_read_again(begin: Begin, words: str) -> None:
    """Qwen3.5's template opens the reasoning after each prompt, and leaves it out once there is an answer."""
    conversation, model = begin()
    picture = model.pictures.prepare(SMALL)
    said(conversation, words, picture)
    first = tokens_of(conversation)[: turns_of(conversation)[0].answer]
    stats = GenerationStats()
    conversation.say("And where?", stats=stats)
    tokens = tokens_of(conversation)
    assert tokens[: len(first)] != first, "the reasoning is gone"
    known = turns_of(conversation)[1].answer - stats.prompt_tokens
    assert known >= tokens.index(picture.ids[-1]) + 1 + len(model.tokenizer.encode(words.strip()).ids)


PLACES = {
    "grid": (QWEN_SPECIAL, "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"),
    "canvas": (GLM_SPECIAL, "<|begin_of_image|>", "<|image|>", "<|end_of_image|>"),
    "block": (GEMMA_SPECIAL, "<|image>", "<|image|>", "<image|>"),
    "omni": (OMNI_SPECIAL, "<img>", "<image>", "</img>"),
}
"""By form: its special tokens, and those before a picture, in its place in the template, and after it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "form"),
    [
        pytest.param(f"{form}_artifact", form, marks=pytest.mark.thorough if form in ("canvas", "omni") else ())
        for form in PLACES
    ],
    indirect=["begin"],
)
def test_a_picture_is_between_tokens(begin: Begin, form: str) -> None:
    """The template writes them, or leaves them to the processor."""
    conversation, model = begin()
    picture, (special, *names) = model.pictures.prepare(SMALL), PLACES[form]
    said(conversation, f"Say {names[1]} in words", picture)
    tokens, (start, row, end) = tokens_of(conversation), map(special.index, names)
    ids = picture.ids if picture.ids[0] == start else [start, *picture.ids, end]
    at = tokens.index(start)
    assert (ids[0], ids[-1]) == (start, end)
    assert tokens[at : at + len(ids)] == ids
    assert row not in tokens[: at + len(ids) + 20], "what people spell stays text"
    assert form != "omni" or model.tokenizer.decode(tokens[at + len(ids) :]).startswith("\nSay <image> in words")


def test_a_saved_conversation_has_the_pixels_of_its_pictures(begin: Begin) -> None:
    conversation, model = begin()
    said(conversation, "What is this?", model.pictures.prepare(SMALL), model.pictures.prepare(LARGE))
    small, large = json.loads(conversation.note)["turns"][0]["pictures"]
    size, pixels = small.rsplit(" ", 1)
    assert (size, len(base64.b64decode(pixels))) == ("1x1 16x16", 16 * 16 * 3)
    assert large.startswith("1x2 32x32 32x32 40x16 ")


def test_more_pictures_than_a_file_takes(begin: Begin, tmp_path: Path) -> None:
    conversation, model = begin()
    said(conversation, "What is this?", model.pictures.prepare(SMALL))
    note = json.loads(conversation.note)
    note["turns"][0]["rendered"] += " " * (61 << 20)
    model.session.save(tmp_path / "talk.state", json.dumps(note))
    other, _ = begin()
    other.load(tmp_path / "talk.state")
    with pytest.raises(PictureError, match="undo messages"):
        other.save(tmp_path / "other.state")
    assert not (tmp_path / "other.state").exists()


@pytest.mark.parametrize("saved", ["", "x", "1x1", "1x1 24x24 AAAA", "0x1 24x24 AAAA", "1x2 1x1 AAAA", "1x1 65536x1 AAAA"])
def test_saved_pictures_that_are_damaged(begin: Begin, tmp_path: Path, saved: str) -> None:
    conversation, model = begin()
    said(conversation, "What is this?", model.pictures.prepare(SMALL))
    note = json.loads(conversation.note)
    note["turns"][0]["pictures"] = [saved]
    model.session.save(tmp_path / "talk.state", json.dumps(note))
    other, _ = begin()
    with pytest.raises(PictureError, match="a picture of the conversation is damaged"):
        other.load(tmp_path / "talk.state")
    assert (tokens_of(other), other.session.length) == ([], 0)


def test_a_saved_conversation_that_is_refused_changes_nothing(begin: Begin, tmp_path: Path) -> None:
    """The fuzzer found that the open conversation was gone after one with a damaged picture."""
    conversation, model = begin()
    said(conversation, "What is this?", model.pictures.prepare(SMALL))
    conversation.save(tmp_path / "talk.state")
    forge_state(tmp_path / "talk.state", _damage_picture)
    answer = said(conversation, "And where?")
    before = conversation.messages, tokens_of(conversation)
    with pytest.raises(HybridgeError):
        conversation.load(tmp_path / "talk.state")
    assert (conversation.messages, tokens_of(conversation)) == before
    assert conversation.retry() == answer


def _damage_picture(content: bytearray) -> None:
    at = content.index(b'{"messages"')
    note = json.loads(content[at:])
    note["turns"][0]["pictures"] = [base64.b64encode(b"no picture").decode()]
    written = json.dumps(note).encode()
    content[at - 8 :] = struct.pack("<Q", len(written)) + written


def test_the_terminal_takes_pictures(begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversation, model = begin()
    terminal = Terminal(conversation, json=False, picture=model.pictures.read)
    (tmp_path / "cat.png").write_bytes(LARGE)
    terminal._do(f"/image {tmp_path / 'cat.png'}")
    terminal._do("What is this?")
    terminal._do("Sure?")
    assert [len(turn.pictures) for turn in turns_of(conversation)] == [1, 0]
    assert "a picture of 47 tokens in 1 x 2 tiles" in capsys.readouterr().err
    with pytest.raises(PictureError, match="cannot be read"):
        terminal._do("/image missing.png")


@pytest.mark.slow
def test_run_with_pictures(cli: Run, pictures_artifact: Path, tmp_path: Path) -> None:
    for name, data in (("a.png", SMALL), ("b.png", LARGE), ("half.png", LARGE[:900])):
        (tmp_path / name).write_bytes(data)
    command = ("run", pictures_artifact, "--prompt", "Which one?", "--max-new-tokens", 5, "--json")
    one = json.loads(cli(*command, "--image", tmp_path / "a.png").raw)
    both = json.loads(cli(*command, "--image", tmp_path / "a.png", "--image", tmp_path / "b.png").raw)
    assert both["prompt_tokens"] - one["prompt_tokens"] == 47
    plain = json.loads(cli(*command, "--chat").raw)
    assert one["prompt_tokens"] - plain["prompt_tokens"] > 4
    for name, reason in (("half.png", "is damaged"), ("missing.png", "cannot be read")):
        done = cli(*command, "--image", tmp_path / name)
        assert done.code == 2
        assert reason in done.err


@pytest.mark.slow
def test_run_with_pictures_on_a_grid(cli: Run, grid_artifact: Path, tmp_path: Path) -> None:
    for name, data in (("a.png", SMALL), ("b.png", LARGE)):
        (tmp_path / name).write_bytes(data)
    command = ("run", grid_artifact, "--prompt", "Which one?", "--max-new-tokens", 12, "--json")
    pictures = ("--image", tmp_path / "a.png", "--image", tmp_path / "b.png")
    one, both = (json.loads(cli(*command, *shown).raw) for shown in (pictures[:2], pictures))
    assert both["prompt_tokens"] - one["prompt_tokens"] == 2 + 10, "100 x 50 pixels are 5 x 2 rows, between two tokens"
    assert json.loads(cli(*command, *pictures, "--drafter").raw)["text"] == both["text"]


@pytest.mark.slow
def test_a_text_only_artifact_is_asked_about_a_picture(cli: Run, kernels_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(SMALL)
    done = cli("run", kernels_artifact, "--prompt", "What is this?", "--image", tmp_path / "a.png")
    assert done.code == 2
    assert "takes no pictures" in done.err
