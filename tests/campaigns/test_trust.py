"""``scripts/trust`` runs every campaign and fails if one was wrong; a slice of the processes and the native threads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from campaigns import __main__ as trust
from campaigns.__main__ import CAMPAIGNS, Campaign
from campaigns.processes import checks
from native_programs import native_program
from store import demo_folder


def played(monkeypatch: pytest.MonkeyPatch, campaigns: dict[str, Campaign], *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["trust", *words])
    return trust.main(campaigns)


@pytest.fixture
def campaigns(tmp_path: Path) -> dict[str, Campaign]:
    said = {
        "fine": "import sys; print('head'); print(f'| {len(sys.argv)} words | 0 |')",
        "wrong": "import sys; print('something is lost', file=sys.stderr); sys.exit(1)",
    }
    for name, code in said.items():
        (tmp_path / name).write_text(f"#!{sys.executable}\n{code}\n")
        (tmp_path / name).chmod(0o700)
    fine, wrong = str(tmp_path / "fine"), str(tmp_path / "wrong")
    return {
        "one": Campaign("first", "attacks", "a b c", "a", fine),
        "two": Campaign("second", "attacks", "", None, wrong),
        "three": Campaign("third", "models", "", "", fine),
        "four": Campaign("fourth", "speed", None, None, wrong),
    }


def test_a_wrong_campaign_fails_the_run_and_the_others_run_on(
    campaigns: dict[str, Campaign], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, campaigns, "all", "--logs", str(tmp_path / "logs")) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0].startswith("| one | fine | 0.0 | 4 words , 0 |")
    assert "| two | WRONG, exit code 1 | 0.0 | something is lost |" in lines[1]
    assert lines[2].startswith("| three | fine")
    assert lines[3] == f"two: see {tmp_path / 'logs' / 'two.log'}"
    assert len(lines) == 4


def test_a_quick_run_leaves_out_what_has_no_slice(
    campaigns: dict[str, Campaign], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, campaigns, "attacks", "--quick", "--logs", str(tmp_path / "logs")) == 0
    out = capsys.readouterr().out
    assert "| one | fine | 0.0 | 2 words , 0 |" in out
    assert "two" not in out
    assert "three" not in out


def test_one_campaign_gets_its_arguments_and_its_exit_code_is_that_of_the_run(
    campaigns: dict[str, Campaign], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert played(monkeypatch, campaigns, "one", "a", "--b") == 0
    assert capfd.readouterr().out == "head\n| 3 words | 0 |\n"
    assert played(monkeypatch, campaigns, "four") == 1
    assert played(monkeypatch, campaigns) == 0
    assert re.findall(r"(?m)^  (\w+) +(\w+)$", capfd.readouterr().out) == [
        ("one", "first"), ("two", "second"), ("three", "third"), ("four", "fourth")
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_campaign_knows_its_arguments(name: str) -> None:
    """A wrong option ends each with 2 before it does anything; so would one that has been renamed."""
    chosen = CAMPAIGNS[name]
    for asked in {chosen.long, chosen.quick, ""} - {None} if chosen.script != "pytest" else ():
        words = [*chosen.command(name, str(asked).split()), "--no-such-option"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 2, done.stderr
        if not chosen.script:
            assert re.search(
                r"(unrecognized arguments|No such option): --no-such-option|arguments are required", done.stderr
            ), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "count"), [("loads", 4), ("sessions", 5), ("threads", 3), ("children", 2), ("one_session", 60)]
)
def test_a_slice_of_the_processes(check: str, count: int, kernels_artifact: Path) -> None:
    """In a process of its own: other tests have started threads, which a fork would lose."""
    words = [sys.executable, "-m", "campaigns.processes", "--check", check, kernels_artifact, str(count)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_memory_that_is_not_given_back_is_found(kernels_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(1 << 30, 1 << 40, 1 << 25))
    monkeypatch.setattr(checks, "resident", lambda: next(sizes))
    with pytest.raises(checks.Wrong, match="4 loads added"):
        checks.loads(kernels_artifact, 4)


@pytest.mark.slow
def test_sessions_that_share_a_state_are_found(kernels_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, opened = checks.Session.load, list[checks.Session]()

    def shared(artifact: Path) -> checks.Session:
        if not opened:
            opened.append(load(artifact))
        return opened[0]

    monkeypatch.setattr(checks.Session, "load", shared)
    with pytest.raises(checks.Wrong, match="gives other logits"):
        checks.sessions(kernels_artifact, 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's options are those of Linux")
@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.thorough)])
def test_the_c_interface_has_no_data_races(rounds: int) -> None:
    demo = demo_folder()
    models = demo / "hybridge-demo", demo / "hybridge-demo-draft"
    fine, said = checks.under_the_thread_sanitizer(native_program("threads_sanitized"), *models, rounds)
    assert fine, said
