"""Pictures in requests: data URLs in chats and responses, each encoded once, and what cannot be read refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from picture_files import file_of, noise, sized, url_of
from served import Served, ask, chat, client, running, user

from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.server.app import Server, ServerSettings
from hybridge.runtime.server.worker import SessionSlot
from hybridge.runtime.text import pictures
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.generate import open_text_models

SMALL, LARGE = url_of(file_of(noise(20, 20))), url_of(file_of(noise(100, 50, seed=1), "JPEG"), "jpeg")


@pytest.fixture(scope="module", params=["pictures_artifact"])
def seeing_server(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server of the artifact of the fixture that a test names, LFM2-VL's if it names none."""
    models = open_text_models(request.getfixturevalue(request.param), 2)
    places = [SessionSlot(model.session, model.drafter) for model in models]
    form = AnswerFormat.find(JinjaTemplate(models[0].artifact.folder), models[0].tokenizer)
    server = Server(
        places, models[0].tokenizer, load_template(models[0].artifact).render, PrefixCache(models[0].session.model),
        ServerSettings(name="babble"), form, models[0].pictures,
    )  # fmt: skip
    with running(server, places) as one:
        yield one


def asked(text: str, *urls: str) -> dict[str, Any]:
    """A user's message with pictures after its text."""
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *pictures]}


def encoded_pictures(server: Served) -> float:
    """Pictures that were encoded, once no request runs: they are counted after its answer."""
    server.wait_for("running", 0)
    return server.gauge("encoded_pictures_total")


@pytest.mark.parametrize(
    ("seeing_server", "parts"),
    [
        ("pictures_artifact", 1 + 3),
        ("grid_artifact", 2),
        *(
            pytest.param(f"{form}_artifact", 2, marks=pytest.mark.thorough)
            for form in ("block", "omni", "square", "canvas", "row")
        ),
    ],
    indirect=["seeing_server"],
)
def test_the_second_turn_encodes_nothing(seeing_server: Served, parts: int) -> None:
    first = asked("Look: ", SMALL, LARGE)
    answer = chat(seeing_server, [first], max_tokens=6)
    encoded = encoded_pictures(seeing_server)
    assert encoded == parts
    told = {"role": "assistant", "content": answer.choices[0].message.content}
    more = chat(seeing_server, [first, told, *user("And?")], max_tokens=6)
    assert more.usage.prompt_tokens > answer.usage.prompt_tokens
    again = chat(seeing_server, [first], max_tokens=6)
    assert again.choices[0].message.content == told["content"]
    assert encoded_pictures(seeing_server) == encoded


def test_other_pixels_are_another_conversation(seeing_server: Served) -> None:
    urls = [url_of(file_of(noise(24, 24, seed=seed))) for seed in (5, 6)]
    before = encoded_pictures(seeing_server)
    for url in (*urls, *urls):
        chat(seeing_server, [asked("What? ", url)], max_tokens=4)
    assert encoded_pictures(seeing_server) == before + 2


def test_responses_take_pictures(seeing_server: Served) -> None:
    content = [{"type": "input_text", "text": "Look: "}, {"type": "input_image", "image_url": SMALL, "detail": "auto"}]
    made: Any = client(seeing_server).responses.create(
        model="babble",
        input=[{"role": "user", "content": content}],  # type: ignore[list-item,misc]
        max_output_tokens=4,
    )
    plain = chat(seeing_server, [asked("Look: ", SMALL)], max_tokens=4)
    assert made.output_text == plain.choices[0].message.content


TRUNCATED = url_of(file_of(noise(90, 90))[:700])
REFUSED = {
    "an address": ("https://example.org/cat.jpg", "must be its data"),
    "a file": ("file:///etc/passwd", "must be its data"),
    "no base64": ("data:image/png;base64,@@", "not base64"),
    "no picture": (url_of(b"hello"), "no picture"),
    "a part of one": (TRUNCATED, "damaged"),
    "a bomb": (url_of(sized(20_000, 20_000)), "pixels"),
    "too long and narrow": (url_of(file_of(noise(1, 1).resize((2000, 1)))), "too long and narrow"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_and_the_server_stays_up(seeing_server: Served, name: str) -> None:
    url, reason = REFUSED[name]
    with pytest.raises(openai.BadRequestError, match=reason):
        chat(seeing_server, [asked("Look: ", url)], max_tokens=4)
    assert chat(seeing_server, [asked("Look: ", SMALL)], max_tokens=4).usage.completion_tokens > 0


def test_too_many_pictures(seeing_server: Served) -> None:
    for count, reason in ((65, "at most 64 pictures"), (40, "leaves no room")):
        with pytest.raises(openai.BadRequestError, match=reason):
            chat(seeing_server, [asked("Look: ", *([SMALL] * count))], max_tokens=4)


def test_ids_of_pictures_are_nobodys_to_send(seeing_server: Served) -> None:
    status, answer = ask(seeing_server, "/v1/completions", {"prompt": [1, -5, 6], "max_tokens": 3})
    assert status == 400
    assert "picture" in answer["error"]["message"]


def test_pictures_are_decoded_alone_and_nobody_else_waits(seeing_server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 photos of 24 million pixels at once took 2.2 GB, of which 1.9 GB stayed: six threads decoded them in turns."""
    begun, go_on, threads = threading.Event(), threading.Event(), set[int]()
    decode = pictures.decode

    def waiting(data: bytes) -> NDArray[np.uint8]:
        threads.add(threading.get_ident())
        begun.set()
        assert go_on.wait(60), "the text was not answered"
        return decode(data)

    monkeypatch.setattr(pictures, "decode", waiting)
    with ThreadPoolExecutor(40) as clients:
        seeing = [clients.submit(chat, seeing_server, [asked("Look: ", SMALL)], max_tokens=2) for _ in range(30)]
        try:
            assert begun.wait(60)
            assert chat(seeing_server, user("Hello"), max_tokens=2).usage.completion_tokens > 0
        finally:
            go_on.set()
        assert len({each.result().choices[0].message.content for each in seeing}) == 1
    assert len(threads) == 1
