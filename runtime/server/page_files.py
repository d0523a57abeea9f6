"""The chat page: files that a browser loads from this server, with the policy that lets it load no others."""

from __future__ import annotations

import secrets
from pathlib import Path

from starlette.responses import HTMLResponse, Response

FOLDER = Path(__file__).parent / "page"
KINDS = {".js": "text/javascript", ".css": "text/css"}
HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}
PAGE = (FOLDER / "page.html").read_text(encoding="utf-8")
FILES = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in sorted(FOLDER.rglob("*")) if path.suffix in KINDS}
"""Scripts and styles, by their paths below ``/page/``."""


def page_response() -> Response:
    """Return the page. Its policy allows scripts and styles by a number that is used once, and requests to this server alone.

    A script that gets into the page has no such number, and Trusted Types let only the sanitizer make elements of a text.
    """
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types dompurify"
    )
    return HTMLResponse(PAGE.replace("NONCE", nonce), headers=HEADERS | {"content-security-policy": policy})


def file_response(name: str) -> Response | None:
    """Return a script or style of the page, or None if there is none of that name."""
    content = FILES.get(name)
    if content is None:
        return None
    return Response(content, headers=HEADERS, media_type=f"{KINDS[Path(name).suffix]}; charset=utf-8")
