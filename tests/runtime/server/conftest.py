"""A server over a model that babbles, for the tests that need no other one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, browser
from served import Served, close_clients, served


@pytest.fixture(autouse=True)
def _closed_clients() -> Iterator[None]:
    yield
    close_clients()


@pytest.fixture(scope="module")
def babbling_server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as running:
        yield running
