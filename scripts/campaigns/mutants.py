"""Let mutmut change one thing of a module at a time, and print the changes that the given tests do not notice.

Give the module as it is imported (hybridge.cache.block) and the tests that should notice. They run in ``.mutants/``, a copy
of the checkout, where ``mutmut browse`` and ``mutmut show NAME`` then say more. Exit code 1 if too few are noticed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from campaigns import ROOT, campaign

COPY = ROOT / ".mutants"
ROOMS = ("cache", "export", "runtime")
TABLE = "[tool.mutmut]\n"


def main() -> int:
    """Run mutmut over one module."""
    parser = campaign.parser("mutants", __doc__)
    parser.add_argument("module", help="such as hybridge.cache.block")
    parser.add_argument("tests", nargs="+", help="test files, or tests named by ::")
    parser.add_argument("--share", type=float, default=0.85, help="of the mutants, to be noticed (default: 0.85)")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (default: 2)")
    options = parser.parse_args()
    path = Path("src", *options.module.split(".")).with_suffix(".py")
    if missing := [each for each in (str(path), *options.tests) if not (ROOT / each.partition("::")[0]).is_file()]:
        parser.error(f"there is no file {missing[0]}")
    prepare(str(path), options.tests)
    mutmut = str(Path(sys.executable).with_name("mutmut"))
    done = subprocess.run([mutmut, "run", "--max-children", str(options.processes)], cwd=COPY, check=False)
    if done.returncode:
        return 1
    for command in (["results"], ["export-cicd-stats"]):
        subprocess.run([mutmut, *command], cwd=COPY, check=True)
    counts = json.loads((COPY / "mutants" / "mutmut-cicd-stats.json").read_text(encoding="utf-8"))
    noticed, tried = counts["killed"] + counts["timeout"], counts["total"] - counts["skipped"] - counts["no_tests"]
    print(f"{noticed} of {tried} mutants are noticed; {counts['no_tests']} are in functions that these tests do not call")
    return 0 if tried and noticed >= options.share * tried else 1


def prepare(path: str, tests: list[str]) -> None:
    """Copy the checkout, with the rooms as folders of src/hybridge, because mutmut follows no links, and configure mutmut."""
    shutil.rmtree(COPY, ignore_errors=True)
    campaign.copy_checkout(COPY)
    for room in ROOMS:
        inside = COPY / "src" / "hybridge" / room
        inside.unlink()
        (COPY / room).rename(inside)
        (COPY / room).symlink_to(f"src/hybridge/{room}")
    settings = COPY / "pyproject.toml"
    text, ours = settings.read_text(encoding="utf-8"), {"only_mutate": [path], "pytest_add_cli_args_test_selection": tests}
    assert TABLE in text
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in ours.items())
    settings.write_text(text.replace(TABLE, TABLE + lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
