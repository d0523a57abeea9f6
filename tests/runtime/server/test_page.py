"""The chat page over a real server: branches, stopping, where tokens come from, errors, and what its policy allows."""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from browser import BROWSER, HOSTILE, Browser
from campaigns.page_libraries import LIBRARIES, VENDOR
from chat_page import DONE, SAID, answered, click, open_page, reload, say, settings
from scripted import speaker
from served import Served, alone, ask, chat_tokens, served

from hybridge.runtime.server.page_files import FILES

needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
LARGEST_SCRIPT = 400_000
FIGURES = "[...document.querySelectorAll('.figures')].map((each) => each.textContent)"


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    yield window
    complaints = window.complaints
    window.renew()
    assert complaints == []


@needs_browser
def test_a_conversation_with_branches(page: Browser) -> None:
    with served() as one:
        open_page(page, one.url)
        settings(page, max_completion_tokens="30", origins=True)  # the text as it was written
        say(page, "hello")
        first = answered(page, 2)
        assert first == ["hello", alone(chat_tokens("hello"), 30)]
        say(page, "more")
        second = answered(page, 4)
        assert second[3] == alone(chat_tokens("hello", first[1], "more"), 30)
        cached = [int(re.search(r"(\d+) of them remembered", each)[1]) for each in page.run(FIGURES)]  # type: ignore[index]
        assert cached[0] == 0
        assert cached[1] > len(chat_tokens("hello"))
        # Another answer, and back
        place = "document.querySelector('article:last-child .place').textContent"
        click(page, "Retry")
        assert answered(page, 4) == second
        assert page.run(place) == "2/2"
        click(page, "‹")
        assert page.run(place) == "1/2"
        assert page.run("document.activeElement.textContent") == "‹"
        # Another first message: what followed the old one is still there
        click(page, "Edit", 0)
        page.run("document.activeElement.select()")
        page.type("bye")
        page.press("Enter", 13)
        assert answered(page, 2) == ["bye", alone(chat_tokens("bye"), 30)]
        click(page, "‹")
        assert page.run(SAID) == second
        # After a reload the same branches are shown; the last turn is taken back, and its question returns
        reload(page)
        assert answered(page, 4) == second
        assert page.run(place) == "1/2"
        click(page, "Undo")
        assert answered(page, 2) == first
        assert page.run("document.activeElement.value") == "more"
        page.press("n", 78, modifiers=1)
        page.run("document.getElementById('new').click()")
        assert page.run(SAID) == []
        assert {urlsplit(url).netloc for url in page.requests if url.startswith("http")} == {urlsplit(one.url).netloc}


@needs_browser
def test_an_answer_that_reached_its_limit_is_continued(page: Browser) -> None:
    with served() as one:
        open_page(page, one.url)
        settings(page, max_completion_tokens="10", origins=True, presence_penalty="0", frequency_penalty="0")
        say(page, "hello")
        assert answered(page, 2)[1] == alone(chat_tokens("hello"), 10)
        reload(page)
        click(page, "Continue")
        assert answered(page, 2)[1] == alone(chat_tokens("hello"), 20)
        assert page.run("document.querySelector('.note').textContent") == "The answer reached its limit of tokens."


@needs_browser
def test_escape_stops_an_answer(page: Browser) -> None:
    with served(seconds=0.01) as one:
        open_page(page, one.url)
        say(page, "go on")
        page.wait_for(f"({SAID}[1] ?? '').length > 3")
        page.press("Escape", 27)
        page.wait_for(DONE)
        one.wait_for("running", 0)
        said = page.run(SAID)
        assert len(said[1]) > 3
        assert page.run("document.querySelector('.note').textContent") == "Stopped."
        assert page.run("document.activeElement.id") == "text"
        reload(page)
        assert answered(page, 2) == said
        # Deleted while another answer is written, the conversation does not come back
        click(page, "Retry")
        page.wait_for(f"({SAID}[1] ?? '').length > 3")
        click(page, "Delete")
        page.run("document.getElementById('confirm-yes').click()")
        page.wait_for(f"{DONE} && {SAID}.length === 0")
        one.wait_for("running", 0)
        reload(page)
        page.wait_for("document.getElementById('found').textContent === 'No conversations yet.'")


@needs_browser
def test_tokens_are_coloured_by_where_they_come_from(page: Browser) -> None:
    with served(seconds=0.0001) as one:  # it does not end by itself
        open_page(page, one.url)
        settings(page, max_completion_tokens="120", origins=True)
        say(page, "colours")
        text = answered(page, 2)[1]
        drafted = page.run("[...document.querySelectorAll('#log .origins .draft')].map((each) => each.textContent).join('')")
        accepted = int(re.search(r"guessed ahead, (\d+) of them right", page.run(FIGURES)[0])[1])  # type: ignore[index]
        assert 0 < len(drafted) <= accepted  # a token is a byte; the last round may accept more than the limit
        assert len(text) > len(drafted)
        colours = "getComputedStyle(document.querySelector('#log .origins .{}')).backgroundColor"
        assert page.run(colours.format("draft")) != page.run(colours.format("own"))


@needs_browser
def test_reasoning_is_apart_and_a_hostile_text_stays_text(page: Browser) -> None:
    with speaker(lambda prompt: f"<think>\n{HOSTILE}\n</think>\n\n{HOSTILE}") as one:
        open_page(page, one.url)
        say(page, "<b>hello</b>")
        said = [each.replace("\ufffd", "").replace("\0", "").strip() for each in answered(page, 2)]
        assert said == ["<b>hello</b>", HOSTILE.replace("\0", "")]
        assert not page.run("document.querySelector('.reasoning').open")
        page.run("document.querySelector('.reasoning').open = true")
        page.wait_for("document.querySelector('.reasoning .plain').textContent.includes('<script>')")
        assert page.run("document.querySelectorAll('#log img, #log script, #log b').length") == 0
        assert not [url for url in page.requests if "example" in url]


@needs_browser
def test_errors_are_told(page: Browser) -> None:
    with served(key="secret") as one:
        page.open(one.url)
        page.wait_for("document.getElementById('status').textContent.includes('API key')")
        page.run("document.getElementById('key').value = 'secret'")
        page.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        page.wait_for("document.getElementById('model').textContent === 'babble'")
        say(page, "x" * 700)
        page.wait_for("document.querySelector('.error')?.textContent.includes('context')")
        assert page.run("document.querySelectorAll('.error').length") == 1
    page.complaints = [each for each in page.complaints if "status of 40" not in each]


@needs_browser
def test_the_policy_lets_no_other_script_in(page: Browser) -> None:
    with served() as one:
        open_page(page, one.url)
        tried = """(words) => { try { %s; return "done"; } catch (error) { return error.name; } }"""
        assert page.run(f"({tried % 'document.body.innerHTML = words'})('<i>x</i>')") == "TypeError"
        page.run("document.head.append(Object.assign(document.createElement('style'), { textContent: 'body { opacity: 0 }' }))")
        assert page.run("getComputedStyle(document.body).opacity") == "1"
    assert page.complaints
    assert all("Content Security Policy" in each or "TrustedHTML" in each for each in page.complaints)
    page.complaints = []


def get(server: Served, path: str) -> tuple[int, str, str, bytes]:
    """Status, policy, type and body of a response."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers.get("content-security-policy", ""), response.headers["content-type"], body


def test_the_page_and_its_files_are_served_without_a_key() -> None:
    with served(key="secret") as one:
        _, policy, kind, body = get(one, "/")
        assert kind.startswith("text/html")
        nonce = re.findall(r"'nonce-([\w-]{22})'", policy)
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert len(nonce) == 2
        assert body.decode().count(f'nonce="{nonce[0]}"') == 2
        assert get(one, "/")[1] != policy  # a nonce is used once
        for path in re.findall(r'(?:src|href)="(page/[^"]+)"', body.decode()):
            assert get(one, f"/{path}")[0] == 200
        for path, content in FILES.items():
            assert get(one, f"/page/{path}")[3] == content
        for path in ("page.html", "../app.py", "%2e%2e/app.py", "vendor", "vendor/marked.LICENSE", ""):
            assert ask(one, f"/page/{path}", method="GET")[0] == 404, path


def test_the_script_is_small_and_its_libraries_are_the_published_files() -> None:
    scripts = {path: content for path, content in FILES.items() if path.endswith(".js")}
    assert sum(map(len, scripts.values())) <= LARGEST_SCRIPT
    hashes = {name: sha256 for each in LIBRARIES for name, sha256 in zip(each.files.values(), each.hashes, strict=True)}
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()} == hashes
    own = [content.decode() for path, content in FILES.items() if not path.startswith("vendor/")]
    assert not [found for each in own for found in re.findall(r"(?:src|href|url\(|from)\s*=?\s*[\"']?(?:https?:)?//\w+", each)]
