"""Files that are read without trust, and written so that they last."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hybridge.runtime import files
from hybridge.runtime.files import (
    distrust,
    exchange,
    lock_path,
    locked,
    open_regular,
    partial_folder,
    partial_path,
    private_folder,
    read_regular,
    remove,
    replace_file,
    sync_tree,
    write_hash,
)


def test_only_files_of_at_most_so_many_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_regular(path, 4) == b"1234"
    with pytest.raises(OSError, match="it has 4 bytes, and 3 are the most"):
        read_regular(path, 3)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(OSError, match="it is no regular file"):
            open_regular(other)
    with pytest.raises(OSError, match=r"regular file|directory"):
        open_regular(tmp_path)


def test_two_names_change_places(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "file").write_text("1")
    other.write_text("2")
    assert exchange(one, other)
    assert one.read_text() == "2"
    assert (other / "file").read_text() == "1"
    with pytest.raises(FileNotFoundError):
        exchange(one, tmp_path / "nothing")
    assert one.read_text() == "2"


@pytest.mark.parametrize("number", files.CANNOT)
def test_a_system_that_cannot_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(files, "_renameat2", lambda: lambda *_: -1)
    monkeypatch.setattr(files.ctypes, "get_errno", lambda: number)
    assert not exchange(tmp_path, tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_what_is_written_and_read_is_closed(tmp_path: Path) -> None:
    def written() -> int:
        replace_file(tmp_path / "file", b"1")
        sync_tree(tmp_path)
        assert read_regular(tmp_path / "file", 1) == b"1"
        with partial_folder(tmp_path / "folder"):
            pass
        return len(os.listdir("/proc/self/fd"))

    assert written() == written()


def test_everything_in_a_folder_is_synced_and_it_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b"):
        (tmp_path / name).write_text(name)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink().name))
    sync_tree(tmp_path)
    assert sorted(synced) == sorted(["a", "b", "deep", tmp_path.name])
    assert synced.index("b") < synced.index("deep") < synced.index(tmp_path.name)
    assert synced[-1] == tmp_path.name


def test_a_file_system_without_syncing_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(number: int) -> None:
        asked.append(number)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refused)
    files.sync(tmp_path)
    assert len(asked) == 1


def test_writers_of_one_file_wait_and_never_mix(tmp_path: Path) -> None:
    path, texts = tmp_path / "file", [str(i).encode() * 100_000 for i in range(8)]
    threads = [threading.Thread(target=replace_file, args=(path, text)) for text in texts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert path.read_bytes() in texts
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_that_appears_while_it_is_looked_for_is_no_mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks at one path are two answers: another writer's file came between them, and was called a mount point."""
    looked = Path.exists

    def look_and_write(path: Path) -> bool:
        was_there = looked(path)
        path.touch()
        return was_there

    monkeypatch.setattr(Path, "exists", look_and_write)
    assert files.file_target(tmp_path / "file") == tmp_path / "file"


def test_a_lock_that_goes_while_it_is_waited_for_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "file", files._for_the_owner
    gone: list[str] = []

    def open_and_lose(name: str, flags: int) -> int:
        descriptor = opened(name, flags)
        if not gone:
            gone.append(name)
            os.unlink(name)
        return descriptor

    monkeypatch.setattr(files, "_for_the_owner", open_and_lose)
    with locked(path), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
    assert gone == [str(lock_path(path))]
    assert list(tmp_path.iterdir()) == []


def test_a_leftover_with_another_name_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / ".file.partial")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's file")
def test_what_another_user_put_there_is_not_written_to(tmp_path: Path) -> None:
    """The name of an unfinished file can be known, and the folder may be shared."""
    spy = tmp_path / ".file.partial"
    spy.write_text("")
    os.chown(spy, 12345, -1)
    with spy.open() as reader:
        replace_file(tmp_path / "file", b"secret")
        assert reader.read() == ""
    assert (tmp_path / "file").stat().st_uid == 0


def test_an_unfinished_folder_begins_empty_and_is_removed(tmp_path: Path) -> None:
    path = partial_path(tmp_path / "out")
    (path / "folder").mkdir(parents=True)
    (path / "folder" / "file").write_text("written")
    (tmp_path / "precious").mkdir()
    (path / "link").symlink_to(tmp_path / "precious")
    with partial_folder(tmp_path / "out") as folder:
        assert folder == path
        assert list(folder.iterdir()) == []
        (folder / "half").write_text("written")
    assert [each.name for each in tmp_path.iterdir()] == ["precious"], "a link is removed, and not followed"


def test_a_leftover_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("precious")
    partial = partial_path(tmp_path / "out")
    partial.symlink_to(tmp_path / "precious")
    with partial_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "precious/file").read_text() == "precious"
    partial.symlink_to(tmp_path / "precious/file")
    replace_file(tmp_path / "out", b"new")
    assert (tmp_path / "precious/file").read_text() == "precious"
    assert (tmp_path / "out").read_text() == "new"
    lock_path(tmp_path / "out").symlink_to(tmp_path / "precious/file")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "out"):
        pass
    partial.symlink_to(tmp_path / "precious")
    remove(partial)
    assert not partial.is_symlink()
    assert (tmp_path / "precious/file").read_text() == "precious"


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir(mode=0o777)
    top.chmod(0o777)
    private_folder(top / "kind/key", top)
    assert [each.stat().st_mode & 0o777 for each in (top, top / "kind", top / "kind/key")] == [0o700] * 3
    file = top / "kind/key/library"
    file.write_bytes(b"1")
    file.chmod(0o700)
    write_hash(file)
    assert distrust(file, top) is None
