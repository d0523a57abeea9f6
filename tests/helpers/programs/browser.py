"""A browser without a window, told what to do over a pipe (the Chrome DevTools protocol), and what a page did in it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
HOSTILE = """<script>alert(1)</script>"><img src=http://a.example onerror=alert(2)>'{{ 7 * 7 }}</style></svg>&amp;\u202e\0"""
"""A text that tries to become a part of the page that shows it."""


class Browser:
    """One page. requests: the addresses that it asked; complaints: what went wrong in it; scripts: run in each page."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._held, self._number, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.scripts: list[str] = []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.tell(f"{domain}.enable")
        self.look(1280, 800, dark=False)

    def tell(self, method: str, **params: Any) -> Any:
        """Give a command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        os.write(self._commands, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self._number:
                assert "error" not in got, got["error"]
                return got["result"]
            self._note(got.get("method"), got.get("params", {}))

    def run(self, script: str) -> Any:
        """Return what an expression is in the page."""
        result = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, script: str, seconds: float = 20.0) -> Any:
        """Return what an expression is once it is true; fails where it does not become so."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"{script} is {value}; {self.complaints}"
            time.sleep(0.02)
        return value

    def open(self, url: str) -> None:
        """Go to an address."""
        self.tell("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.tell("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press a key and let it go."""
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.tell("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers,
                      **(more if kind == "keyDown" else {}))  # fmt: skip

    def look(self, width: int, height: int, *, dark: bool) -> None:
        """Have a window of that size, in that scheme of colours."""
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def renew(self) -> None:
        """Leave the page, and forget what happened in it."""
        for each in self.scripts:
            self.tell("Page.removeScriptToEvaluateOnNewDocument", identifier=each)
        self.tell("Page.navigate", url="about:blank")
        self.look(1280, 800, dark=False)
        self.requests, self.complaints, self.scripts = [], [], []

    def picture(self) -> bytes:
        """Return what can be seen, as PNG."""
        return base64.b64decode(self.tell("Page.captureScreenshot", format="png")["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            self._held += os.read(self._answers, 1 << 16)
        message, _, self._held = self._held.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Start one, and end it."""
    (here_commands, commands), (answers, here_answers) = os.pipe(), os.pipe()
    assert BROWSER is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # The pipe's ends are descriptors 3 and 4 there.
        script = f'exec 3<&{here_commands} 4>&{here_answers}; exec "$@"'
        words = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={home}")
        running = subprocess.Popen(
            ["bash", "-c", script, "bash", BROWSER, *words], pass_fds=(here_commands, here_answers),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(here_commands)
        os.close(here_answers)
        try:
            yield Browser(commands, answers)
        finally:
            running.terminate()
            running.wait()
            os.close(commands)
            os.close(answers)
