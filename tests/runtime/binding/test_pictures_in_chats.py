"""Pictures in chats of the core: where the template puts them, encoded once, and back after undo, a save and a restart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from picture_files import noise

from hybridge.errors import CapacityError, PictureError, UsageError
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.interface import GenerationStruct
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.text.generate import TextModel, open_text_model

FIVE = GenerationStruct(max_new_tokens=5)
MORE = [pytest.param(f"{form}_artifact", marks=pytest.mark.thorough) for form in ("square", "omni", "canvas", "row")]
ARTIFACTS = pytest.mark.parametrize("artifact", ["pictures_artifact", "grid_artifact", *MORE])


def pixels(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.asarray(noise(width, height, seed=seed))


def opened(request: pytest.FixtureRequest, name: str) -> TextModel:
    folder: Path = request.getfixturevalue(name)
    model = open_text_model(folder, plain=True)
    assert model.pictures.model is model.session.model
    return model


def chat_of(model: TextModel) -> Chat:
    return Chat.over(model.session, model.tokenizer, JinjaTemplate(model.artifact.folder), "Be brief.")


def said(chat: Chat, text: str, *pictures: Picture) -> str:
    pieces = list[str]()
    chat.send(text, lambda content, reasoning: pieces.append(reasoning + content), FIVE, pictures=pictures)
    return "".join(pieces)


@ARTIFACTS
def test_two_pictures_are_encoded_once(request: pytest.FixtureRequest, artifact: str, tmp_path: Path) -> None:
    model = opened(request, artifact)
    first, second = Picture(model.session.model, pixels(20, 20)), Picture(model.session.model, pixels(50, 30, 1))
    chat = chat_of(model)
    answers = [said(chat, "What is this?", first), said(chat, "And this?", second)]
    chat.save(tmp_path / "talk.state")
    chat.undo()
    assert said(chat, "And this?", second) == answers[1]
    assert (first.encodings, second.encodings) == (first.parts, second.parts)

    model = opened(request, artifact)  # as after a restart
    chat = chat_of(model)
    chat.load(tmp_path / "talk.state")
    again = [Picture(model.session.model, pixels(20, 20)), Picture(model.session.model, pixels(50, 30, 1))]
    assert [each.ids for each in again] == [first.ids, second.ids]
    assert [each["content"][0] for each in chat.messages if not isinstance(each["content"], str)] == [{"type": "image"}] * 2
    said(chat, "Go on.")  # a template that leaves the opened reasoning out writes the answer in another way now
    assert sum(each.encodings for each in again) == 0
    chat.undo()
    pieces = list[str]()
    chat.retry(lambda content, reasoning: pieces.append(reasoning + content), FIVE)
    assert "".join(pieces) == answers[1]
    chat.undo()
    assert len(chat.messages) == 3
    assert sum(each.encodings for each in again) == 0


@ARTIFACTS
def test_what_is_refused_changes_nothing(request: pytest.FixtureRequest, artifact: str) -> None:
    model = opened(request, artifact)
    picture = Picture(model.session.model, pixels(100, 50))
    chat = chat_of(model)
    said(chat, "Hello")
    before = chat.note
    with pytest.raises(CapacityError, match="leaves no room"):
        said(chat, "And?", *[picture] * 12)
    assert chat.note == before
    assert picture.encodings == 0
    other = opened(request, artifact)
    with pytest.raises(UsageError, match="another model"):
        said(chat_of(other), "What is this?", picture)
    picture.close()
    with pytest.raises(UsageError):
        said(chat, "What is this?", picture)
    assert chat.note == before


def test_a_template_without_a_place_for_pictures(request: pytest.FixtureRequest) -> None:
    model = opened(request, "pictures_artifact")
    chat = Chat.over(model.session, model.tokenizer, JinjaTemplate("{{ messages[-1].role }}"))
    with pytest.raises(PictureError, match="made 0 places for 1 pictures"):
        said(chat, "What is this?", Picture(model.session.model, pixels(20, 20)))
    assert json.loads(chat.note)["messages"] == []
