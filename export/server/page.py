"""The page to talk to the model at: one file, which asks this server and nobody else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def page_headers(page: str) -> dict[str, str]:
    """Return headers by which a browser runs the page's own script and style, and asks its own server alone."""
    script, style = (" ".join(f"'sha256-{each}'" for each in _hashes(page, tag)) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hashes(page: str, tag: str) -> Iterator[str]:
    for content in re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL):
        yield base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
