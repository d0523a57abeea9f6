"""Checkpoints on disk: another process goes on from them bit for bit, and nothing that is wrong with a file gets further."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from served import session as babbling
from states import same, seen

from hybridge.cache.errors import OutputError, UsageError
from hybridge.runtime import Session
from hybridge.runtime.core.checkpoint import Checkpoint, PrefixCache, bring_to
from hybridge.runtime.core.checkpoint_folder import CheckpointFolder, name_of

TEXT = [97 + i % 11 for i in range(70)]
BUDGET = 1 << 30


@contextmanager
def opened(top: Path, session: Session, budget: int = BUDGET) -> Iterator[tuple[CheckpointFolder, PrefixCache, int]]:
    """A folder, a cache over it, and how many checkpoints it had."""
    folder, cache = CheckpointFolder(top, session, budget), PrefixCache(budget)
    count = folder.load_into(cache)
    cache.used = folder.put
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


@pytest.mark.parametrize("form", ["babble", "artifact", "own_artifact"])
def test_another_process_goes_on_bit_for_bit(form: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = None if form == "babble" else request.getfixturevalue(form)

    def fresh() -> Session:
        return babbling() if path is None else Session.load(path)

    first = fresh()
    folder = fill(tmp_path, first)
    assert len(list(folder.glob("*.state"))) == 5
    assert not [each for each in folder.iterdir() if each.stat().st_mode & 0o077]
    second = fresh()
    with opened(tmp_path, second) as (_, cache, count):
        assert count == 5
        for tokens, known in ((TEXT[:60], 60), ([*TEXT[:20], 120, 121, 122], 22), ([*TEXT[:10], 100], 10)):
            assert bring_to(second, tokens, cache) == known
            first.reset()
            bring_to(first, tokens, PrefixCache(0))
            assert second.tokens == tokens
            if known == len(tokens):
                third = fresh()
                third.resume(next(each for each in cache._nodes if each.tokens == tokens))
                assert same(seen(third), seen(second))
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


Edit = Callable[[dict[str, str], dict[str, Any]], None]


def numbers(**changed: Any) -> Edit:
    def edit(metadata: dict[str, str], buffers: dict[str, Any]) -> None:
        metadata["numbers"] = json.dumps(json.loads(metadata["numbers"]) | changed)

    return edit


def tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    def edit(metadata: dict[str, str], buffers: dict[str, Any]) -> None:
        buffers[name] = make(buffers[name])

    return edit


def named(**changed: str) -> Edit:
    return lambda metadata, buffers: metadata.update(changed)


ROWS: dict[str, Edit] = {
    "a longer text": numbers(length=99),
    "a negative length": numbers(length=-1),
    "a length that is no number": numbers(length=True),
    "more rows than there are": numbers(counts={"rows": 1 << 40}),
    "rows of another buffer": numbers(counts={"others": 10}),
    "another number": numbers(more=1),
    "a token outside the vocabulary": tensor("tokens", lambda tokens: tokens + 1000),
    "a negative token": tensor("tokens", lambda tokens: tokens - 1000),
    "tokens of another type": tensor("tokens", lambda tokens: tokens.float()),
    "no tokens": lambda metadata, buffers: buffers.__delitem__("tokens"),
    "rows of another shape": tensor("rows.rows", lambda rows: rows[:-1].clone()),
    "rows of another type": tensor("rows.rows", lambda rows: rows.int()),
    "one more buffer": lambda metadata, buffers: buffers.update(more=torch.zeros(1)),
    "another version": named(format="hybridge-checkpoint-9"),
    "another artifact": named(artifact="other"),
    "a parent of no name": named(parent="../../etc/passwd"),
    "a parent that is not there": named(parent=f"{'0' * 64}.rows"),
    "numbers that are none": named(numbers="[" * 100_000),
}
STATES: dict[str, Edit] = {
    "rows of no name": named(segment="/etc/passwd"),
    "rows that are a state": named(segment=f"{'0' * 64}.state"),
    "no rows": named(segment=""),
    "one more buffer": lambda metadata, buffers: buffers.update(more=torch.zeros(1)),
}


def forge(file: Path, edit: Edit) -> Path:
    """A file with a right name and other content."""
    data = file.read_bytes()
    buffers = safetensors.torch.load(data)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    edit(metadata, buffers)
    new = safetensors.torch.save(buffers, metadata)
    made = file.with_name(name_of(new, file.suffix))
    made.write_bytes(new)
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
    forge(state, named(segment=forged.name))
    state.unlink()
    assert "a checkpoint is ignored" in ignored(tmp_path, caplog)


@pytest.mark.parametrize("what", STATES)
def test_forged_states_are_ignored_and_told(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, _ = kept_once(tmp_path)
    forge(state, STATES[what])
    state.unlink()
    assert "a checkpoint is ignored" in ignored(tmp_path, caplog)


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

    monkeypatch.setattr("hybridge.runtime.core.checkpoint_folder.replace_file", full)
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


def test_a_checkpoint_of_the_disk_is_one_of_the_artifact(tmp_path: Path) -> None:
    fill(tmp_path, babbling())
    session = babbling()
    with opened(tmp_path, session) as (_, cache, _):
        found: Checkpoint | None = cache.find(TEXT[:60])
        assert found is not None
        assert session.resume(found) == 60
        assert session.checkpoint().segment is found.segment
