"""Checkpoints on disk: another process goes on from them bit for bit, and nothing that is wrong with a file gets further."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from served import session as babbling
from states import same, seen

from hybridge.errors import OutputError, UsageError
from hybridge.runtime import Session
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.checkpoint_folder import CheckpointFolder
from hybridge.runtime.binding.prompt_prefill import bring_to

TEXT = [97 + i % 11 for i in range(70)]
BUDGET = 1 << 30


@contextmanager
def opened(top: Path, session: Session, budget: int = BUDGET) -> Iterator[tuple[CheckpointFolder, PrefixCache, int]]:
    """A folder, a cache over it, and how many checkpoints it had."""
    folder, cache = CheckpointFolder(top, session, budget), PrefixCache(session.model, budget)
    count = folder.load_into(cache)
    cache.watch(folder.put)
    try:
        yield folder, cache, count
    finally:
        folder.close()


def fill(top: Path, session: Session, budget: int = BUDGET) -> Path:
    """Leave a few checkpoints of ``TEXT`` there; returns their folder."""
    with opened(top, session, budget) as (folder, cache, _):
        bring_to(session, TEXT[:30], cache, [10, 20])
        bring_to(session, [*TEXT[:20], 120, 121], cache)
        bring_to(session, TEXT[:60], cache)
    return folder.folder


@pytest.mark.parametrize("form", ["babble", "artifact", "kernels_artifact", "onnx_artifact"])
def test_another_process_goes_on_bit_for_bit(form: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = None if form == "babble" else request.getfixturevalue(form)

    def fresh() -> Session:
        return babbling() if path is None else Session.load(path)

    first = fresh()
    folder = fill(tmp_path, first)
    kept = seen(first)
    assert len(list(folder.glob("*.state"))) == 5
    assert not [each for each in folder.iterdir() if each.stat().st_mode & 0o077]
    second = fresh()
    with opened(tmp_path, second) as (_, cache, count):
        assert count == 5
        for tokens, known in ((TEXT[:60], 60), ([*TEXT[:20], 120, 121, 122], 22), ([*TEXT[:10], 100], 10)):
            assert bring_to(second, tokens, cache) == known
            first.reset()
            bring_to(first, tokens, PrefixCache(first.model, 0))
            assert second.tokens == tokens
            if known == len(tokens):
                found = cache.find(tokens)
                assert found is not None
                third = fresh()
                third.resume(found)
                third_state = seen(third)
                assert same(third_state, seen(second))
                assert same(third_state, kept)
        bring_to(second, TEXT, cache)
    with opened(tmp_path, fresh()) as (_, _, count):
        assert count == 8


def test_the_budget_holds_on_disk_and_what_is_needed_stays(tmp_path: Path) -> None:
    sizes = [each.stat().st_size for each in fill(tmp_path / "all", babbling()).iterdir()]
    budget = sum(sizes) * 7 // 10
    folder = fill(tmp_path / "few", babbling(), budget)
    assert 0 < sum(each.stat().st_size for each in folder.iterdir()) <= budget
    with opened(tmp_path / "few", babbling(), budget) as (_, cache, count):
        assert 0 < count < 5
        assert cache.find(TEXT[:60]) is not None


def test_no_more_is_removed_than_has_to_be(tmp_path: Path) -> None:
    sizes = [each.stat().st_size for each in fill(tmp_path / "all", babbling()).iterdir()]
    folder = fill(tmp_path / "few", babbling(), sum(sizes) - 1)
    assert len(list(folder.iterdir())) == len(sizes) - 1


def test_what_is_used_stays_longest(tmp_path: Path) -> None:
    session = babbling()
    with opened(tmp_path, session) as (folder, cache, _):
        bring_to(session, TEXT[:10], cache)
        bring_to(session, [120] * 10, cache)
        folder.flush()
        for each in folder.folder.iterdir():
            os.utime(each, (1, 1))
        bring_to(session, TEXT[:10], cache)
        folder.flush()
        used = {each.suffix for each in folder.folder.iterdir() if each.stat().st_mtime > 1}
        assert used == {".state", ".rows"}


Edit = Callable[[dict[str, str], bytes], bytes]
"""Change what a file's first line says, and return another part of a checkpoint for what it has."""


def named(**changed: str) -> Edit:
    def edit(line: dict[str, str], part: bytes) -> bytes:
        line.update(changed)
        return part

    return edit


ROWS: dict[str, Edit] = {  # what parts may say: test_core_steps.py
    "rows that are missing": lambda line, part: part[:-8],
    "nothing": lambda line, part: b"",
    "another version": named(format="hybridge-checkpoint-9"),
    "the version of 0.2": named(format="hybridge-checkpoint-1"),
    "another artifact": named(artifact="other"),
    "a parent of no name": named(before="../../etc/passwd"),
    "a parent that is not there": named(before=f"{'0' * 64}.rows"),
    "one more field": named(more="1"),
    "a field that is nested too deep": named(before="[" * 100_000),
}
STATES: dict[str, Edit] = {
    "rows of no name": named(before="/etc/passwd"),
    "rows that are a state": named(before=f"{'0' * 64}.state"),
    "no rows": named(before=""),
    "one more buffer": lambda line, part: part + bytes(8),
}
LINES = [b"", b"null", b"[]", b"{}", b"[" * 4000, b"\xff", b'{"format": 1}', b"9" * 3000]


def forge(file: Path, edit: Edit) -> Path:
    """A file with a right name and other content."""
    line, _, part = file.read_bytes().partition(b"\n")
    content = json.loads(line)
    part = edit(content, part)
    return put(file, json.dumps(content).encode() + b"\n" + part)


def put(file: Path, data: bytes) -> Path:
    made = file.with_name(hashlib.sha256(data).hexdigest() + file.suffix)
    made.write_bytes(data)
    return made


def kept_once(tmp_path: Path) -> tuple[Path, Path]:
    """The files of one checkpoint: its state, its rows."""
    session = babbling()
    with opened(tmp_path, session) as (folder, cache, _):
        bring_to(session, TEXT[:10], cache)
    (state,), (rows,) = folder.folder.glob("*.state"), folder.folder.glob("*.rows")
    return state, rows


def ignored(top: Path, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.WARNING), opened(top, babbling()) as (_, cache, count):
        assert count == len(cache) == 0
    return caplog.text


@pytest.mark.parametrize("what", ROWS)
def test_forged_rows_are_ignored_and_told(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, rows = kept_once(tmp_path)
    forged = forge(rows, ROWS[what])
    forge(state, named(before=forged.name))
    state.unlink()
    assert "a checkpoint is ignored" in ignored(tmp_path, caplog)


@pytest.mark.parametrize("what", STATES)
def test_forged_states_are_ignored_and_told(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, _ = kept_once(tmp_path)
    forge(state, STATES[what])
    state.unlink()
    assert "a checkpoint is ignored" in ignored(tmp_path, caplog)


@pytest.mark.parametrize("line", LINES)
def test_a_first_line_that_says_nothing_is_ignored_and_told(
    line: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, _ = kept_once(tmp_path)
    part = state.read_bytes().partition(b"\n")[2]
    state.unlink()
    put(state, line + b"\n" + part)
    assert "another version or another artifact" in ignored(tmp_path, caplog)


def test_rows_that_lead_in_a_circle_cannot_be_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name is the hash of what names the others; a long chain ends where no text can be longer."""
    state, rows = kept_once(tmp_path)
    before, part = rows.name, bytes(16)
    for _ in range(babbling().max_seq_len + 2):
        before = forge(rows, lambda line, _, before=before: named(before=before)(line, part)).name  # type: ignore[misc]
    forge(state, named(before=before))
    state.unlink()
    assert "a checkpoint is ignored" in ignored(tmp_path, caplog)


def test_files_of_0_2_are_ignored_and_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They were safetensors under the same names."""
    state, rows = kept_once(tmp_path)
    for file in (state, rows):
        file.unlink()
        put(file, (2).to_bytes(8, "little") + b"{}")
    assert "another version or another artifact" in ignored(tmp_path, caplog)
    assert len(list(state.parent.iterdir())) == 2


def test_damage_is_ignored_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, rows = kept_once(tmp_path)
    whole = rows.read_bytes()
    for place in (0, 40, len(whole) - 1):
        rows.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert "was damaged" in ignored(tmp_path, caplog)
        caplog.clear()
    rows.write_bytes(whole[:50])
    assert "was damaged" in ignored(tmp_path, caplog)
    for file in (rows, state):
        size = file.stat().st_size
        os.truncate(file, 1 << 32)
        assert "are the most there can be" in ignored(tmp_path, caplog), "nobody reads that much"
        os.truncate(file, size)
        caplog.clear()
    rows.unlink()
    os.mkfifo(rows)
    assert "no regular file" in ignored(tmp_path, caplog)
    rows.unlink()
    state.with_name(f"{'1' * 64}.state").symlink_to("/dev/zero")
    (state.parent / "somebody's notes").write_text("stay")
    assert "cannot be read" in ignored(tmp_path, caplog)
    assert (state.parent / "somebody's notes").exists()


def test_a_full_disk_ends_the_writing_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hybridge.runtime.binding.checkpoint_folder.replace_file", full)
    session = babbling()
    with opened(tmp_path, session) as (folder, cache, _):
        bring_to(session, TEXT, cache, [20])
        folder.flush()
        assert cache.find(TEXT) is not None
    assert caplog.text.count("No space left on device") == 1
    assert not list(folder.folder.iterdir())


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    def work(start: int) -> None:
        session = babbling()
        with opened(tmp_path, session, 20_000) as (_, cache, _):
            for i in range(12):
                bring_to(session, [start + i, *TEXT[:30]], cache, [5])

    threads = [threading.Thread(target=work, args=(start,)) for start in (97, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with opened(tmp_path, babbling()) as (folder, _, count):
        assert count > 0
    assert not [each for each in folder.folder.iterdir() if each.suffix not in (".state", ".rows")]


def test_where_there_can_be_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--cache-dir"):
        CheckpointFolder(tmp_path / "file", babbling(), BUDGET)
    session = babbling()
    session.manifest = replace(session.manifest, identity=None)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="artifact"):
        CheckpointFolder(tmp_path, session, BUDGET)
