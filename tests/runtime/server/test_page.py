"""The page to talk to, in a browser: by keyboard, in both schemes, on narrow screens, and against hostile models."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browser import BROWSER, HOSTILE, Browser, browser
from scripted import speaker
from served import alone, chat_tokens, served

from hybridge.runtime.server.app import PAGE, page_headers

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
SAID = "[...document.querySelectorAll('article .text')].map((each) => each.textContent)"
DONE = "document.getElementById('stop').hidden"


@pytest.fixture
def page() -> Iterator[Browser]:
    with browser() as running:
        yield running
        assert running.complaints == []


def say(page: Browser, text: str) -> None:
    page.run("document.getElementById('text').focus()")
    page.type(text)
    page.press("Enter", 13)


def click(page: Browser, words: str, number: int = -1) -> None:
    page.run(f"[...document.querySelectorAll('button')].filter((each) => each.textContent === '{words}').at({number}).click()")


def answered(page: Browser, texts: int) -> list[str]:
    page.wait_for(f"{DONE} && {SAID}.length === {texts}")
    found: list[str] = page.run(SAID)
    return found


def test_a_conversation_with_branches(page: Browser) -> None:
    with served() as one:
        page.open(one.url)
        page.wait_for("document.getElementById('model').textContent === 'babble'")
        page.run("document.getElementById('most').value = '30'")
        say(page, "hello")
        first = answered(page, 2)
        assert first == ["hello", alone(chat_tokens("hello"), 30)]
        say(page, "more")
        second = answered(page, 4)
        assert second[3] == alone(chat_tokens("hello", first[1], "more"), 30)
        notes = page.run("[...document.querySelectorAll('.note')].map((each) => each.textContent)")
        cached = [int(note.partition(" of ")[0].rpartition(" ")[2]) for note in notes]
        assert cached[0] == 0
        assert cached[1] > len(chat_tokens("hello"))
        # Another answer, and back
        click(page, "Retry")
        assert answered(page, 4) == second
        assert page.run("document.querySelector('article:last-child .tools span').textContent") == "2/2"
        click(page, "‹")
        assert page.run("document.querySelector('article:last-child .tools span').textContent") == "1/2"
        # Another first message: what followed the old one is still there
        click(page, "Edit", 0)
        page.run("document.querySelector('article textarea').value = ''; document.querySelector('article textarea').focus()")
        page.type("bye")
        page.press("Enter", 13)
        assert answered(page, 2) == ["bye", alone(chat_tokens("bye"), 30)]
        click(page, "‹")
        assert page.run(SAID) == second
        page.press("n", 78, modifiers=1)
        page.run("document.getElementById('new').click()")
        assert page.run(SAID) == []
        assert {urlsplit(url).netloc for url in page.requests if not url.startswith(("data:", "about:"))} == {
            urlsplit(one.url).netloc
        }


def test_escape_stops_an_answer(page: Browser) -> None:
    with served(seconds=0.01) as one:
        page.open(one.url)
        say(page, "go on")
        page.wait_for(f"({SAID}[1] ?? '').length > 3")
        page.press("Escape", 27)
        page.wait_for(DONE)
        one.wait_for("running", 0)
        assert len(page.run(SAID)[1]) > 3
        assert page.run("document.querySelector('.note').textContent") == "stopped"
        assert page.run("document.activeElement.id") == "text"


def test_tokens_are_coloured_by_where_they_come_from(page: Browser) -> None:
    with served() as one:
        page.open(one.url)
        page.run("document.getElementById('origins').click(); document.getElementById('most').value = '120'")
        say(page, "colours")
        text = answered(page, 2)[1]
        drafted = page.run("[...document.querySelectorAll('.origins .draft')].map((each) => each.textContent).join('')")
        note = page.run("document.querySelector('.note').textContent")
        accepted = int(re.search(r"(\d+) draft tokens accepted", note)[1])  # type: ignore[index]
        assert len(drafted) == accepted  # a token is a byte
        assert len(text) > len(drafted)
        colours = "getComputedStyle(document.querySelector('.origins .{}')).backgroundColor"
        if accepted:
            assert page.run(colours.format("draft")) != page.run(colours.format("own"))


def test_reasoning_is_apart_and_a_hostile_text_stays_text(page: Browser) -> None:
    with speaker(lambda prompt: f"<think>\n{HOSTILE}\n</think>\n\n{HOSTILE}") as one:
        page.open(one.url)
        say(page, "<b>hello</b>")
        said = answered(page, 2)
        assert said == ["<b>hello</b>", HOSTILE]
        assert page.run("document.querySelector('.thought').textContent") == HOSTILE
        assert page.run("document.querySelectorAll('main img, main script, main b').length") == 0
        assert not [url for url in page.requests if "example" in url]


def test_errors_are_told(page: Browser) -> None:
    with served(key="secret") as one:
        page.open(one.url)
        page.wait_for("document.getElementById('status').textContent.includes('API key')")
        page.run("document.getElementById('key').value = 'secret'; document.getElementById('key').onchange()")
        page.wait_for("document.getElementById('model').textContent === 'babble'")
        say(page, "x" * 700)
        page.wait_for("document.querySelector('.error')?.textContent.includes('context')")
        assert page.run("document.querySelectorAll('.error').length") == 1
    page.complaints = [each for each in page.complaints if "status of 40" not in each]


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_screens_and_both_schemes(page: Browser, dark: bool) -> None:
    with served() as one:
        page.look(320, 560, dark=dark)
        page.open(one.url)
        say(page, "w" * 90)
        answered(page, 2)
        assert page.run("document.documentElement.scrollWidth") <= 320
        back, text = (
            sum(map(int, re.findall(r"\d+", page.run(f"getComputedStyle(document.body).{name}"))[:3]))
            for name in ("backgroundColor", "color")
        )
        assert (back < text) == dark
        assert page.picture().startswith(b"\x89PNG")


def test_the_page_runs_nothing_but_its_own() -> None:
    with served() as one:
        connection = http.client.HTTPConnection(urlsplit(one.url).netloc, timeout=30)
        connection.request("GET", "/")
        response = connection.getresponse()
        body, policy = response.read().decode(), response.headers["content-security-policy"]
        connection.close()
    assert body == PAGE
    assert response.headers["content-type"].startswith("text/html")
    assert policy == page_headers(PAGE)["content-security-policy"]
    assert "default-src 'none'" in policy
    assert len(re.findall("'sha256-", policy)) == 2
    assert not re.findall(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:)?//", PAGE)
