"""``optimum-cli export hybridge``: optimum's own program finds the command and passes everything on to ours."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import exit_code
from optimum.commands.optimum_cli import main
from tiny import save_checkpoint, tiny_config
from typer.testing import CliRunner

import hybridge
from hybridge.__main__ import tree
from hybridge.runtime import Session

SCRIPT = Path(sys.executable).parent / "optimum-cli"


def optimum(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the program as a user runs it."""
    done = subprocess.run([SCRIPT, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def optimum_exit_code(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Exit code of optimum's main function in this process, which is told to find the registration anew."""

    def run(*arguments: str) -> int:
        monkeypatch.delitem(sys.modules, "optimum.commands.register.register_hybridge", raising=False)
        return exit_code(monkeypatch, main, "optimum-cli", *arguments)

    return run


def options(help_text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", help_text))


@pytest.mark.slow
def test_the_help_lists_every_option_of_hybridge_export() -> None:
    code, shown, _ = optimum("export", "hybridge", "--help")
    ours = CliRunner().invoke(tree(), ["export", "--help"]).stdout
    assert code == 0
    assert "Usage: optimum-cli export hybridge [OPTIONS] {output}" in shown
    assert options(shown) == (options(ours) - {"--output"}) | {"--model"}


def test_optimum_lists_the_command(optimum_exit_code: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert optimum_exit_code("export", "--help") == 0
    assert re.search(r"hybridge\s+Export a hybrid model", capsys.readouterr().out)


ENDS = {
    "": (2, "Missing"),
    "{tmp}/out": (2, "Missing option '--model' / '-m'"),
    "--model {tmp}": (2, "Missing argument"),
    "--model {tmp} {tmp}/out --magic": (2, "No such option: --magic"),
    "--model {tmp} {tmp}/out --max-seq-len 0": (2, "Invalid value for '--max-seq-len'"),
    "-m {tmp}/nowhere {tmp}/out": (1, "nowhere is not a folder. Give a local checkpoint"),
    "{tmp}/out --model {tmp}": (1, "has no config.json"),
}


@pytest.mark.parametrize("words", ENDS)
def test_exit_codes_and_messages_are_ours(
    words: str, tmp_path: Path, optimum_exit_code: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = ENDS[words]
    assert optimum_exit_code("export", "hybridge", *words.format(tmp=tmp_path).split()) == code
    assert message in re.sub(r"[\s│]+", " ", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_checkout_beside_an_installed_wheel_is_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """optimum asks the one module for each folder of the path that has its file, and argparse takes no name twice."""
    shutil.copytree(Path(hybridge.__file__).parents[1] / "optimum", tmp_path / "optimum")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(hybridge.__file__).parents[1]}")
    code, shown, said = optimum("export", "--help")
    assert (code, "hybridge" in shown) == (0, True), said


@pytest.mark.thorough
@pytest.mark.slow
def test_an_export_through_optimum_generates(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", tiny_config("llama", num_hidden_layers=1))
    wanted = ("--max-seq-len", 24, "--prefill-chunk", 3, "--verify-len", "2", "--snapshot-slots", 0, "--backend", "portable")
    command = ("export", "hybridge", "--kernels", "llm", "--model", tmp_path / "checkpoint", tmp_path / "out")
    code, shown, said = optimum(*command, *wanted)
    assert (code, shown) == (0, ""), said
    session = Session.load(tmp_path / "out")
    assert (session.max_seq_len, session.prefill_chunk, session.verify_lens, session.snapshot_slots) == (24, 3, [2], 0)
    assert len(list(session.generate([1, 2, 3, 4], max_new_tokens=5, eos_ids=[]))) == 5
