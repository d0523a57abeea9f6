"""A session on disk over a real program."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from state_files import save_in_full
from states import Arrays, same
from table import table_session

from hybridge.cache.errors import CommitError, OutputError, StateFileError, UsageError
from hybridge.runtime import Session

PROMPT = [5, 6, 7, 0, 9, 5, 6, 130, 8, 9, 5, 6]
"""With the first and the last of the vocabulary."""


@pytest.fixture(scope="module")
def session(artifact: Path) -> Session:
    return Session.load(artifact)


@pytest.fixture
def saved(session: Session, tmp_path: Path) -> Path:
    """Return a file that has something of everything."""
    return save_in_full(session, PROMPT, tmp_path / "state")


def bits(session: Session) -> Arrays:
    return {name: each for name, each in session.state().items() if "staged" not in name}


def test_another_session_goes_on_bit_for_bit(session: Session, saved: Path, artifact: Path) -> None:
    other = Session.load(artifact)
    other.prefill([1, 2, 3])
    assert other.load_state(saved) == len(PROMPT)
    assert other.tokens == session.tokens == PROMPT
    assert other.slots == session.slots == {1: PROMPT[:4]}
    assert same(bits(other), bits(session))
    assert np.array_equal(other.decode(3), session.decode(3))
    assert other.restore(1) == session.restore(1) == 4
    assert other.tokens == PROMPT[:4]
    assert np.array_equal(other.decode(3), session.decode(3))


@pytest.mark.parametrize("note", ["", "what a caller noted\n", "ä" * 3000])
def test_a_note_comes_back(session: Session, tmp_path: Path, note: str) -> None:
    session.save(tmp_path / "state", note)
    session.load_state(tmp_path / "state")
    assert session.note == note


def test_a_loaded_state_has_no_block_that_waits(session: Session, saved: Path) -> None:
    session.verify([1, 2])
    session.load_state(saved)
    assert int(session.state()["staged"][0]) == 0
    with pytest.raises(CommitError):
        session.commit(1)


def test_saving_leaves_the_session_as_it_is(session: Session, tmp_path: Path) -> None:
    save_in_full(session, PROMPT, tmp_path / "state")
    session.commit(2)
    assert session.tokens == [*PROMPT, 1, 2]


@pytest.mark.parametrize("place", [0.0, 0.001, 0.02, 0.3, 0.7, 0.999])
def test_a_flipped_byte_is_refused_and_changes_nothing(session: Session, saved: Path, place: float) -> None:
    before, data = bits(session), bytearray(saved.read_bytes())
    data[int(place * len(data))] ^= 0x10
    saved.write_bytes(data)
    with pytest.raises(StateFileError):
        session.load_state(saved)
    assert same(bits(session), before)


@pytest.mark.parametrize("left", [0, 5, 100, 4000, -1])
def test_a_truncated_file_is_refused(session: Session, saved: Path, left: int) -> None:
    saved.write_bytes(saved.read_bytes()[:left])
    with pytest.raises(StateFileError, match="state"):
        session.load_state(saved)


def test_a_file_of_another_artifact_is_refused(session: Session, saved: Path, own_artifact: Path) -> None:
    other = Session.load(own_artifact)
    with pytest.raises(StateFileError, match="another artifact"):
        other.load_state(saved)
    assert other.length == 0


def test_what_is_no_saved_session_is_refused(session: Session, tmp_path: Path) -> None:
    metadata = {"format": "hybridge-state-1", "artifact": str(session.manifest.identity)}
    safetensors.numpy.save_file({"length": np.zeros(1, np.int64)}, tmp_path / "of 0.2", metadata)
    with pytest.raises(StateFileError, match=r"of 0\.2: .* in the format of hybridge 0\.2; save the state again"):
        session.load_state(tmp_path / "of 0.2")
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(StateFileError, match="does not exist, cannot be read, or is no regular file"):
            session.load_state(path)


def test_a_file_that_cannot_be_written_leaves_what_was_there(session: Session, saved: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        session.save(saved.parent / "no such folder" / "state")
    before = saved.read_bytes()
    saved.parent.chmod(0o500)
    try:
        session.save(saved)
    except OutputError:
        assert saved.read_bytes() == before
    finally:
        saved.parent.chmod(0o700)
    assert [path.name for path in saved.parent.iterdir()] == ["state"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_what_was_there(session: Session, saved: Path) -> None:
    before = saved.read_bytes()
    with files_of_at_most(4096), pytest.raises(OutputError, match="cannot be written"):
        session.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["state"]


def test_a_session_without_an_artifact_cannot_be_saved(tmp_path: Path) -> None:
    for call in (table_session().save, table_session().load_state):
        with pytest.raises(UsageError, match="exported artifact"):
            call(tmp_path / "state")


def test_a_file_that_is_too_large_is_not_read(session: Session, saved: Path) -> None:
    os.truncate(saved, 10**12)  # it takes no room on the disk
    with pytest.raises(StateFileError, match="damaged"):
        session.load_state(saved)
