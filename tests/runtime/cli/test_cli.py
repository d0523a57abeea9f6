"""The command line as a user runs it: what it prints, how it ends, and what it leaves when it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from command_line import SCRIPT, Run, outcome, run_script
from tiny import save_checkpoint
from transformers import AutoConfig

from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.cli.console import out


@pytest.mark.slow
def test_the_script_explains_itself() -> None:
    done = run_script("--help")
    assert done.code == 0
    assert all(command in done.out for command in ("export", "validate", "run", "inspect", "demo"))


@pytest.mark.slow
def test_the_script_ends_with_1_and_one_sentence_for_failed_work(tmp_path: Path) -> None:
    done = run_script("inspect", tmp_path / "nowhere")
    assert (done.code, done.out) == (1, "")
    kinds = "an artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub such as ORG/NAME"
    assert done.err == f"Error: {tmp_path}/nowhere is not there. Give {kinds}."


@pytest.mark.slow
def test_the_script_ends_with_2_for_wrong_usage(tmp_path: Path) -> None:
    done = run_script("export", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "Missing option '--output' / '-o'" in done.err


@pytest.mark.slow
def test_the_script_says_nothing_but_what_was_asked_for(artifact: Path) -> None:
    done = run_script("inspect", artifact, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.raw) == read_manifest(artifact).model_dump(mode="json")


def test_the_command_line_gives_sigterm_back(cli: Run, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert cli("inspect", tmp_path / "nowhere").code == 1
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.thorough), (signal.SIGTERM, 143)]
)
def test_an_export_that_is_stopped_leaves_nothing(checkpoint: Path, tmp_path: Path, number: int, code: int) -> None:
    command = [SCRIPT, "export", checkpoint, "-o", tmp_path / "out", "--max-seq-len", "96"]
    # A shell that runs the tests in the background has them ignore Ctrl-C, and their children with them.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.iterdir())) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert {path.name for path in tmp_path.iterdir()} == {".out.lock", ".out.partial"}
        time.sleep(2)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert outcome(process.returncode, out, err).code == code
    assert not list(tmp_path.iterdir())


STOPPED_IN_A_CALLBACK = """
import os, signal, sys, time, weakref
from pathlib import Path
from hybridge.runtime.cli.console import run_and_exit

class Key:
    pass

def write():
    from hybridge.export.write.folder import output_folder  # here, as in a command: what libraries say at import is silenced
    with output_folder(Path(sys.argv[1]), force=False) as folder:
        (folder / "half").write_text("written")
        key = Key()
        ref = weakref.ref(key, lambda _: os.kill(os.getpid(), int(sys.argv[2])) or time.sleep(0.1))
        del key
    print("went on")

run_and_exit(write)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_writer_that_is_stopped_where_python_swallows_exceptions_leaves_nothing(
    tmp_path: Path, number: int, code: int
) -> None:
    """In a weakref's callback, as PyTorch has many while it traces: an exception there is printed and forgotten, or aborts."""
    command = [sys.executable, "-c", STOPPED_IN_A_CALLBACK, str(tmp_path / "out"), str(int(number))]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=listen)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", "Interrupted.")
    assert not list(tmp_path.iterdir())


def test_inspect_shows_what_is_there(cli: Run, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 160)  # nothing is folded
    first, done = cli("inspect", artifact), cli("inspect", artifact, "--all")
    assert (done.code, done.err) == (0, "")
    assert all(name in first.out for name in ("model", "size", "context", "memory", "drafter", "use"))
    assert len(first.out.splitlines()) < 14
    manifest = read_manifest(artifact)
    shown = (*manifest.methods, *(layer.kind for layer in manifest.layers), *manifest.files, *manifest.versions)
    assert [name for name in shown if name not in done.out] == []
    assert manifest.options.has_own_kernels or "not bit-identical" in done.out


def test_inspect_json_is_the_manifest(cli: Run, artifact: Path) -> None:
    done = cli("inspect", artifact, "--json")
    content = json.loads(done.raw)
    assert [layer["kind"] for layer in content["layers"]] == ["gated_delta_net", "full_attention"]
    assert set(content["methods"]) == {"prefill", "decode", "verify", "forward", "commit", "reset", "snapshot", "restore"}
    assert content == read_manifest(artifact).model_dump(mode="json")


# Validation


@pytest.mark.slow
def test_a_validation_that_passes_reports_and_ends_with_0(cli: Run, artifact: Path, checkpoint: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    page = tmp_path / "page.html"
    done = cli("validate", artifact, "--against", checkpoint, "--programs", 2, "--report", report, "--html", page, "--json")
    assert done.code == 0
    assert "Passed" in page.read_text()
    assert "verify, positions" in page.read_text()
    content = json.loads(done.raw)
    assert content == json.loads(report.read_text())
    assert content["passed"]
    assert content["first_divergence"] is None
    assert sum(content["operations"].values()) == 80


@pytest.mark.slow
def test_a_validation_that_fails_ends_with_1_and_names_the_first_divergence_and_the_seed(
    cli: Run, artifact: Path, checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    save_checkpoint(other, AutoConfig.from_pretrained(checkpoint), seed=1)
    page = tmp_path / "page.html"
    done = cli("validate", artifact, "--against", other, "--programs", 1, "--seed", 7, "--html", page)
    assert done.code == 1
    assert "program 0 of seed 7, at position" in page.read_text()
    assert "FAILED" in done.out
    assert "First divergence: program 0 of seed 7, at position" in done.out
    assert "Error: the artifact disagrees with the eager model" in done.err
    assert "Repeat with --seed 7" in done.err
    done = cli("validate", artifact, "--against", other, "--programs", 1, "--json")
    content = json.loads(done.raw)
    assert (done.code, content["passed"]) == (1, False)
    assert content["first_divergence"]["operations"]
