"""A model that is no artifact is exported once and kept; it is recognized by its bytes, and never run wrongly."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from base_install import WITHOUT_EXPORT
from command_line import Run
from gguf_files import TYPES, random_model, save_gguf

import hybridge
from hybridge.errors import ArtifactError, CheckpointError, OutputError
from hybridge.export import api
from hybridge.export.cli.choices import ExportChoices
from hybridge.export.progress import ExportProgress
from hybridge.models import find, identity, kept
from hybridge.models.find import ModelOptions, NamedModel, find_artifact
from hybridge.models.identity import Hashes, files_of
from hybridge.models.kept import Entry, KeptModel, ModelCache
from hybridge.models.progress import Expected, expected
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.artifact.options import ExportOptions

OLD = 1_700_000_000_000_000_000
"""A time of a file that is long settled, in nanoseconds."""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept models, in a cache of the test's own: the user's has the compiled core."""
    monkeypatch.setattr(kept, "user_cache", lambda: tmp_path / "cache" / "hybridge")
    return tmp_path / "cache" / "hybridge" / "models"


@pytest.fixture
def exports(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> list[ExportOptions]:
    """The options of the exports so far, each of which copies an artifact instead."""
    made: list[ExportOptions] = []

    def export_model(checkpoint: Path, out: Path, options: ExportOptions, *, golden: bool, progress: ExportProgress) -> None:
        assert not golden, "golden steps are for those who ship"
        made.append(options)
        with progress.step("Reading the checkpoint"):
            shutil.copytree(artifact, out)

    monkeypatch.setattr(api, "export_model", export_model)
    return made


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    file = tmp_path / "Tiny-Q8_0.gguf"
    file.write_bytes(b"GGUF" + bytes(1000))
    return file


def names(folder: Path) -> list[str]:
    """The entries of the cache and what was left there, without the hashes of files."""
    return sorted(each.name for each in folder.iterdir() if each.name != "files.json")


@pytest.mark.slow
def test_a_model_file_runs_and_opens_at_once_the_next_time(
    cli: Run, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "Random-Q8_0.gguf"
    save_gguf(file, "llama", random_model("llama", num_hidden_layers=1, layer_types=["full_attention"]), TYPES.Q8_0)
    described = cli("inspect", file)
    assert described.code == 0, described.err
    assert "It is not exported yet" in described.out
    assert "Q8_0" in described.out
    assert not models.exists()
    words = ("run", file, "--prompt", "abc", "--max-new-tokens", 8)
    first = cli(*words, "--max-seq-len", 96)
    assert first.code == 0, first.err
    assert "Exporting Random-Q8_0" in first.err
    monkeypatch.setattr(api, "export_model", None)
    second = cli(*words, "--max-seq-len", 96)
    assert (second.code, second.out, second.err) == (0, first.out, "")
    [entry] = ModelCache().models()
    options = read_manifest(entry.artifact).options
    assert options == replace(ExportChoices(max_seq_len=96).options(), quantize="keep", mtp=False, backend=options.backend,
                              kv_cache=options.kv_cache, embedding_quantize=options.embedding_quantize)  # fmt: skip
    # Where PyTorch is not installed, what is kept opens, without NumPy's start, and what is not says what to install.
    patched = f"{WITHOUT_EXPORT}\nfrom hybridge.models import kept\nfrom pathlib import Path\n"
    patched += f"kept.user_cache = lambda: Path({str(models.parent)!r})\nfrom hybridge.__main__ import main\nmain()\n"
    done = [
        subprocess.run([sys.executable, "-c", code, *map(str, words), *more], capture_output=True, text=True, check=False)
        for code, more in (
            (f"import sys\nsys.modules['numpy'] = None\n{patched}", ("--max-seq-len", "96")),
            (patched, ("--max-seq-len", "97")),
        )
    ]
    assert (done[0].returncode, done[0].stdout.strip()) == (0, first.raw.strip()), done[0].stderr
    assert done[1].returncode == 2
    needed = f"{file} is no artifact, and to open it hybridge needs what makes artifacts: pip install 'hybridge[export]'."
    needed += (
        " Files of published models open without it by the programs of hybridge-catalogue: pip install hybridge-catalogue."
    )
    assert done[1].stderr.strip() == f"Error: {needed}"


def test_without_pytorch_a_file_is_refused_by_what_is_wrong_with_it(
    cli: Run, models: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To install PyTorch would help neither a damaged file nor one of an unknown architecture."""
    monkeypatch.setattr(find, "_has_torch", lambda: False)
    damaged = cli("run", gguf, "--prompt", "a")
    assert damaged.code == 1
    assert "it is of version 0, not 2 or 3); download it again" in damaged.err
    save_gguf(gguf, "llama", random_model("llama", num_hidden_layers=1, layer_types=["full_attention"]))
    seen = cli("run", gguf, "--prompt", "a")
    assert seen.code == 2
    assert "pip install hybridge-catalogue" in seen.err
    assert names(models) == []


def test_a_model_is_known_by_its_bytes(models: Path, exports: list[ExportOptions], gguf: Path, tmp_path: Path) -> None:
    first = find_artifact(gguf)
    assert first.parent.parent == models
    assert first.name == "Tiny-Q8_0"
    moved = gguf.rename(tmp_path / "other.gguf")
    copied = Path(shutil.copy(moved, tmp_path / "copy.gguf"))
    copied.touch()
    assert find_artifact(moved) == find_artifact(copied) == first
    assert len(exports) == 1
    assert find_artifact(moved, ModelOptions(max_seq_len=64)) != first
    assert find_artifact(moved, ModelOptions(quantize="8w")) != first
    assert [(each.max_seq_len, each.quantize) for each in exports[1:]] == [(64, "auto"), (ExportOptions.max_seq_len, "8w")]
    assert find_artifact(first) == first
    assert len(exports) == 3


def test_other_bytes_of_the_same_size_and_time_are_another_model(
    models: Path, exports: list[ExportOptions], gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SETTLED", -1)  # hashes are remembered at once
    os.utime(gguf, ns=(OLD, OLD))
    first = find_artifact(gguf)
    assert find_artifact(gguf) == first
    with gguf.open("r+b") as file:
        file.seek(500)
        file.write(b"x")
    os.utime(gguf, ns=(OLD, OLD))
    assert find_artifact(gguf) != first
    assert len(exports) == 2


def test_hashes_of_settled_files_are_remembered_and_of_new_ones_not(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "private" / "files.json"
    memory.parent.mkdir(mode=0o700)

    def hashed() -> int:
        """The number of files that were hashed to identify one."""
        count = []
        real = identity.hashlib.file_digest
        counted = SimpleNamespace(sha256=identity.hashlib.sha256, file_digest=lambda *a: (count.append(1), real(*a))[1])
        with monkeypatch.context() as patch:
            patch.setattr(identity, "hashlib", counted)
            hashes = Hashes(memory, memory.parent)
            hashes.identify(gguf)
            hashes.remember()
        return len(count)

    assert [hashed(), hashed()] == [1, 1]
    monkeypatch.setattr(identity, "SETTLED", -1)
    assert [hashed(), hashed()] == [1, 0]
    memory.chmod(0o666)  # others could have written another model's hash
    assert hashed() == 1


def test_what_an_export_reads_belongs_to_a_model_and_nothing_else(tmp_path: Path) -> None:
    def digest(path: Path) -> str:
        return Hashes(tmp_path / "none", tmp_path).identify(path).digest

    folder = tmp_path / "checkpoint"
    (folder / "additional_chat_templates").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "additional_chat_templates/tools.jinja"):
        (folder / name).write_text(name)
    before = digest(folder)
    for name in ("README.md", "pytorch_model.bin", ".gitattributes"):
        (folder / name).write_text(name)
    assert digest(folder) == before
    (folder / "additional_chat_templates" / "tools.jinja").write_text("changed")
    assert digest(folder) != before
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "n-00001-of-00002.gguf", "x.gguf", "mmproj-m-f16.gguf"):
        (tmp_path / name).write_text(name)
    first = tmp_path / "m-00001-of-00002.gguf"
    assert [each.name for each in files_of(first).values()] == [first.name, "m-00002-of-00002.gguf", "mmproj-m-f16.gguf"]
    before = digest(first)
    (tmp_path / "m-00002-of-00002.gguf").write_text("changed")
    assert digest(first) != before


def test_a_file_that_changes_while_it_is_exported_is_not_kept(
    models: Path, artifact: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_model(checkpoint: Path, out: Path, options: ExportOptions, *, golden: bool, progress: ExportProgress) -> None:
        shutil.copytree(artifact, out)
        checkpoint.write_bytes(b"GGUF another")

    monkeypatch.setattr(api, "export_model", export_model)
    with pytest.raises(CheckpointError, match=r"Tiny-Q8_0\.gguf was changed while it was being read"):
        find_artifact(gguf)
    assert names(models) == []


def shorten(artifact: Path) -> None:
    os.truncate(artifact / "model.pte", 100)


def lose_the_manifest(artifact: Path) -> None:
    (artifact / "manifest.json").unlink()


def spoil_the_entry(artifact: Path) -> None:
    (artifact.parent / "entry.json").write_text("{}")


def point_elsewhere(artifact: Path) -> None:
    entry = artifact.parent / "entry.json"
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"name": "../.."}))


@pytest.mark.parametrize("damage", [shorten, lose_the_manifest, spoil_the_entry, point_elsewhere, shutil.rmtree])
def test_a_damaged_model_is_exported_afresh(
    models: Path, exports: list[ExportOptions], gguf: Path, artifact: Path, damage: object
) -> None:
    found = find_artifact(gguf)
    assert callable(damage)
    damage(found)
    assert find_artifact(gguf) == found
    assert len(exports) == 2
    assert (found / "model.pte").read_bytes() == (artifact / "model.pte").read_bytes()
    assert names(models) == [found.parent.name]


def test_a_model_of_another_version_is_exported_afresh(
    cli: Run, models: Path, exports: list[ExportOptions], gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = find_artifact(gguf)
    monkeypatch.setattr(kept, "code_version", lambda: "another")
    assert find_artifact(gguf) != first
    assert len(exports) == 2
    assert len(names(models)) == 2


def test_altered_bytes_are_refused_with_the_command_that_helps(
    cli: Run, models: Path, exports: list[ExportOptions], gguf: Path
) -> None:
    program = find_artifact(gguf) / "model.pte"
    with program.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    done = cli("run", gguf, "--prompt", "abc")
    assert done.code == 1
    assert "was altered" in done.err
    command = f"hybridge cache remove {program.parents[1].name}"
    assert command in done.err
    assert cli(*command.split()[1:]).code == 0
    assert cli("run", gguf, "--prompt", "abc", "--max-new-tokens", 2).code == 0


@pytest.mark.parametrize("place", [".", "..", "entry.json", "Tiny-Q8_0", "Tiny-Q8_0/model.pte"])
def test_a_model_that_others_could_have_written_is_refused_by_name(
    models: Path, exports: list[ExportOptions], gguf: Path, place: str
) -> None:
    path = (find_artifact(gguf).parent / place).resolve()
    mode = path.stat().st_mode
    path.chmod(mode | stat.S_IWOTH)
    with pytest.raises(ArtifactError, match=f"others may write {path}, so the model that is kept there is not run"):
        find_artifact(gguf)
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(ArtifactError, match=f"{path} belongs to another user, of id 12345"):
            find_artifact(gguf)
    assert len(exports) == 1


def test_a_full_disk_is_said_before_and_after(
    models: Path, exports: list[ExportOptions], gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    with pytest.raises(OutputError, match=r"takes about 4 MB, and 1 MB are left .*hybridge cache list"):
        find_artifact(gguf)
    assert not exports
    monkeypatch.undo()
    monkeypatch.setattr(kept, "user_cache", lambda: models.parent)

    def fills(checkpoint: Path, out: Path, options: ExportOptions, *, golden: bool, progress: ExportProgress) -> None:
        out.mkdir()
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise OutputError("the writer's own words, which name an -o.") from error

    monkeypatch.setattr(api, "export_model", fills)
    with pytest.raises(OutputError, match=r"became full, and nothing of Tiny-Q8_0 was kept\. Free some space"):
        find_artifact(gguf)
    assert names(models) == []


def test_a_cache_that_cannot_be_written_is_named_and_still_read(
    exports: list[ExportOptions], gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kept, "user_cache", lambda: tmp_path / "file" / "hybridge")
    with pytest.raises(OutputError, match=r"file/hybridge/models cannot be written .*hybridge export MODEL -o OUT"):
        find_artifact(gguf)
    assert not exports


CHILD = """
import shutil, sys, time, types
from pathlib import Path
cache, artifact, begun, may_end = map(Path, sys.argv[1:5])
del sys.argv[1:5]

def export_model(checkpoint, out, options, *, golden, progress):
    out.mkdir()
    shutil.copy(artifact / "model.pte", out)
    with begun.open("a") as file:
        file.write("x")
    while not may_end.exists():
        time.sleep(0.02)
    shutil.rmtree(out)
    shutil.copytree(artifact, out)

sys.modules["hybridge.export.api"] = types.SimpleNamespace(export_model=export_model)
sys.modules["hybridge.export.quantize.bits"] = types.SimpleNamespace(parse_bits=lambda text: ())
from hybridge.models import kept
kept.user_cache = lambda: cache
from hybridge.__main__ import main
main()
"""
"""``hybridge`` with a cache of its own and an export that begins, and ends when it may."""


@pytest.fixture
def started(models: Path, artifact: Path, gguf: Path, tmp_path: Path) -> Iterator[partial[subprocess.Popen[str]]]:
    paths = [models.parent, artifact, tmp_path / "begun", tmp_path / "may-end"]
    words = [sys.executable, "-c", CHILD, *map(str, paths), "run", str(gguf), "--prompt", "abc", "--max-new-tokens", "2"]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    yield partial(subprocess.Popen, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen)
    (tmp_path / "may-end").touch()


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert process.poll() is None, process.communicate()


@pytest.mark.slow
def test_one_process_exports_and_the_other_waits(started: partial[subprocess.Popen[str]], models: Path, tmp_path: Path) -> None:
    with started() as first:
        wait_for(tmp_path / "begun", first)
        with started() as second:
            assert second.stderr is not None
            line = second.stderr.readline()
            (tmp_path / "may-end").touch()
            outs = [process.communicate(timeout=120) for process in (first, second)]
    assert line == "Another process is exporting Tiny-Q8_0; waiting for it.\n"
    assert [first.returncode, second.returncode] == [0, 0], outs
    assert outs[0][0] == outs[1][0] != ""
    assert (tmp_path / "begun").read_text() == "x"
    assert len(names(models)) == 1


@pytest.mark.slow
def test_what_is_interrupted_or_killed_leaves_nothing(
    started: partial[subprocess.Popen[str]], models: Path, tmp_path: Path
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with started() as process:
            wait_for(tmp_path / "begun", process)
            process.send_signal(number)
            process.communicate(timeout=120)
        (tmp_path / "begun").unlink()
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert names(models) == []
    (tmp_path / "may-end").touch()
    with started() as process:
        process.communicate(timeout=120)
    assert process.returncode == 0
    [name] = names(models)
    assert not name.startswith(".")


def test_the_cache_is_listed_and_emptied(
    cli: Run, models: Path, exports: list[ExportOptions], gguf: Path, artifact: Path, tmp_path: Path
) -> None:
    assert cli("cache", "path").out == str(models)
    assert cli("cache", "list").err == "Nothing is kept."
    assert cli("cache", "remove", "nothing").code == cli("cache", "remove").code == 2
    usual, longer = find_artifact(gguf), find_artifact(gguf, ModelOptions(max_seq_len=64))
    os.utime(usual.parent / "entry.json", (1e9, 1e9))
    programs = models.parent / "programs"
    (programs / "shape").mkdir(parents=True)
    (programs / "shape" / "program").write_bytes(bytes(2000))
    listed = json.loads(cli("cache", "list", "--json").raw)
    assert [(each["name"], each["options"]) for each in listed["models"]] == [
        ("Tiny-Q8_0", {"max_seq_len": 64}), ("Tiny-Q8_0", {})
    ]  # fmt: skip
    assert listed["models"][0]["source"] == str(gguf)
    assert listed["models"][0]["bytes"] >= sum(each.stat().st_size for each in artifact.iterdir())
    assert listed["programs_bytes"] == 2000
    shown = cli("cache", "list").out
    assert all(words in shown for words in ("Tiny-Q8_0", "max_seq_len=64", "usual", "just now", "days ago", "programs"))
    assert "1 model removed" in cli("cache", "remove", "--older-than", 30).out
    assert (usual.exists(), longer.exists(), programs.exists()) == (False, True, True)
    find_artifact(gguf)
    assert "1 model removed" in cli("cache", "remove", longer.parent.name).out
    assert cli("cache", "remove", "programs").code == 0
    assert (usual.exists(), longer.exists(), programs.exists()) == (True, False, False)
    assert "1 model removed" in cli("cache", "remove", "--all").out
    assert names(models) == []


def test_inspect_and_serve_know_a_kept_model_by_its_source(
    cli: Run, models: Path, exports: list[ExportOptions], gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridge.runtime.server import app, connections

    find_artifact(gguf)
    assert json.loads(cli("inspect", gguf, "--json").raw)["files"]
    named = []
    monkeypatch.setattr(app, "Server", lambda slots, *more: named.append(more[3].name) or SimpleNamespace(app=lambda: None))
    monkeypatch.setattr(connections, "listen", lambda *arguments: None)
    done = cli("serve", gguf, "--sessions", 1)
    assert (done.code, named) == (0, ["Tiny-Q8_0"]), done.err


def test_load_takes_a_model_file(models: Path, exports: list[ExportOptions], gguf: Path) -> None:
    model = hybridge.load(gguf, drafter=None, options=ModelOptions(max_seq_len=96))
    assert model.session.max_seq_len == 96
    assert [each.max_seq_len for each in exports] == [96]


def test_a_draft_model_may_be_a_model_file(
    cli: Run, models: Path, exports: list[ExportOptions], gguf: Path, artifact: Path
) -> None:
    done = cli("run", artifact, "--draft", gguf, "--prompt", "abc", "--max-new-tokens", 4, "--quiet")
    assert (done.code, done.err, len(exports)) == (0, "", 1)


def test_nothing_is_exported_for_wrong_usage(cli: Run, models: Path, exports: list[ExportOptions], gguf: Path) -> None:
    for words in (["run", gguf], ["bench", gguf, "--profile", "--device"], ["run", gguf, "--prompt", "a", "--temperature", -1]):
        assert cli(*words).code == 2
    assert not exports
    done = cli("run", gguf.parent / "nowhere", "--prompt", "abc")
    assert done.code == 1
    assert (
        "nowhere is not there. Give an artifact, a GGUF file, a checkpoint's folder, or a model's name on the hub" in done.err
    )


# How long it takes


def entry(size: int, **steps: float) -> KeptModel:
    made_of = Entry(key="", name="x", source="", source_bytes=size, options={}, version="", code="", steps=list(steps.items()))
    return KeptModel(folder=Path("x"), entry=made_of, used=0.0)


def test_an_export_takes_as_long_as_those_before_it() -> None:
    small, large = entry(1000, Tracing=20.0, Reading=2.0), entry(1_000_000, Tracing=50.0, Reading=1000.0)
    assert expected([large, small], 4000) == Expected(28.0, [("Tracing", 20.0), ("Reading", 8.0)])
    first = expected([], 1_000_000_000)
    assert first.steps == ()
    assert first.left([], None, 0.0, 10.0) == first.seconds - 10.0
    known = expected([small], 1000)
    assert known.left([], "Tracing", 5.0, 5.0) == 17.0
    assert known.left([("Tracing", 40.0)], "Reading", 1.0, 41.0) == 3.0  # this machine has half its speed now
    assert known.left([("Packing", 1.0)], None, 0.0, 1.0) == 22.0


def test_a_checkpoint_that_is_not_here_is_not_downloaded_to_be_inspected(cli: Run, models: Path) -> None:
    done = cli("inspect", "nobody/has-this")
    assert done.code == 2
    assert "inspect downloads nothing: 'hf download nobody/has-this' does" in done.err
    assert NamedModel(Path("nobody/has-this"), ModelOptions()).shown == "has-this"
