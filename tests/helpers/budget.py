"""Count what a run costs, by the folders of tests, and hold a default run to ``tests/budget.toml``.

Counted are exported programs, units given to compilers, started processes, and processor seconds of this process and of the
children that it waited for. Programs of tests/helpers/store.py and units of CMake builds count even if an earlier run left
them, and the seconds of the store's exports do not: so an empty store and a filled one give the same figures.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from checkout import CHECKOUT
from workers import hands_out_tests

TESTS = CHECKOUT / "tests"
BUDGET = TESTS / "budget.toml"
FIGURES = ("programs", "units", "processes", "seconds")
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")
SOURCES = (".c", ".cpp")
ALL = "all"
START = "start"
"""The file of what a process does outside of tests: imports, and the collection of tests."""
NATIVE = "native/CMakeLists.txt"
"""The file of units that many files ask for: programs of tests/native."""


@dataclass
class Costs:
    """Costs of the tests of a file. programs, units: names, so that what several files share counts once in a sum."""

    programs: set[str] = field(default_factory=set)
    units: set[str] = field(default_factory=set)
    processes: int = 0
    seconds: float = 0.0
    exporting: float = 0.0

    @classmethod
    def sum(cls, costs: list[Costs]) -> Costs:
        """Return what tests of several files cost together."""
        return cls(
            set[str]().union(*(each.programs for each in costs)),
            set[str]().union(*(each.units for each in costs)),
            sum(each.processes for each in costs),
            sum(each.seconds for each in costs),
            sum(each.exporting for each in costs),
        )

    def figures(self) -> dict[str, int]:
        """Return numbers by ``FIGURES``."""
        return dict(zip(FIGURES, (len(self.programs), len(self.units), self.processes, round(self.seconds)), strict=True))

    def plain(self) -> dict[str, Any]:
        """Return what pytest-xdist can send to another process."""
        return vars(self) | {"programs": sorted(self.programs), "units": sorted(self.units)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Costs:
        """Return what ``plain`` was made of."""
        return cls(**plain | {"programs": set(plain["programs"]), "units": set(plain["units"])})


class Counter:
    """Counts in one process of a run, and adds up what pytest-xdist's workers counted."""

    def __init__(self) -> None:
        self.costs: dict[str, Costs] = defaultdict(Costs)
        self._file = START
        self._builds = set[Path]()
        self._store_calls = 0
        # The start of the process is charged, too, but not what the shell had compiled before it became this process.
        self._charged = sum(os.times()[2:4])

    def count_programs(self) -> None:
        """Count programs of the store, and those that tests export themselves, from now on."""
        import store  # not in the process that hands out tests: both take seconds

        from hybridge.export.write import pte

        store.made = self._watch_store(store.made)
        pte.lower = self._watch_export(pte.lower)

    def charge(self, file: str) -> None:
        """Charge what happened since the last call, and then charge ``file``."""
        now = _processor_seconds()
        self.costs[self._file].seconds += now - self._charged
        self._charged = now
        if self._builds:
            from store import FOLDER

            for build in self._builds:
                own = NATIVE if build.parent == FOLDER / "native" else self._file
                self.costs[own].units.update(_units(build))
            self._builds.clear()
        self._file = file

    def _watch_store(self, made: Callable[..., Path]) -> Callable[..., Path]:
        @functools.wraps(made)
        def counted(*arguments: Any) -> Path:
            self.charge(self._file)
            self._store_calls += 1
            try:
                folder = made(*arguments)
            finally:
                self._store_calls -= 1
            now = _processor_seconds()
            costs = self.costs[self._file]
            costs.exporting += now - self._charged
            self._charged = now
            costs.programs |= {f"{folder.name}/{each.parent.name}" for each in folder.glob("*/manifest.json")}
            return folder

        return counted

    def _watch_export(self, export: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(export)
        def counted(*arguments: Any, **options: Any) -> Any:
            if not self._store_calls:
                programs = self.costs[self._file].programs
                programs.add(f"{self._file} {len(programs)}")
            return export(*arguments, **options)

        return counted

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count a process, and the sources that it compiles; CMake's builds are looked at when they are done."""
        if event != "subprocess.Popen":
            return
        words = [arguments[1]] if isinstance(arguments[1], (str, bytes, os.PathLike)) else arguments[1]
        words = [os.fsdecode(each) for each in words]
        costs = self.costs[self._file]
        costs.processes += 1
        program = Path(words[0]).name
        if program == "cmake" and "--build" in words:
            self._builds.add(Path(words[words.index("--build") + 1]))
        if program in COMPILERS or "ziglang" in words:
            costs.units |= {f"{each} by {' '.join(words)}" for each in words if each.endswith(SOURCES)}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Charge a test to its file, with the fixtures that it is the first to want or the last to have."""
        self.charge(item.path.relative_to(TESTS).as_posix())
        result = yield
        self.charge(START)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand a worker's counts to the process that reports them; end a default run that costs too much as a failed one."""
        self.charge(START)
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["costs"] = {file: each.plain() for file, each in self.costs.items()}
            return
        if path := session.config.getoption("costs"):
            path.write_text(json.dumps({file: each.plain() for file, each in self.costs.items()}, indent=1))
        if is_default(session.config) and session.exitstatus == 0 and any(self.over()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a worker counted."""
        for file, plain in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self.costs[file] = Costs.sum([self.costs[file], Costs.from_plain(plain)])

    def rooms(self) -> dict[str, Costs]:
        """Return the costs of each folder of tests, and of all."""
        rooms: dict[str, list[Costs]] = defaultdict(list)
        for file, costs in self.costs.items():
            rooms[room_of(file)].append(costs)
        return {room: Costs.sum(rooms[room]) for room in sorted(rooms)} | {ALL: Costs.sum(list(self.costs.values()))}

    def over(self) -> Iterator[str]:
        """Yield a line for each figure over its budget, with the files that cost most. A folder without a budget has none."""
        budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
        for room, costs in self.rooms().items():
            figures = costs.figures()
            for name, most in budget.get(room, dict.fromkeys(FIGURES, 0)).items():
                if figures[name] > most:
                    files = {file: each.figures()[name] for file, each in self.costs.items() if room in (room_of(file), ALL)}
                    dearest = sorted(files, key=files.__getitem__, reverse=True)[:3]
                    named = ", ".join(f"{file} {files[file]}" for file in dearest)
                    yield f"Over the budget: {room} has {figures[name]} {name}, and tests/budget.toml {most} ({named})"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, and after a default run who is over the budget."""
        if terminalreporter.config.getoption("verbose") < 0 and not is_default(terminalreporter.config):
            return
        terminalreporter.section("costs")
        terminalreporter.write_line(f"{'room':<20}" + "".join(f"{name:>11}" for name in FIGURES))
        rooms = self.rooms()
        for room, costs in rooms.items():
            terminalreporter.write_line(f"{room:<20}" + "".join(f"{number:>11}" for number in costs.figures().values()))
        if exporting := rooms["all"].exporting:
            terminalreporter.write_line(f"The store exported for another {exporting:.0f} processor seconds.")
        for line in self.over() if is_default(terminalreporter.config) else ():
            terminalreporter.write_line(line, red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, metavar="FILE", help="write what the tests of each file cost, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    counter = Counter()
    if not hands_out_tests(config):
        counter.count_programs()
    sys.addaudithook(counter.on_event)
    config.pluginmanager.register(counter, "costs")


def is_default(config: pytest.Config) -> bool:
    """Return whether a run is of all that neither ``slow`` nor ``thorough`` leaves out: the one that has a budget."""
    option = config.getoption
    narrowing = ("fast", "all", "collectonly", "keyword", "markexpr", "lf", "deselect", "ignore", "cov_source")
    narrowed = any(option(name, None) for name in narrowing)
    return not narrowed and list(config.args) in (config.getini("testpaths"), [str(TESTS)])


def room_of(file: str) -> str:
    """Return the folder of a file; the room of what is of no test is ``start``."""
    return str(Path(file).parent) if file != START else START


def _processor_seconds() -> float:
    return sum(os.times()[:4])


def _units(build: Path) -> set[str]:
    """Return the object files of a CMake build: those that were made, of those that it would make."""
    commands = build / "compile_commands.json"
    if not commands.exists():
        return set()
    made = (Path(each["directory"]) / each["output"] for each in json.loads(commands.read_text(encoding="utf-8")))
    return {str(each) for each in made if each.exists()}
