"""Counts of what the server did, in Prometheus' text form."""

from __future__ import annotations

import threading

NAMES = {
    "requests_total": ("counter", "requests by path and status"),
    "prompt_tokens_total": ("counter", "tokens of prompts"),
    "cached_tokens_total": ("counter", "tokens of prompts that were not read again"),
    "generated_tokens_total": ("counter", "new tokens"),
    "draft_tokens_total": ("counter", "draft tokens that were verified"),
    "accepted_draft_tokens_total": ("counter", "draft tokens that became text"),
    "running": ("gauge", "generations that take turns"),
    "waiting": ("gauge", "requests that wait for one to end"),
    "cache_bytes": ("gauge", "bytes of the checkpoints that are kept"),
}


class Metrics:
    """Numbers by name and labels; any thread may change them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}

    def add(self, name: str, value: float = 1, labels: str = "") -> None:
        """Count ``value`` more. labels: such as ``status="200"``."""
        with self._lock:
            self._values[name, labels] = self._values.get((name, labels), 0) + value

    def set(self, name: str, value: float) -> None:
        """Let a gauge show ``value``."""
        with self._lock:
            self._values[name, ""] = value

    def render(self) -> str:
        """Return everything in the text form."""
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, what) in NAMES.items():
            lines += [f"# HELP hybridge_{name} {what}", f"# TYPE hybridge_{name} {kind}"]
            found = {labels: value for (known, labels), value in values.items() if known == name} or {"": 0}
            lines += [
                f"hybridge_{name}{{{labels}}} {value:g}" if labels else f"hybridge_{name} {value:g}"
                for labels, value in found.items()
            ]
        return "\n".join(lines) + "\n"
