"""Actions of ``file_child.py`` for pictures: read files, put rows into texts, load saved conversations, send requests."""

from __future__ import annotations

import http.client
import json
import resource
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from picture_files import noise

from campaigns.fuzz.pictures import CHAT, GOOD, MESSAGES, PICTURE, REQUEST, ROWS, request, user
from hybridge.errors import HybridgeError, UsageError
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Session
from hybridge.runtime.server.app import Server, ServerSettings
from hybridge.runtime.server.connections import bound, over
from hybridge.runtime.server.worker import SessionSlot
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings, TextModel, open_text_model, open_text_models

PROMPT = [1, 2, 3, 4, 5]
MOST_MEMORY = 700 << 20
"""Bytes that one picture may take beyond what the process had; one of 67 million pixels takes 8 bytes for each at most."""
Run = Callable[[Path], None]


def of_picture(base: Path) -> Run:
    """Read a file, and put its picture into a text; the session is whole afterwards, and the picture took no more memory."""
    model = open_text_model(base, plain=True)
    session, pictures = model.session, model.pictures
    want = session.prefill(PROMPT)
    session.reset()

    def run(folder: Path) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        try:
            picture = pictures.read(folder / PICTURE)
            assert any(token < 0 for token in picture.ids), "the picture has no rows"
            session.prefill([PROMPT[0], *picture.ids])
            assert picture.encodings > 0, "it is in the text, and was not encoded"
        finally:
            session.reset()
            assert np.array_equal(session.prefill(PROMPT), want), "the session computes something else afterwards"
            session.reset()
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
            assert grown < MOST_MEMORY, f"it took {grown >> 20} MB"

    return run


def of_rows(base: Path) -> Run:
    """Give a session tokens and rows of pictures; it takes whole open pictures alone, and is whole afterwards."""
    session = Session.load(base)
    unit, described = session.model.picture_unit, session.model.manifest.pictures
    assert described is not None
    across = described.tile_size // unit
    shapes = ((across, across),) * 4 if described.form.is_square else ((1, 1), (3, 2), (2, 2), (2, 1))
    opened = [
        Picture(session.model, np.asarray(noise(w * unit, h * unit, seed=i)), prepared=True) for i, (w, h) in enumerate(shapes)
    ]
    ids = [each.ids for each in opened]
    opened.pop().close()
    want = session.prefill(PROMPT)

    def run(folder: Path) -> None:
        said = json.loads((folder / ROWS).read_text())
        pieces = (ids[piece[0]][piece[1] : piece[2]] if len(piece) == 3 else piece for piece in said["pieces"])
        text = [token for piece in pieces for token in piece]
        session.reset()
        session.prefill(PROMPT[:2])
        should = _is_of_wholes(text, ids[: len(opened)], session.vocab_size)
        should &= 0 < len(text) <= session.room - (said["call"] == "generate")
        if said["call"] == "verify":
            should &= min(text, default=-1) >= 0 and len(text) <= session.verify_len
        try:
            match said["call"]:
                case "prefill":
                    session.prefill(text)
                case "verify":
                    session.verify(text)
                    session.commit(len(text))
                case _:
                    list(session.generate(text, max_new_tokens=1))
        except UsageError:
            assert not should, "a text of whole pictures is refused"
            assert session.tokens == PROMPT[:2], "a refused text changed the session's"
            raise
        else:
            assert should, "a text with a part of a picture is taken"
        finally:
            session.reset()
            assert np.array_equal(session.prefill(PROMPT), want), "the session computes something else afterwards"

    return run


def _is_of_wholes(text: Sequence[int], pictures: Sequence[Sequence[int]], vocabulary: int) -> bool:
    """Return whether pieces made whole pictures together, such as the two halves of one."""
    at = 0
    while at < len(text):
        whole = next((rows for rows in pictures if list(text[at : at + len(rows)]) == list(rows)), None)
        if whole is None and not 0 <= text[at] < vocabulary:
            return False
        at += len(whole) if whole is not None else 1
    return True


def of_chat(base: Path) -> Run:
    """Load a saved conversation; one that is refused leaves the open one as it was, and the next answer is the same."""
    model = open_text_model(base, plain=True)
    talk = Conversation(
        model.session, model.tokenizer, load_template(model.artifact), GenerationSettings(max_new_tokens=4),
    )  # fmt: skip
    picture = model.pictures.prepare(GOOD)

    def begin() -> str:
        talk.reset()
        return talk.say(MESSAGES[0], pictures=[picture])

    want = begin()

    def run(folder: Path) -> None:
        before = list(talk.messages)
        try:
            talk.load(folder / CHAT)
        except HybridgeError:
            assert talk.messages == before, "a conversation that is refused changed the open one"
            assert talk.retry() == want, "the open conversation says something else afterwards"
            raise
        try:
            with suppress(UsageError):  # it may be full, or empty
                talk.retry()
                talk.say("Why?")
        finally:
            assert begin() == want, "another conversation says something else afterwards"

    return run


def of_request(base: Path) -> Run:
    """Send a request to two servers, of a model with pictures and of one without; both stay up, and say what is wrong."""
    seeing = _serving(open_text_models(base, 2))
    blind = _serving(open_text_models(base.parent / "hybridge", 1))
    good = request("chat", [user("Look: ", [GOOD])])
    want = _text(_asked(seeing, good))

    def run(folder: Path) -> None:
        data = (folder / REQUEST).read_bytes()
        status, answer = _asked(seeing, data)
        other, _ = _asked(blind, data)
        assert status < 500, f"status {status}: {answer[:200]!r}"
        assert other < 500, f"status {other} without pictures"
        assert _text(_asked(seeing, good)) == want, "the server says something else afterwards"
        if status != 200:
            raise UsageError(_message(answer))

    return run


def _serving(models: Sequence[TextModel]) -> int:
    """Serve a model in a thread until the process ends; return the port."""
    slots = [SessionSlot(model.session, model.drafter) for model in models]
    artifact = models[0].artifact
    form = AnswerFormat.find(JinjaTemplate(models[0].artifact.folder), models[0].tokenizer)
    server = Server(
        slots, models[0].tokenizer, load_template(artifact).render, PrefixCache(models[0].session.model),
        ServerSettings(name="babble"), form, models[0].pictures if artifact.manifest.pictures is not None else None,
    )  # fmt: skip
    opened = bound("127.0.0.1", 0)
    opened = opened.__enter__()
    runner = over(server.app())
    threading.Thread(target=runner.run, kwargs={"sockets": [opened]}, daemon=True).start()
    while not runner.started:
        time.sleep(0.01)
    port: int = opened.getsockname()[1]
    return port


def _asked(port: int, data: bytes) -> tuple[int, bytes]:
    path, _, body = data.partition(b"\n")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    address = "/v1/responses" if path == b"responses" else "/v1/chat/completions"
    connection.request("POST", address, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def _text(answer: tuple[int, bytes]) -> Any:
    status, body = answer
    assert status == 200, f"a good request is refused: {body[:300]!r}"
    return json.loads(body)["choices"][0]["message"]["content"]


def _message(body: bytes) -> str:
    message: str = json.loads(body)["error"]["message"]
    assert message.strip(), "an error without a message"
    return message
