"""A session on disk, over a real program."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from saved_state import save_in_full
from table import table_session

from hybridge.cache.errors import CommitError, OutputError, StateFileError, UsageError
from hybridge.runtime import Session
from hybridge.runtime.sessions.state_file import SavedState, read_state, write_state

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]


@pytest.fixture(scope="module")
def session(artifact: Path) -> Session:
    return Session.load(artifact)


@pytest.fixture
def saved(session: Session, tmp_path: Path) -> Path:
    return save_in_full(session, PROMPT, tmp_path / "state")


def bits(session: Session) -> dict[str, torch.Tensor]:
    state = {name: each for name, each in session.state().items() if "staged" not in name}
    return {name: each.contiguous().view(torch.uint8) for name, each in state.items()}


def test_another_process_goes_on_bit_for_bit(session: Session, saved: Path, artifact: Path) -> None:
    other = Session.load(artifact)
    other.prefill([1, 2, 3])
    assert other.load_state(saved) == len(PROMPT)
    assert other.tokens == session.tokens == PROMPT
    want, got = bits(session), bits(other)
    assert all(torch.equal(want[name], got[name]) for name in want)
    assert torch.equal(other.decode(3), session.decode(3))
    assert other.restore(1) == session.restore(1) == 4
    assert other.tokens == PROMPT[:4]
    assert torch.equal(other.decode(3), session.decode(3))


def test_a_loaded_state_has_no_block_that_waits(session: Session, saved: Path) -> None:
    session.verify([1, 2])
    session.load_state(saved)
    with pytest.raises(CommitError):
        session.commit(1)
    assert int(session._program.call("commit", torch.tensor([1]))[0]) == -1


def test_saving_leaves_the_session_as_it_is(session: Session, saved: Path) -> None:
    session.commit(2)
    assert session.tokens == [*PROMPT, 1, 2]


@pytest.mark.parametrize("place", [0.0, 0.001, 0.02, 0.3, 0.7, 0.999])
def test_a_flipped_byte_is_refused_and_changes_nothing(session: Session, saved: Path, place: float) -> None:
    before, data = bits(session), bytearray(saved.read_bytes())
    data[int(place * len(data))] ^= 0x10
    saved.write_bytes(data)
    with pytest.raises(StateFileError):
        session.load_state(saved)
    assert all(torch.equal(each, before[name]) for name, each in bits(session).items())


@pytest.mark.parametrize("left", [0, 5, 100, 4000, -1])
def test_a_truncated_file_is_refused(session: Session, saved: Path, left: int) -> None:
    saved.write_bytes(saved.read_bytes()[:left])
    with pytest.raises(StateFileError, match="state"):
        session.load_state(saved)


def test_a_file_of_another_artifact_is_refused(session: Session, saved: Path) -> None:
    state = SavedState(session._saved_buffers(), PROMPT, {})
    write_state(saved, "another", state)
    with pytest.raises(StateFileError, match="another artifact"):
        session.load_state(saved)


def test_other_buffers_are_refused(session: Session, saved: Path) -> None:
    write_state(saved, session._identity(), SavedState({"length": torch.zeros(2, dtype=torch.long)}, PROMPT, {}))
    with pytest.raises(StateFileError, match="does not hold the state"):
        session.load_state(saved)


def test_what_is_no_saved_session_is_refused(session: Session, tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "weights")
    for name, says in (("weights", "not a saved session"), ("nothing", "does not exist")):
        with pytest.raises(StateFileError, match=says):
            session.load_state(tmp_path / name)
    with pytest.raises(StateFileError, match="cannot be read"):
        session.load_state(tmp_path)


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


def test_a_session_without_an_artifact_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exported artifact"):
        table_session().save(tmp_path / "state")


def test_texts_and_slots_come_back(tmp_path: Path) -> None:
    state = SavedState({"length": torch.tensor([2])}, [1, 2], {0: [1], 3: []})
    write_state(tmp_path / "state", "mine", state)
    back = read_state(tmp_path / "state", "mine", state.buffers)
    assert (back.tokens, back.slots) == (state.tokens, state.slots)
