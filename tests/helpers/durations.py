"""Where a run's time goes: ``--durations-file PATH`` writes seconds by test and by fixture, and by what they were spent on.

``scripts/durations.py`` groups such a file. Seconds are of the process that ran the test, each counted once.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

COMPILERS = ("cc", "gcc", "g++", "clang", "clang++", "c++", "cmake", "make", "ninja", "zig", "swiftc", "javac", "kotlinc")
LEAST = 0.2
"""Seconds below which a test or fixture is not listed by itself."""


class Stopwatch:
    """Seconds by kind, each moment counted for the innermost ``timed``."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def timed(self, kind: str) -> Iterator[None]:
        self.split()
        self._open.append(kind)
        try:
            yield
        finally:
            self.split()
            self._open.pop()

    def split(self) -> None:
        """Count the time until now."""
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", metavar="PATH", help="write seconds by test, fixture and kind of work to PATH")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("durations_file"):
        config.pluginmanager.register(Durations(config), "durations-of-hybridge")


class Durations:
    """Measures in each process and gathers in the first."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._watch = Stopwatch()
        self._fixtures: Counter[str] = Counter()
        self._all_fixtures: Counter[str] = Counter()
        self._tests: dict[str, Counter[str]] = defaultdict(Counter)
        if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
            _watch_work(self._watch)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self._fixtures[f"{fixturedef.baseid or 'conftest'}::{fixturedef.argname}"] += time.perf_counter() - before

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._watch.seconds.clear()
        self._fixtures.clear()
        kind = "property" if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) else "rest"
        with self._watch.timed(kind):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        outcome = yield
        self._watch.split()
        spent = {"kinds": dict(self._watch.seconds), "fixtures": dict(self._fixtures)}
        outcome.get_result().user_properties.append(("spent", spent))
        self._watch.seconds.clear()
        self._fixtures.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(self._config, "workerinput"):
            return
        for name, spent in report.user_properties:
            if name == "spent":
                self._tests[report.nodeid].update(spent["kinds"])
                self._all_fixtures.update(spent["fixtures"])
        report.user_properties.clear()

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workerinput"):
            return
        listed = {test: kinds for test, kinds in self._tests.items() if kinds.total() >= LEAST}
        small: Counter[str] = Counter()
        for test, kinds in self._tests.items():
            if test not in listed:
                small.update(kinds)
        text = {
            "tests": {test: _rounded(kinds) for test, kinds in sorted(listed.items())},
            "others": {"count": len(self._tests) - len(listed), **_rounded(small)},
            "fixtures": _rounded({name: each for name, each in sorted(self._all_fixtures.items()) if each >= LEAST}),
        }
        Path(self._config.getoption("durations_file")).write_text(json.dumps(text, indent=0) + "\n", encoding="utf-8")


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(each, 2) for name, each in seconds.items() if each >= 0.005}


def _watch_work(watch: Stopwatch) -> None:
    import torch
    from executorch.exir import EdgeProgramManager

    from hybridge.export.lower import lower
    from hybridge.export.write import onnx as trace

    _wrap(torch.export, "export", watch, lambda *_: "export")
    _wrap(lower, "_to_edge", watch, lambda *_: "export")
    _wrap(EdgeProgramManager, "to_executorch", watch, lambda *_: "export")
    _wrap(trace, "_translate", watch, lambda *_: "export")
    for name in ("__init__", "wait", "communicate"):
        _wrap(subprocess.Popen, name, watch, _kind_of_process)


def _kind_of_process(process: Any, *arguments: Any) -> str:
    command = getattr(process, "args", None) or (arguments[0] if arguments else "")
    words = [command] if isinstance(command, (str, bytes)) else [str(each) for each in command]
    return "compilation" if any(Path(str(word)).name in COMPILERS for word in words[:3]) else "process"


def _wrap(owner: Any, name: str, watch: Stopwatch, kind: Callable[..., str]) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def timed(*arguments: Any, **options: Any) -> Any:
        with watch.timed(kind(*arguments)):
            return original(*arguments, **options)

    setattr(owner, name, timed)
