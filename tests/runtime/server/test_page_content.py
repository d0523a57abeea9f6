"""The chat page over a server in its own script: Markdown, kept conversations, pictures, settings, tools, sizes and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from browser import BROWSER, Browser
from chat_page import CONTRASTS, DONE, SAID, SIZES, VISIBLE, answered, bring_in, click, open_with, reload, reply, say, words
from picture_files import file_of, noise, url_of
from served import Served

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt-get install chromium")
ANSWER = """# Sorting

Here is **merge sort** in *Python*, with `heapq`:

```python
def merge_sort(values: list[int]) -> list[int]:
    return values if len(values) < 2 else list(heapq.merge(*halves(values)))  # stable, in about n log n comparisons
```

| algorithm | average |
|---|--:|
| merge sort | n log n |

1. Split the list.
2. Sort [both][1] halves.

> It needs memory for a copy.

[1]: https://example.org/halves
"""
ATTACKS = [
    "<script>window.bad = 1</script>",
    '<img src=http://a.example/1.png onerror="window.bad = 1">',
    "<svg onload=window.bad=1>",
    "[a](javascript:window.bad=1)",
    "[b](JaVaScRiPt&colon;window.bad=1)",
    "[c](data:text/html,<script>window.bad=1</script>)",
    "![d](http://a.example/2.png)",
    '![e](x" onerror="window.bad=1)',
    "<iframe srcdoc='<script>parent.bad=1</script>'></iframe>",
    '<a href="javascript:window.bad=1">f</a>',
    "<style>body { display: none }</style>",
    "<form action=//a.example><input name=key></form>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.bad=1&gt;">',
    '```" onmouseover="window.bad=1\n</code></pre><script>window.bad = 1</script>\n```',
    "<div style='position: fixed; inset: 0'>g</div>",
    "<details ontoggle=window.bad=1 open>h</details>",
    "[i]: javascript:window.bad=1\n\n[i]",
    ">" * 20_000 + " deep",
    "*" * 5000,
    "[" * 5000,
    "<base href=http://a.example/>",
    '<http://a.example/"onclick=window.bad=1>',
    "| j |\n|---|\n| <img src=x onerror=window.bad=1> |",
]
WEATHER = {"id": "call-1", "function": {"name": "weather", "arguments": '{"place": "Basel"}'}}


@pytest.fixture
def page(window: Browser) -> Iterator[Browser]:
    yield window
    complaints = [*window.complaints]  # the page may still be keeping something in the database that goes now
    window.run(
        "new Promise((done) => { const gone = indexedDB.deleteDatabase('hybridge'); gone.onsuccess = gone.onblocked = done; })"
    )
    window.run("localStorage.clear(), sessionStorage.clear()")
    window.renew()
    assert complaints == []


def test_markdown_grows_as_it_is_written_and_looks_the_same_at_once(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [words(ANSWER)])
    page.run("""new MutationObserver(() => {
      const has = (name) => document.querySelector(name) !== null;
      window.grew ||= has('#log figure.code') && !has('#log table') && !document.getElementById('stop').hidden;
    }).observe(document.getElementById('log'), { childList: true, subtree: true })""")
    page.run("""new MutationObserver((all) => { window.announced = (window.announced ?? 0) + 1; })
      .observe(document.getElementById('announce'), { childList: true })""")
    say(page, "Sort")
    answered(page, 2)
    assert page.run("window.grew")
    assert page.run("window.announced") <= 2  # a screen reader hears of the beginning and of the end, not of each word
    inside = "document.querySelector('#log .markdown').innerHTML.replaceAll(/<div class=\"live\">|<\\/div>/g, '').trim()"
    streamed = page.run(inside)
    for element in (
        "h1",
        "strong",
        "em",
        "p > code",
        "pre .hljs-keyword",
        "pre .hljs-comment",
        "td[align=right]",
        "ol > li",
        "blockquote",
    ):
        assert page.run(f"document.querySelectorAll('#log .markdown {element}').length"), element
    link = "document.querySelector('#log a')"
    assert page.run(f"[{link}.href, {link}.target, {link}.rel]") == [
        "https://example.org/halves",
        "_blank",
        "noopener noreferrer",
    ]
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    click(page, "Copy", 1)
    page.wait_for("window.copied")
    assert page.run("window.copied").startswith("def merge_sort(values: list[int])")
    assert "39 tokens" in page.run("document.querySelector('.figures .plain').textContent")
    assert page.run("document.querySelector('.figures summary').textContent").endswith(" tokens a second")
    reload(page)
    answered(page, 2)
    assert page.run(inside) == streamed


def test_markdown_with_scripts_is_harmless(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [words("")])
    bring_in(page, *({"role": role, "content": each} for each in ATTACKS for role in ("user", "assistant")))
    page.run("[...document.querySelectorAll('#log *')].forEach((each) => each.dispatchEvent(new Event('mouseover')))")
    click(page, "Show earlier messages (6)")
    assert page.run("document.querySelectorAll('#log article').length") == 2 * len(ATTACKS)
    assert page.run("window.bad") is None
    shown = page.run("[...new Set([...document.querySelectorAll('#log .markdown *')].map((each) => each.localName))]")
    assert not set(shown) & {"script", "img", "svg", "iframe", "style", "form", "math", "object", "details", "base", "input"}
    attributes = page.run(
        "[...new Set([...document.querySelectorAll('#log .markdown *')].flatMap((each) => each.getAttributeNames()))]"
    )
    assert not [each for each in attributes if each.startswith("on") or each in ("style", "src", "srcdoc", "id", "name")]
    links = page.run("[...document.querySelectorAll('#log a[href]')].map((each) => each.protocol)")
    assert set(links) <= {"http:", "https:"}
    assert "<script>window.bad = 1</script>" in page.run(SAID)[1]
    assert not [url for url in page.requests if "a.example" in url]


def test_conversations_are_kept_searched_renamed_exported_and_deleted(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [words("The capital is **Bern**.")])
    say(page, "Where is the capital of Switzerland?")
    answered(page, 2)
    click(page, "New conversation")
    say(page, "Another question")
    answered(page, 2)
    reload(page)
    listed = "[...document.querySelectorAll('#chats a')].map((each) => each.firstChild.data)"
    page.wait_for(f"{listed}.length === 2")
    assert page.run(listed) == ["Another question", "Where is the capital of Switzerland?"]
    page.run("document.getElementById('search').focus()")
    page.type("switzer")
    page.wait_for(f"{listed}.length === 1")
    page.run("document.querySelector('#chats a').click()")
    page.wait_for(f"{SAID}[0]?.startsWith('Where')")
    click(page, "Rename")
    page.type("Swiss towns")
    page.press("Enter", 13)
    page.wait_for("document.title.startsWith('Swiss towns')")
    # Export, delete, and bring it back
    page.run("URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; }")
    page.run("HTMLAnchorElement.prototype.click = () => {}")
    page.run("document.getElementById('export-markdown').click()")
    assert page.run("window.saved").split("\n\n")[:3] == ["# Swiss towns", "## You", "Where is the capital of Switzerland?"]
    page.run("document.getElementById('export-json').click()")
    saved = json.loads(page.run("window.saved"))
    assert [each["content"] for each in saved["chats"][0]["messages"]] == [
        "Where is the capital of Switzerland?", "The capital is **Bern**.",
    ]  # fmt: skip
    click(page, "Delete")
    page.run("document.getElementById('confirm-yes').click()")
    page.run(
        "document.getElementById('search').value = ''; document.getElementById('search').dispatchEvent(new Event('input'))"
    )
    page.wait_for(f"{listed}.length === 1")
    bring_in(page, *saved["chats"][0]["messages"])
    assert page.run(SAID) == ["Where is the capital of Switzerland?", "The capital is Bern.\n"]
    page.run("""{ const transfer = new DataTransfer(), field = document.getElementById('import');
      transfer.items.add(new File(['{"chats": 1}'], 'other.json'));
      field.files = transfer.files; field.dispatchEvent(new Event('change')); }""")
    page.wait_for("document.getElementById('status').textContent === 'This is not a file that this page exported.'")


def put(page: Browser, event: str, url: str) -> None:
    """Drop or paste a file."""
    page.run(f"""fetchFile({json.dumps(url)}).then((file) => {{
      const transfer = new DataTransfer();
      transfer.items.add(file);
      const event = "{event}" === "drop" ? new DragEvent("drop", {{ dataTransfer: transfer, bubbles: true, cancelable: true }})
        : new ClipboardEvent("paste", {{ clipboardData: transfer, bubbles: true, cancelable: true }});
      document.getElementById("text").dispatchEvent(event);
      return event.defaultPrevented;
    }})""")


def test_pictures_are_dropped_pasted_removed_and_sent(page: Browser, babbling_server: Served) -> None:
    small, large = url_of(file_of(noise(20, 20))), url_of(file_of(noise(2100, 30, seed=1)))
    open_with(page, babbling_server.url, [words("A cat.")])
    page.run("""window.fetchFile = async (url) => {
      const bytes = Uint8Array.from(atob(url.split(',')[1]), (each) => each.charCodeAt(0));
      return new File([bytes], 'picture', { type: url.slice(5, url.indexOf(';')) });
    }""")
    count = "document.querySelectorAll('#pictures img').length"
    for event, number in (("drop", 1), ("paste", 2), ("drop", 3)):
        put(page, event, small if event == "drop" else large)
        page.wait_for(f"{count} === {number}")
    page.run("document.querySelector('[aria-label=\"Remove picture 3\"]').click()")
    assert page.run(count) == 2
    put(page, "drop", "data:text/plain;base64,aGVsbG8=")
    page.wait_for("document.getElementById('status').textContent === 'Only pictures can be dropped here.'")
    put(page, "drop", "data:image/png;base64,aGVsbG8=")
    page.wait_for("document.getElementById('status').textContent.includes('is no picture')")
    say(page, "What is this?")
    answered(page, 2)
    parts = page.run("sent[0].messages[0].content")
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert parts[0]["image_url"]["url"] == small
    assert parts[1]["image_url"]["url"].startswith("data:image/jpeg;base64,")  # made smaller
    page.wait_for("document.querySelector('#log .pictures img:last-child').naturalWidth > 0")
    assert page.run("[...document.querySelectorAll('#log img')].map((each) => each.naturalWidth)") == [20, 2048]
    reload(page)
    page.wait_for("document.querySelectorAll('#log img').length === 2")


def test_settings_go_with_the_request_and_are_kept(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [words("Yes.")])
    say(page, "Before")
    answered(page, 2)
    assert set(page.run("sent[0]")) == {"messages", "stream", "stream_options", "token_origins"}
    click(page, "New conversation")
    page.run("document.getElementById('open-settings').focus()")
    page.press("Enter", 13)
    assert page.run("document.activeElement.id") == "system"
    page.type("Be brief.")
    page.run("document.querySelector('#settings details').open = true")
    for name, value in (("temperature", "0.7"), ("top_k", "40"), ("max_completion_tokens", "99")):
        page.run(f"document.getElementById('{name}').focus()")
        page.type(value)
    page.run("document.querySelector('[data-setting=thinking]').value = 'off'")
    page.run("document.querySelector('[data-setting=thinking]').dispatchEvent(new Event('change'))")
    click(page, "Done")
    assert page.run("document.activeElement.id") == "open-settings"
    reload(page)
    say(page, "Now")
    answered(page, 2)
    sent = page.run("sent.at(-1)")
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Now"}]
    assert (sent["temperature"], sent["top_k"], sent["max_completion_tokens"]) == (0.7, 40, 99)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}


def test_calls_of_tools_are_shown_and_their_results_sent(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [reply({"reasoning_content": "Ask."}, {"tool_calls": [WEATHER]}), words("It rains.")])
    page.run("localStorage.setItem('hybridge.settings', JSON.stringify({ tools: '[{' }))")
    reload(page)
    say(page, "Weather?")
    page.wait_for("document.getElementById('status').textContent.startsWith('The tools in the settings are not a list')")
    page.run("localStorage.setItem('hybridge.settings', JSON.stringify({ tools: '[{\"type\": \"function\"}]' }))")
    reload(page)
    say(page, "Weather?")
    page.wait_for(f"{DONE} && document.querySelector('.call textarea') !== null")
    assert page.run("document.querySelector('.call summary').textContent") == "Called weather"
    page.run("document.querySelector('.call textarea').focus()")
    page.type("rain")
    click(page, "Send results")
    page.wait_for(f"{DONE} && {SAID}.at(-1) === 'It rains.\\n'")
    sent: list[dict[str, Any]] = page.run("sent.at(-1).messages")
    assert sent[-1] == {"role": "tool", "tool_call_id": "call-1", "content": "rain"}
    assert sent[-2]["tool_calls"] == [{"id": "call-1", "type": "function", "function": WEATHER["function"]}]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_each_width_has_all_controls_in_colours_that_can_be_read(page: Browser, babbling_server: Served, dark: bool) -> None:
    page.look(*SIZES["desk"], dark=dark)
    open_with(
        page, babbling_server.url, [reply({"reasoning_content": "Hm."}, *({"content": each} for each in (ANSWER, "w" * 300)))]
    )
    say(page, "Sort " + "w" * 90)
    answered(page, 2)
    page.run("[...document.querySelectorAll('#log details')].forEach((each) => { each.open = true; })")
    for name, (width, height) in {**SIZES, "small": (320, 560)}.items():
        page.look(width, height, dark=dark)
        page.wait_for(
            f"innerWidth === {width} && document.getElementById('side').inert === {str(width < 800).lower()}"
            " && !document.getAnimations().length"
        )
        assert page.run("document.documentElement.scrollWidth") <= width, name
        assert page.run("document.getElementById('chat').scrollWidth <= document.getElementById('chat').clientWidth"), name
        for control in ("text", "send", "open-settings", "new" if width >= 800 else "open-side"):
            box = page.run(f"document.getElementById('{control}').getBoundingClientRect().toJSON()")
            assert box["left"] >= 0, (name, control)
            assert box["top"] >= 0, (name, control)
            assert box["right"] <= width, (name, control)
            assert box["bottom"] <= height, (name, control)
        small = (
            f"{VISIBLE}.filter((each) => each.matches('button, summary, select') && each.getBoundingClientRect().height < 20)"
        )
        assert page.run(f"{small}.length") == 0, name
        ratios = page.run(CONTRASTS)
        assert len(ratios) > 40
        assert [each for each in ratios if each[0] < 4.5] == [], name
    click(page, "Settings")
    assert [each for each in page.run(CONTRASTS) if each[0] < 4.5] == []
    assert page.run("document.getElementById('settings').scrollWidth <= document.getElementById('settings').clientWidth")
    page.run("document.querySelector('#settings details').open = true")
    done = page.run("document.getElementById('close-settings').getBoundingClientRect().toJSON()")
    assert (
        page.run(f"document.elementFromPoint({done['left'] - 9}, {done['top'] + 9}).className") == "done"
    )  # it covers no field
    back, text = (
        page.run(f"Math.max(...getComputedStyle(document.body).{name}.match(/\\d+/g))") for name in ("backgroundColor", "color")
    )
    assert (back < text) == dark
    page.run("document.querySelector('[data-setting=colours]').value = 'light'")
    page.run("document.querySelector('[data-setting=colours]').dispatchEvent(new Event('change'))")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_everything_has_a_name_and_is_reached_by_keyboard(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [words(ANSWER)])
    say(page, "Sort")
    answered(page, 2)
    tree = page.tell("Accessibility.getFullAXTree")["nodes"]
    roles = (
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "checkbox",
        "region",
        "img",
        "log",
        "navigation",
        "DisclosureTriangle",
    )
    named = [(each["role"]["value"], each.get("name", {}).get("value")) for each in tree if not each.get("ignored")]
    assert [each for each in named if each[0] in roles and not each[1]] == []
    assert {("log", "Messages"), ("textbox", "Message"), ("navigation", "Conversations")} <= set(named)
    page.run("document.getElementById('new').focus()")
    order = []
    while not order or order[-1] != "send":
        order.append(
            page.run("document.activeElement.id || document.activeElement.textContent || document.activeElement.localName")
        )
        assert len(order) < 40, order
        has_outline = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        assert page.run(f"{has_outline} || ['text', 'import'].includes(document.activeElement.id)"), order[-1]
        page.press("Tab", 9)
    for first, then in (
        ("new", "search"),
        ("search", "open-settings"),
        ("open-settings", "Edit"),
        ("Edit", "Retry"),
        ("Retry", "text"),
    ):
        assert order.index(first) < order.index(then)
    page.look(*SIZES["phone"], dark=False)
    page.wait_for("document.getElementById('side').inert")
    page.run("document.getElementById('open-side').click()")
    assert page.run("document.activeElement.id") == "new"
    page.press("Escape", 27)
    assert page.run("document.activeElement.id") == "open-side"


def test_a_conversation_of_10_mb_stays_usable(page: Browser, babbling_server: Served) -> None:
    open_with(page, babbling_server.url, [words("Fine.")])
    texts = [{"role": ("user", "assistant")[i % 2], "content": ANSWER} for i in range(200)]
    bring_in(page, *texts, {"role": "user", "content": "word " * 4000}, repeat=95)  # 200 texts of 43 kB, and one of 1.9 MB
    shown = "document.querySelectorAll('#log article').length"
    assert 1 <= page.run(shown) < 40
    page.run("""new PerformanceObserver((all) => {
      window.longest = Math.max(window.longest ?? 0, ...all.getEntries().map((each) => each.duration));
    }).observe({ entryTypes: ['longtask'] })""")
    say(page, "Go on")
    page.wait_for(f"{DONE} && {SAID}.at(-1) === 'Fine.\\n'")
    assert page.run("JSON.stringify(sent[0]).length") > 10_000_000
    assert (
        page.run("window.longest ?? 0") < 2000
    )  # milliseconds that the page did not answer, on a machine that does other things, too
    reload(page)
    page.wait_for(f"{SAID}.at(-1) === 'Fine.\\n'")
    click(page, "Show more")
    before = page.run(shown)
    page.run("document.getElementById('earlier').click()")
    page.wait_for(f"{shown} > {before}")
