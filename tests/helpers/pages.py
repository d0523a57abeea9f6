"""Pages for a browser, taken apart: what they show, and what a hostile text could have smuggled in."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
HOSTILE = """<script>alert(1)</script>"><img src=http://a.example onerror=alert(2)>'{{ 7 * 7 }}</style></svg>&amp;\u202e\0"""
TAGS = frozenset(
    {
        *("html", "head", "meta", "link", "title", "style", "body", "h1", "h2", "p", "b", "code", "table", "tr", "th", "td"),
        *("svg", "g", "rect", "text", "line", "circle", "div", "details", "summary", "ul", "li", "span", "input", "label"),
    }
)
VOID = {"meta", "link", "input"}


class Page(HTMLParser):
    """A page's texts, and its faults: tags and attributes that none of ours has, requests to elsewhere, unclosed tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.faults: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"<{tag}> is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            asks = name in ("href", "src", "action", "srcset") and value != "data:,"
            if asks or name.startswith("on") or name == "style":
                self.faults.append(f"{tag} {name}={value}")
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):  # type: ignore[union-attr]
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        elif not self._open or tag in TAGS - {"rect", "line", "circle"}:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def opened(path: Path, *, dark: bool = False) -> tuple[str, list[str]]:
    """What a browser makes of a page, and what it writes into its console."""
    command = [
        BROWSER or "", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"file://{path}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
