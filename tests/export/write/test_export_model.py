"""``hybridge.export_model`` from a program: in any thread, without a word, whole or not at all."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_forms import lfs_pointer, save_adapter

import hybridge
from hybridge.errors import CheckpointError, HybridgeError, UsageError, ValidationError
from hybridge.export.progress import ExportProgress
from hybridge.export.report import Divergence, ValidationReport
from hybridge.export.source.checkpoint import CheckpointSource
from hybridge.export.write.pte import PteWriter
from hybridge.runtime.artifact.manifest import Manifest, read_manifest
from hybridge.runtime.artifact.options import ExportOptions

OPTIONS = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, snapshot_slots=2, kernels="hybridge")


class Recorded(ExportProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.reports: list[ValidationReport] = []

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        self.told.append(what)
        yield

    def warn(self, text: str) -> None:
        self.told.append(text)

    @contextmanager
    def counted(self, what: str) -> Iterator[Callable[[int, int], None]]:
        self.told.append(what)
        yield lambda done, total: None

    def validated(self, report: ValidationReport) -> None:
        self.reports.append(report)


class Stopped(Recorded):
    """Presses Ctrl-C when a step begins."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        if what == self.at:
            raise KeyboardInterrupt
        yield


def in_thread(work: Callable[[], Manifest]) -> Manifest:
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result()


@pytest.mark.slow
def test_it_exports_in_a_thread_without_a_word(checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    manifest = in_thread(lambda: hybridge.export_model(str(checkpoint), str(tmp_path / "out"), OPTIONS))
    assert capfd.readouterr() == ("", "")
    assert {number: signal.getsignal(number) for number in before} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert manifest == read_manifest(tmp_path / "out")
    assert len(list(hybridge.Session.load(tmp_path / "out").generate([1, 2, 3], max_new_tokens=4))) == 4


def test_it_tells_its_steps_and_of_what_it_leaves_out(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    save_adapter(folder)
    steps = Stopped(at="Reading the checkpoint")
    with pytest.raises(KeyboardInterrupt):
        hybridge.export_model(folder, tmp_path / "out", OPTIONS, progress=steps)
    assert [text.partition(" is ignored")[0] for text in steps.told] == [str(folder / "adapter_config.json")]


@pytest.mark.parametrize("step", ["Laying out the state", "Reading the checkpoint"])
def test_an_interruption_leaves_nothing(checkpoint: Path, tmp_path: Path, step: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        hybridge.export_model(checkpoint, tmp_path / "out", OPTIONS, progress=Stopped(step))
    assert not list(tmp_path.iterdir())


def test_a_bad_checkpoint_raises_in_a_thread_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))
    lfs_pointer(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="git-lfs pointer"):
        in_thread(lambda: hybridge.export_model(folder, tmp_path / "out", OPTIONS))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("checkpoint_name", "options"),
    [
        ("nowhere", OPTIONS),
        ("", OPTIONS),
        (None, replace(OPTIONS, max_seq_len=-1)),
        (None, replace(OPTIONS, tap_layers=(9,))),
        (None, replace(OPTIONS, shorter_verify_lens=(7,))),
        (None, replace(OPTIONS, mtp=True, draft_len=99)),
    ],
    ids=str,
)
def test_what_cannot_be_raises_our_errors(
    checkpoint: Path, tmp_path: Path, checkpoint_name: str | None, options: ExportOptions
) -> None:
    with pytest.raises(HybridgeError):
        hybridge.export_model(checkpoint if checkpoint_name is None else checkpoint_name, tmp_path / "out", options)
    assert not list(tmp_path.iterdir())


def copying(artifact: Path) -> Callable[..., Manifest]:
    """An exporter that copies ``artifact``."""

    def copied(writer: object, loaded: object, folder: Path, steps: ExportProgress, calibrated: object) -> Manifest:
        shutil.copytree(artifact, folder, dirs_exist_ok=True)
        return read_manifest(folder)

    return copied


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_validation_comes_before_the_folder_appears(
    checkpoint: Path,
    artifact: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    spoilt: bool,
) -> None:
    divergence = Divergence(program=0, operations=["decode"], position=0, error=1.0)
    report = ValidationReport(seed=0, tolerance=1e-5, first_divergence=divergence if spoilt else None)

    def validated(folder: Path, source: CheckpointSource, steps: ExportProgress, **options: Any) -> ValidationReport:
        assert not (tmp_path / "out").exists()
        assert source.path == checkpoint
        return report

    monkeypatch.setattr(PteWriter, "write", copying(artifact))
    monkeypatch.setattr("hybridge.export.api.validate_session", validated)
    steps = Recorded()
    if spoilt:
        with pytest.raises(ValidationError):
            hybridge.export_model(checkpoint, tmp_path / "out", OPTIONS, validate=True, progress=steps)
    else:
        hybridge.export_model(checkpoint, tmp_path / "out", OPTIONS, validate=True, progress=steps)
    assert (tmp_path / "out").exists() is not spoilt
    assert steps.reports == [report]
    assert capfd.readouterr() == ("", "")


# The names of the package


@pytest.mark.parametrize("name", hybridge.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(hybridge, name) is not None
    assert name in dir(hybridge)


def test_the_names_are_the_same_things_as_at_home() -> None:
    assert hybridge.ExportOptions is ExportOptions
    assert hybridge.errors.UsageError is UsageError


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'hybridge' has no attribute 'conjure'"):
        hybridge.conjure  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["export_model", "eager_session", "ExportOptions"])
def test_a_name_is_imported_without_a_word_and_without_the_command_line(name: str) -> None:
    code = f"import hybridge, json, sys; hybridge.{name}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    loaded = json.loads(done.stdout)
    assert ("torch" in loaded) == (name != "ExportOptions")  # options are read where nothing is computed
    assert [module for module in loaded if module.startswith(("hybridge.export.cli", "typer"))] == []


def test_threads_that_ask_for_a_name_at_once_get_the_same() -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(hybridge.export_model)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [hybridge.export_model] * 8
