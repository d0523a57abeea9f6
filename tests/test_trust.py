"""scripts/trust runs every part, says which was wrong, and fails then; scripts/processes and the native threads in a slice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import trust
from processing import checks, native
from trust import PARTS, Part

pytestmark = pytest.mark.thorough  # of a campaign script

SCRIPTS = Path(__file__).parents[1] / "scripts"


def played(monkeypatch: pytest.MonkeyPatch, folder: Path, parts: dict[str, Part], *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trust", "--logs", str(folder), *words])
    return trust.main(parts)


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Part]:
    (tmp_path / "fine.py").write_text("import sys; print('head'); print(f'| {len(sys.argv)} words | 0 |')")
    (tmp_path / "wrong.py").write_text("import sys; print('something is lost', file=sys.stderr); sys.exit(1)")
    fine, wrong = (str(tmp_path / f"{name}.py") for name in ("fine", "wrong"))
    return {"one": Part(fine, "a b c", "a"), "two": Part(wrong, "", None), "three": Part(fine, "", "")}


def test_a_wrong_part_fails_the_run_and_the_others_run_on(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, tmp_path / "logs", parts) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0].startswith("| one | fine | 0.0 | 4 words , 0 |")
    assert "| two | WRONG, exit code 1 | 0.0 | something is lost |" in lines[1]
    assert lines[2].startswith("| three | fine")
    assert lines[3] == f"two: see {tmp_path / 'logs' / 'two.log'}"


def test_a_quick_run_leaves_out_what_has_no_slice(
    parts: dict[str, Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, tmp_path / "logs", parts, "--quick") == 0
    out = capsys.readouterr().out
    assert "| one | fine | 0.0 | 2 words , 0 |" in out
    assert "two" not in out


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if part.script != "pytest"])
def test_every_part_is_a_script_that_knows_its_arguments(name: str) -> None:
    """A wrong option ends each with 2 before it does anything; so would one that has been renamed."""
    for quick in (False, True):
        if quick and PARTS[name].quick is None:
            continue
        words = [*PARTS[name].command(quick), "--no-such-option"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2, done.stderr
        assert re.search(r"(unrecognized arguments|No such option): --no-such-option", done.stderr), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "count"), [("loads", 4), ("sessions", 5), ("threads", 3), ("children", 2), ("one_session", 60)]
)
def test_a_slice_of_the_processes(check: str, count: int, own_artifact: Path) -> None:
    """In a process of its own: other tests have started threads, which a fork would lose."""
    words = [sys.executable, SCRIPTS / "processes.py", "--check", check, own_artifact, str(count)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_memory_that_is_not_given_back_is_found(own_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(1 << 30, 1 << 40, 1 << 25))
    monkeypatch.setattr(checks, "resident", lambda: next(sizes))
    with pytest.raises(checks.Wrong, match="4 loads added"):
        checks.loads(own_artifact, 4)


@pytest.mark.slow
def test_sessions_that_share_a_state_are_found(own_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, opened = checks.Session.load, list[checks.Session]()

    def shared(artifact: Path) -> checks.Session:
        if not opened:
            opened.append(load(artifact))
        return opened[0]

    monkeypatch.setattr(checks.Session, "load", shared)
    with pytest.raises(checks.Wrong, match="gives other logits"):
        checks.sessions(own_artifact, 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's options are those of Linux")
def test_the_c_interface_has_no_data_races(own_artifact: Path) -> None:
    fine, said = native.under_the_thread_sanitizer(own_artifact, 2)
    assert fine, said
