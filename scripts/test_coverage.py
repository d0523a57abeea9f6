"""Run the tests and print which lines and branches of cache/, runtime/ and export/ they reach; exit code 1 for too few.

The processes that tests start are measured, too, unless they are killed. ``.coverage-data/`` then says for each line which test
files reach it, and how long each takes: scripts/mutants goes by it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import coverage
from covering.table import Reached, table

ROOT = Path(__file__).parent.parent
LINES, BRANCHES = 0.95, 0.90
"""Wanted of each room."""


def arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(prog="scripts/test-coverage", description=__doc__)
    parser.add_argument("tests", nargs="*", help="test files; all if left out")
    parser.add_argument("--default", action="store_true", help="the default size of scripts/test in place of --all")
    parser.add_argument("--processes", default="auto", help="that run tests (default: auto)")
    parser.add_argument("--data", type=Path, default=ROOT / ".coverage-data", help="where to put what was measured")
    parser.add_argument("--more", action="store_true", help="keep what was measured before, of the same sources")
    parser.add_argument("--report", action="store_true", help="run nothing, and print what was measured before")
    parser.add_argument("--missing", action="store_true", help="print the lines that were not reached, too")
    return parser.parse_args()


def main() -> int:
    """Measure, and print the table; exit code 1 where a test failed or too little is reached."""
    options = arguments()
    tests = options.tests if options.default else ["--all", *options.tests]
    failed = 0 if options.report else measure(options.data, tests, options.processes, more=options.more)
    os.environ |= settings(options.data)
    measured = coverage.Coverage(data_file=str(options.data / "data"), config_file=str(ROOT / "pyproject.toml"))
    if not options.report:
        measured.combine([str(options.data / "parts")], keep=True)
        measured.save()
    measured.load()
    rooms = Reached.rooms(measured, ROOT)
    if options.missing:
        measured.report(show_missing=True, skip_covered=True)
    print(table(rooms))
    enough = all(each.lines >= LINES and each.branches >= BRANCHES for each in rooms.values())
    if failed:
        print("scripts/test-coverage: a test failed", file=sys.stderr)
    return 0 if enough and not failed else 1


def measure(data: Path, tests: list[str], processes: str, *, more: bool) -> int:
    """Run the tests, with every Python process among them measured; pytest's exit code."""
    if data.exists() and not more:
        shutil.rmtree(data)
    (data / "parts").mkdir(parents=True, exist_ok=True)
    (data / "checkout.json").write_text(json.dumps(str(ROOT.resolve())))
    plugin = ["-p", "covering.by_test_file", f"--numprocesses={processes}", "--dist=worksteal"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | settings(data) | {"PYTHONPATH": paths, "COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml")}
    return subprocess.run([sys.executable, "-m", "pytest", *plugin, *tests], cwd=ROOT, env=environment, check=False).returncode


def settings(data: Path) -> dict[str, str]:
    """Return what ``[tool.coverage]`` in pyproject.toml asks the environment for."""
    return {"HYBRIDGE_CHECKOUT": str(ROOT.resolve()), "HYBRIDGE_COVERAGE": str((data / "parts" / "data").resolve())}


if __name__ == "__main__":
    sys.exit(main())
