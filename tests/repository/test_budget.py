"""The budget of a default run: what counts, what counts once, and who is named if it is not kept."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import budget
import pytest
import store
from budget import ALL, BUDGET, START, TESTS, Costs, Counter, is_default, room_of
from workers import hands_out_tests

from hybridge.export.write import pte


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """A counter of three files, whose budget is kept."""
    monkeypatch.setattr(budget, "BUDGET", tmp_path / "budget.toml")
    limits = {"cache": "programs = 1\nseconds = 9", "runtime/cli": "programs = 2\nprocesses = 5", ALL: "programs = 2"}
    (tmp_path / "budget.toml").write_text("".join(f'["{room}"]\n{each}\n' for room, each in limits.items()))
    counter = Counter()
    counter.costs |= {
        "cache/test_a.py": Costs({"one"}, set(), 2, 4.0),
        "runtime/cli/test_b.py": Costs({"one", "two"}, set(), 3, 1.0),
        "runtime/cli/test_c.py": Costs({"two"}, set(), 1, 2.0),
    }
    return counter


def test_a_program_that_files_share_counts_once(counter: Counter) -> None:
    assert {room: len(costs.programs) for room, costs in counter.rooms().items()} == {"cache": 1, "runtime/cli": 2, ALL: 2}
    assert list(counter.over()) == []


def test_who_costs_more_is_named(counter: Counter) -> None:
    counter.costs["runtime/cli/test_c.py"].programs.add("three")
    counter.costs["cache/test_a.py"].seconds += 6
    assert list(counter.over()) == [
        "Over the budget: cache has 10 seconds, and tests/budget.toml 9 (cache/test_a.py 10)",
        "Over the budget: runtime/cli has 3 programs, and tests/budget.toml 2 "
        "(runtime/cli/test_b.py 2, runtime/cli/test_c.py 2)",
        "Over the budget: all has 3 programs, and tests/budget.toml 2 "
        "(runtime/cli/test_b.py 2, runtime/cli/test_c.py 2, cache/test_a.py 1)",
    ]


def test_a_folder_without_a_budget_may_cost_nothing(counter: Counter) -> None:
    counter.costs["export/test_d.py"] = Costs({"one"})
    assert list(counter.over()) == ["Over the budget: export has 1 programs, and tests/budget.toml 0 (export/test_d.py 1)"]


def test_what_the_store_has_counts_and_its_exports_take_no_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(kind: str) -> Path:
        (tmp_path / kind / "artifact").mkdir(parents=True, exist_ok=True)
        (tmp_path / kind / "artifact" / "manifest.json").touch()
        sum(range(3_000_000))
        return tmp_path / kind

    monkeypatch.setattr(store, "made", made)
    monkeypatch.setattr(pte, "lower", lambda methods: methods)
    counter = Counter()
    counter.count_programs()
    counter.charge("cache/test_a.py")
    for kind in ("a", "b", "a"):
        store.made(kind)
    pte.lower({})  # an export of a test's own
    counter.charge(START)
    costs = counter.costs["cache/test_a.py"]
    assert costs.programs == {"a/artifact", "b/artifact", "cache/test_a.py 2"}
    assert costs.seconds < costs.exporting


def test_processes_and_units_are_counted() -> None:
    counter = Counter()
    counter.charge("cache/test_a.py")
    for words in (["/usr/bin/g++", "-c", "one.cpp", "two.c", "-o", "three.o"], ["nm", "one.cpp"], "true"):
        counter.on_event("subprocess.Popen", (None, words, None, None))
    counter.on_event("open", ("one.cpp", "r", 0))
    counter.charge(START)
    costs = counter.costs["cache/test_a.py"]
    assert (costs.processes, len(costs.units)) == (3, 2)


def test_what_was_compiled_before_the_run_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell that became this process had waited for compilers: their processor seconds are this process's, too."""
    monkeypatch.setattr(os, "times", lambda: os.times_result((5.0, 1.0, 700.0, 42.0, 0.0)))
    counter = Counter()
    counter.charge("cache/test_a.py")
    assert counter.costs[START].seconds == 6


def test_the_units_of_a_build_are_those_that_were_made(tmp_path: Path) -> None:
    names = ("a.o", "b.o", "of a target that nobody wants.o")
    commands = [{"directory": str(tmp_path), "output": name} for name in names]
    (tmp_path / "compile_commands.json").write_text(json.dumps(commands))
    for name in names[:2]:
        (tmp_path / name).touch()
    counter = Counter()
    counter.charge("cache/test_a.py")
    counter.on_event("subprocess.Popen", (None, ["cmake", "--build", str(tmp_path), "--target", "x"], None, None))
    counter.charge(START)
    assert {Path(unit).name for unit in counter.costs["cache/test_a.py"].units} == {"a.o", "b.o"}


def test_a_run_without_pytests_cache_is_none_of_all() -> None:
    """Its options are not there then, and each run ended with an error: scripts/trust broken-features took that for a find."""

    def option(name: str, *default: object) -> object:
        if name == "lf" and not default:
            raise ValueError(f"no option named {name!r}")
        return None

    config: Any = SimpleNamespace(getoption=option, args=["tests/cache"], getini=lambda name: ["tests"])
    assert not is_default(config)
    config.args = ["tests"]
    assert is_default(config)


def test_the_budget_has_every_folder_of_tests() -> None:
    folders = {room_of(path.relative_to(TESTS).as_posix()) for path in TESTS.rglob("test_*.py")} - {"campaigns"}
    assert set(tomllib.loads(BUDGET.read_text(encoding="utf-8"))) == {*folders, "native", START, ALL}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"dist": "worksteal", "tx": ["popen"] * 2}, True),
        ({"dist": "worksteal", "tx": []}, False),  # without --numprocesses
        ({"dist": "no", "tx": []}, False),
        ({"dist": "worksteal", "tx": ["popen"], "collectonly": True}, False),
        ({}, False),  # without pytest-xdist
    ],
)
def test_which_process_only_hands_out_tests(options: dict[str, Any], wanted: bool) -> None:
    config: Any = SimpleNamespace(getoption=lambda name, default=False: options.get(name, default))
    assert hands_out_tests(config) == wanted
