"""scripts/mutants changes what decides something, and nothing else; a test that fails notices it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import mutants as mutants_script
from mutants import Tried, summary
from mutating.mutations import Mutant, mutants

pytestmark = pytest.mark.thorough  # of a campaign script

SOURCE = '''
"""A module of 2 lines."""
LARGEST: dict[str, int] = {"a": 3}

def shorten(text: str, most: int = 3) -> str:
    """Return at most 3 of them."""
    assert most > 0
    if len(text) <= most and not text.isspace():
        return text + "…"
    most -= 1
    text.strip()
    raise ValueError(f"{most + 1} is too few")
'''


def lines(source: str) -> list[str]:
    return [each.apply(source).splitlines()[each.line - 1].strip() for each in mutants(source)]


def test_each_mutant_changes_one_thing_that_runs() -> None:
    expected = [
        'LARGEST: dict[str, int] = {"a": 4}',
        "def shorten(text: str, most: int = 4) -> str:",
        "if (not (len(text) <= most and not text.isspace())):",
        "if ((len(text) <= most) or (not text.isspace())):",
        "if ((len(text)) < (most)) and not text.isspace():",
        "if len(text) <= most and (text.isspace()):",
        "return None",
        'return ((text) - ("…"))',
        "pass",
        "most -= 2",
        "pass",
    ]
    assert sorted(lines(SOURCE)) == sorted(expected)


@pytest.mark.parametrize("module", ["runtime/core/session.py", "cache/block.py", "runtime/core/checkpoint.py"])
def test_every_mutant_is_another_module_that_parses(module: str) -> None:
    source = (Path(__file__).parents[1] / module).read_text(encoding="utf-8")
    found = mutants(source)
    assert len(found) > 10
    assert len({ast.dump(ast.parse(each.apply(source))) for each in found} | {ast.dump(ast.parse(source))}) > len(found) * 0.98


def test_columns_are_bytes() -> None:
    (mutant,) = mutants('name = "größe" + other\n')
    assert mutant.apply('name = "größe" + other\n') == 'name = (("größe") - (other))\n'
    assert mutant == Mutant(1, 7, 1, 24, '(("größe") - (other))')


def test_a_draw_of_a_seed_is_the_same_again() -> None:
    one, again, other = (mutants_script.draw(["runtime/files"], 5, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert {Path(module).parent for module, _ in one} == {Path("runtime/files")}


@pytest.mark.parametrize(("noticed", "code"), [(17, 0), (16, 1)])
def test_too_few_that_are_noticed_fail_the_run(noticed: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = [Tried(str(i), "cache/block.py", i, "a → b", "failed" if i < noticed else "passed") for i in range(20)]
    assert summary(found) == code
    assert f"| all | 20 | {noticed} ({noticed / 20:.0%}) | 0 | {20 - noticed} |" in capsys.readouterr().out
