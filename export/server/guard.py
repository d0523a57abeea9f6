"""Requests that are not let in: of other hosts and origins, without the key, too large, too slow."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from hybridge.export.server.errors import ApiError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
BODY_SECONDS = 30.0
"""Within which a body has to be there."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """body: most bytes of one; seconds: that a request may take in all; new_tokens: where a request does not say how many."""

    body: int = 8 << 20
    seconds: float = 600.0
    new_tokens: int = 512


def check_host(request: Request, bound: str) -> None:
    """Raises ApiError on a loopback server for a name that is not this machine's: a web page may have given itself one."""
    try:
        name = request.url.hostname or ""
    except ValueError:
        name = ""
    if bound in LOOPBACK and name not in LOOPBACK:
        raise ApiError(
            403, "this server answers to localhost alone; start it with --host to serve other names.", "permission_error"
        )


def check_key(request: Request, key: str | None) -> None:
    """Raises ApiError where there is a key and the request does not bear it. Takes the same time for every wrong one."""
    if key is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), key.encode())
    if not right or scheme.lower() != "bearer":
        raise ApiError(401, "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'.", "authentication_error",
                       code="invalid_api_key")  # fmt: skip


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a JSON request. Raises ApiError for other kinds, one that is too large, and one that does not come.

    The kind matters: a web page of anybody may send other kinds to this machine without asking.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the body must be JSON, with 'Content-Type: application/json'.")
    too_large = ApiError(413, f"the body is larger than {most} bytes.", code="request_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, f"the body was not there within {BODY_SECONDS:.0f} seconds.", "timeout_error") from None
    except ClientDisconnect:
        raise ApiError(499, "the client went away.", "cancelled") from None
    return bytes(body)
