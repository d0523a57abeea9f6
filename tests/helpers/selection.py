"""Choose and order tests by ``--fast``, ``--all`` and ``--shuffle SEED``; the summary says what was not run and why.

A test without a marker runs in every size. ``slow`` leaves it out of --fast; ``thorough``, and a place in tests/campaigns,
leave it to --all, which is allowed as long as ``scripts/trust broken-features`` finds that the default notices each broken
feature without it. A test that is named by its node id runs in any size.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import pytest

SLOW_FIXTURES = {
    *("artifact", "kernels_artifact", "onnx_artifact", "qwen_artifact"),
    *("demo", "distributions", "kernels"),
}
"""Each is made by an export, a package build or a compiler, in more than a few seconds."""
EXPORTERS = ["hybridge.export.lower.lower._to_edge", "hybridge.export.write.onnx._translate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files, and the tests in each, in a random order")
    sizes = parser.getgroup("sizes").addoption
    sizes("--fast", action="store_true", help="leave out what exports, compiles or is marked as slow")
    sizes("--all", action="store_true", help="run what is marked as thorough, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few tenths of a second; scripts/test --fast leaves it out")
    config.addinivalue_line("markers", "thorough: what the default notices by other tests; only scripts/test --all runs it")


@pytest.hookimpl(tryfirst=True)  # pytest itself then puts tests with the same parameter of a module's fixture together
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "campaigns":
            item.add_marker("thorough")
    if not config.getoption("all") and not any("::" in each for each in config.args):
        chosen = [item for item in items if item.get_closest_marker("thorough") is None]
        if config.getoption("fast"):
            chosen = _fast(chosen)
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen
    if (seed := config.getoption("shuffle")) is not None:
        items[:] = _shuffled(items, random.Random(seed))


def _fast(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return what is quick. A real program runs in test_other_versions.py, whose artifact is there."""
    return [item for item in items if item.get_closest_marker("slow") is None and not SLOW_FIXTURES & _fixtures(item)]


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _by_file(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    return list(files.values())


def _shuffled(items: list[pytest.Item], generator: random.Random) -> list[pytest.Item]:
    """The files stay whole, because what a file's tests share is made once for each visit."""
    files = _by_file(items)
    generator.shuffle(files)
    for each in files:
        generator.shuffle(each)
    return [item for each in files for item in each]


def _skip(*_: object) -> NoReturn:
    pytest.skip("exports, and this is a fast run")


@pytest.fixture(scope="session", autouse=True)
def _exports(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a fast run a test that comes to an export ends there, skipped."""
    with pytest.MonkeyPatch.context() as patch:
        for name in EXPORTERS if request.config.getoption("fast") else ():
            patch.setattr(name, _skip)
        yield


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was not run, a line for each reason with the command that brings what is missing."""
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"Not run: {count} ({reason})")
    if left_out := len(terminalreporter.stats.get("deselected", [])):
        larger = "scripts/test" if terminalreporter.config.getoption("fast") else "scripts/test --all"
        terminalreporter.write_line(f"Not run: {left_out} (of {larger})")
