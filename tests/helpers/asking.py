"""Those who ask a server: by OpenAI's client, and by raw requests."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from openai import OpenAI
from served import Served

CLIENTS: list[OpenAI] = []


def client(one: Served, key: str = "none") -> OpenAI:
    """OpenAI's, which ``close_clients`` closes."""
    return talking_to(f"{one.url}/v1", key)


def talking_to(url: str, key: str) -> OpenAI:
    CLIENTS.append(OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120))
    return CLIENTS[-1]


def close_clients() -> None:
    """Connections are closed here, and not whenever their objects are collected."""
    while CLIENTS:
        CLIENTS.pop().close()


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def ask(
    one: Served, path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = "POST"
) -> tuple[int, Any]:
    """Status and content of a raw request."""
    connection = http.client.HTTPConnection(urlsplit(one.url).netloc, timeout=60)
    data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text.startswith("{") else text
