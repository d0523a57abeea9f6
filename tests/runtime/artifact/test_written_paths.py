"""Whatever writes a file follows links, which stay, and replaces files and nothing else."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from babbling import template_of
from odd_paths import NO_FILES, identity, make, mounted
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import KernelsError, OutputError, UsageError
from hybridge.export.write.folder import output_folder
from hybridge.runtime import Session, files
from hybridge.runtime.artifact.manifest import MANIFEST
from hybridge.runtime.binding.checkpoint_folder import CheckpointFolder
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.cli.console import check_writable_file, write_json
from hybridge.runtime.files import replace_file
from hybridge.runtime.html_report import plot_divergence, write_page
from hybridge.runtime.kernels import compiling
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings

EMBEDDED = Path(__file__).parents[3] / "export" / "embedded" / "draft"
RANGE = {"first": 0, "last": 9, "kl": 0.1, "kl_error": 0.01, "kl_99": 0.2, "top1_agreement": 0.9}
Write = Callable[[Path], object]


@pytest.fixture(scope="module")
def session(artifact: Path) -> Session:
    opened = Session.load(artifact)
    opened.prefill([1, 2, 3])
    return opened


@pytest.fixture(params=["file", "page", "report", "plot", "state", "chat"])
def write(request: pytest.FixtureRequest) -> Write:
    """Return each writer of a file, which writes something of its own."""
    match request.param:
        case "file":
            return lambda path: replace_file(path, b"new")
        case "page":
            return lambda path: write_page(path, "new", [])
        case "report":
            return lambda path: write_json(path, {"new": 1})
        case "plot":
            return lambda path: plot_divergence([RANGE], path)
        case "state":
            return request.getfixturevalue("session").save  # type: ignore[no-any-return]
    tokenizer = Tokenizer.from_file(EMBEDDED / "tokenizer.json")
    talk = Conversation(request.getfixturevalue("session"), tokenizer, template_of("a"), GenerationSettings())
    return talk.save


def refused(write: Write, path: Path, words: str) -> None:
    """Check that a writer refuses in words, and changes nothing."""
    before = identity(path.parent)
    with pytest.raises((OutputError, OSError)) as caught:
        write(path)
    message = f"{path} cannot be written: {caught.value.strerror}" if isinstance(caught.value, OSError) else str(caught.value)
    assert f"{path.name} cannot be written: {words}" in message
    assert identity(path.parent) == before


@pytest.mark.parametrize("kind", [*NO_FILES, "folder"])
def test_what_is_no_file_is_refused_by_its_kind(write: Write, tmp_path: Path, kind: str) -> None:
    words = f"it is {NO_FILES.get(kind, 'a folder')}, not a file; choose another path"
    refused(write, make(tmp_path / "out.svg", kind), words)
    (tmp_path / "link.svg").symlink_to("out.svg")
    refused(write, tmp_path / "link.svg", words)


def test_links_stay_and_lead_to_what_is_written(write: Write, tmp_path: Path) -> None:
    """Through another link, to a file in another folder, which is there already or not yet."""
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link.svg"
    link.symlink_to("folder/between")
    (tmp_path / "folder/between").symlink_to("../end.svg")
    for _ in range(2):
        (tmp_path / "end.svg").write_text("old")
        write(link)
        assert (tmp_path / "end.svg").read_bytes() != b"old"
        assert link.is_symlink()
        assert (tmp_path / "folder/between").is_symlink()
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["between", "end.svg", "folder", "link.svg"]
        (tmp_path / "end.svg").unlink()


def test_links_in_a_circle_are_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "out.svg").symlink_to("other")
    (tmp_path / "other").symlink_to("out.svg")
    refused(write, tmp_path / "out.svg", "Too many levels of symbolic links")


def test_a_file_that_is_mounted_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("old")
    (tmp_path / "out.svg").write_text("")
    with mounted(tmp_path / "out.svg", tmp_path / "source") as path:
        refused(write, path, "it is a mount point")


@pytest.mark.parametrize("door", ["python", "core"])
def test_what_comes_while_a_file_is_written_is_kept(door: str, session: Session, tmp_path: Path) -> None:
    """The pipe comes at any moment of the write: before the check, after it, or after the rename."""
    write: Write = session.save if door == "core" else lambda path: replace_file(path, bytes(200_000))
    path, chance = tmp_path / "out", random.Random(1)
    path.write_text("old")
    began = time.perf_counter()
    write(path)
    longest = 2 * (time.perf_counter() - began)

    def put(pipe: Path) -> None:
        time.sleep(chance.uniform(0, longest))
        pipe.rename(path)

    for _ in range(40):
        path.unlink()
        path.write_text("old")
        pipe = make(tmp_path / "pipe", "pipe")
        number = pipe.stat().st_ino
        other = threading.Thread(target=put, args=(pipe,))
        other.start()
        with suppress(OutputError, OSError):
            write(path)
        other.join()
        assert path.stat().st_ino == number
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("before", ["file", "nothing"])
def test_what_comes_between_the_check_and_the_rename_is_kept(
    steps: int, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one step of the system's, and with plain renames."""
    take_place, path = files.take_place, tmp_path / "out"

    def late(partial: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        make(target, "pipe")
        take_place(partial, target)

    if before == "file":
        path.write_text("old")
    if steps == 2:
        monkeypatch.setattr(files, "_renameat2", lambda: None)
    monkeypatch.setattr(files, "take_place", late)
    with pytest.raises(OSError, match="it is a pipe, not a file"):
        replace_file(path, b"new")
    assert path.is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", [*NO_FILES, "folder"])
def test_a_command_refuses_before_its_work(kind: str, artifact: Path, tmp_path: Path) -> None:
    path = make(tmp_path / "page.html", kind)
    with pytest.raises(UsageError, match=f"page.html cannot be written: it is {NO_FILES.get(kind, 'a folder')}, not a file"):
        check_writable_file(path)
    done = CliRunner().invoke(tree(), ["inspect", str(artifact), "--html", str(path)])
    assert isinstance(done.exception, UsageError)


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "victim\0.html"
    (tmp_path / "victim").write_text("precious")
    for write in (write_page, check_writable_file):
        with pytest.raises((OutputError, UsageError), match="its name has a NUL character"):
            write(path, *(["new", []] if write is write_page else []))  # type: ignore[operator]
    with pytest.raises(UsageError, match="its name has a NUL character"), output_folder(path, force=True):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


# Folders


def replace(target: Path) -> None:
    with output_folder(target, force=True) as folder:
        (folder / MANIFEST).write_text("new")


@pytest.mark.parametrize("kind", NO_FILES)
def test_an_export_refuses_what_is_no_folder(kind: str, tmp_path: Path) -> None:
    make(tmp_path / "out", kind)
    (tmp_path / "link").symlink_to("out")
    before = identity(tmp_path)
    for name in ("out", "link"):
        with pytest.raises(UsageError, match=f"{name} cannot be written: it is {NO_FILES[kind]}, not a folder; choose another"):
            replace(tmp_path / name)
    assert identity(tmp_path) == before


def test_an_export_follows_a_link_that_leads_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("disk/out")
    replace(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk/out" / MANIFEST).read_text() == "new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "link", MANIFEST, "out"]


@pytest.mark.parametrize("again", [False, True], ids=["a file system", "a folder a second time"])
def test_an_export_refuses_a_mount_point_before_its_work(tmp_path: Path, again: bool) -> None:
    (tmp_path / "out put").mkdir()
    (tmp_path / "source").mkdir()
    with mounted(tmp_path / "out put", tmp_path / "source" if again else None) as target:
        for each in (target, tmp_path / "link"):
            if not each.exists():
                each.symlink_to(target.name)
            with pytest.raises(UsageError, match="it is a mount point"), output_folder(each, force=True):
                raise AssertionError("the work has begun")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out put", "source"]


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_folder_of_checkpoints_is_a_folder(kind: str, session: Session, tmp_path: Path) -> None:
    path = make(tmp_path / "out", kind)
    before = identity(tmp_path)
    with pytest.raises(OutputError, match=f"cannot hold checkpoints: it is {NO_FILES[kind]}, not a folder"):
        CheckpointFolder(path, session, 1 << 20)
    (tmp_path / "inside").mkdir()
    folder = CheckpointFolder(tmp_path / "inside", session, 1 << 20)
    folder.close()
    folder.folder.rmdir()
    make(folder.folder, kind)
    with pytest.raises(OutputError, match=f"it is {NO_FILES[kind]}, not a folder"):
        CheckpointFolder(tmp_path / "inside", session, 1 << 20)
    assert identity(tmp_path).items() >= before.items()


@pytest.mark.parametrize("kind", NO_FILES)
def test_the_cache_of_kernels_holds_files_in_folders(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = tmp_path / "hybridge/kernels/key/library.so"
    library.parent.mkdir(parents=True)
    before = identity(make(library, kind).parent)
    with pytest.raises(KernelsError, match=f"it is {NO_FILES[kind]}, not a file"):
        compiling.built(library, lambda path: path.write_bytes(b"new") and None, again=True)
    assert identity(library.parent) == before
    make(library.parent.with_name("other"), kind)
    with pytest.raises(KernelsError, match=f"it is {NO_FILES[kind]}, not a folder"):
        compiling.built(library.parent.with_name("other") / "library.so", lambda path: None)


@pytest.mark.parametrize("kind", NO_FILES)
def test_a_lock_is_a_file(kind: str, tmp_path: Path) -> None:
    make(tmp_path / ".out.lock", kind)
    before = identity(tmp_path)
    with pytest.raises(OSError, match=r"not a file|No such device"):
        replace_file(tmp_path / "out", b"new")
    assert identity(tmp_path) == before


def test_a_core_s_lock_is_a_file(session: Session, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".out.lock")
    before = identity(tmp_path)
    with pytest.raises(OutputError, match="out cannot be written: File exists"):
        session.save(tmp_path / "out")
    assert identity(tmp_path) == before
