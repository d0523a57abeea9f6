"""A session on disk, over a real program."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from forged_state import Content, forge_state, forge_texts
from hybridge.runtime.sessions.saved_state import SavedState
from hybridge.runtime.sessions.state_file import read_state, write_state
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_state import save_in_full
from table import VOCABULARY, Table, table_session

from hybridge.cache.errors import CommitError, OutputError, SnapshotError, StateFileError, UsageError
from hybridge.runtime import ExportOptions, Session
from hybridge.runtime.core.programs import TextDescription, TextProgram
from hybridge.runtime.files import durable

PROMPT = [5, 6, 7, 0, 9, 5, 6, 130, 8, 9, 5, 6]
"""With the first and the last of the vocabulary."""


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
    assert int(session.model.program.call("commit", torch.tensor([1]))[0]) == -1


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


# Files that were forged, checksum and all


def put(name: str, value: int) -> Callable[[Content], object]:
    return lambda content: content["buffers"][name].fill_(value)


FORGED: dict[str, Callable[[Path], object]] = {
    **{
        f"length {value}": lambda path, value=value: forge_state(path, put("length", value))
        for value in (-100000, -1, 0, 11, 97, 2**63 - 1, -(2**63))
    },
    **{
        f"{count} operations": lambda path, count=count: forge_state(path, put("operations", count))
        for count in (-1, 2**63 - 1)
    },
    **{
        f"slots of length {value}": lambda path, value=value: forge_state(path, put("slot_length", value))
        for value in (-2, 0, 5, 2**62)
    },
    "one token less": lambda path: forge_texts(path, lambda texts: texts["tokens"].pop()),
    "one token more": lambda path: forge_texts(path, lambda texts: texts["tokens"].append(1)),
    "a token beyond the vocabulary": lambda path: forge_texts(path, lambda texts: texts["tokens"].__setitem__(0, 131)),
    "a negative token": lambda path: forge_texts(path, lambda texts: texts["tokens"].__setitem__(0, -1)),
    "a truth": lambda path: forge_texts(path, lambda texts: texts["tokens"].__setitem__(0, True)),
    "half a token": lambda path: forge_texts(path, lambda texts: texts["tokens"].__setitem__(0, 1.5)),
    "a huge token": lambda path: forge_texts(path, lambda texts: texts["tokens"].__setitem__(0, 10**400)),
    "a number for tokens": lambda path: forge_texts(path, lambda texts: texts.update(tokens=5)),
    "text for tokens": lambda path: forge_texts(path, lambda texts: texts.update(tokens="123456789012")),
    "a slot that is not there": lambda path: forge_texts(path, lambda texts: texts["slots"].append([7, [1]])),
    "a slot's token beyond the vocabulary": lambda path: forge_texts(
        path, lambda texts: texts["slots"][0][1].__setitem__(0, 131)
    ),
    "a slot's negative token": lambda path: forge_texts(path, lambda texts: texts["slots"][0][1].__setitem__(0, -1)),
    "a slot twice": lambda path: forge_texts(path, lambda texts: texts["slots"].append(texts["slots"][0])),
    "a slot without a number": lambda path: forge_texts(path, lambda texts: texts["slots"].append(["1", []])),
    "slots that are no pairs": lambda path: forge_texts(path, lambda texts: texts.update(slots=[3])),
    "a slot without its text": lambda path: forge_texts(path, lambda texts: texts.update(slots=[])),
    "more than it should say": lambda path: forge_texts(path, lambda texts: texts.update(more=1)),
    **{
        f"texts {text[:24]}": lambda path, text=text: forge_state(path, lambda content: content.update(texts=text))
        for text in ("", "null", "{}", "[" * 100_000, '{"tokens": [1], "tokens": [2], "slots": []}', "NaN", "9" * 5000)
    },
    "no texts": lambda path: forge_state(path, lambda content: content.pop("texts")),
    "no note": lambda path: forge_state(path, lambda content: content.pop("note")),
    "another field": lambda path: forge_state(path, lambda content: content.update(extra="1")),
    "no length": lambda path: forge_state(path, lambda content: content["buffers"].pop("length")),
    "another type": lambda path: forge_state(
        path, lambda content: content["buffers"].update(length=content["buffers"]["length"].double())
    ),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_file_is_refused_and_the_session_goes_on(session: Session, saved: Path, forgery: str) -> None:
    """A length of -100000 once took the process down, and ``{"tokens": 5}`` broke the session for good."""
    FORGED[forgery](saved)
    session.reset()
    session.prefill(PROMPT)
    before = bits(session)
    with pytest.raises(StateFileError):
        session.load_state(saved)
    assert session.tokens == PROMPT
    assert all(torch.equal(each, before[name]) for name, each in bits(session).items())
    session.decode(1)
    session.reset()
    session.prefill(PROMPT)


def test_a_header_that_has_a_name_twice_is_refused(session: Session, saved: Path) -> None:
    data = saved.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(b'"__metadata__":{', b'"__metadata__":{"note":"twice",', 1)
    saved.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    with pytest.raises(StateFileError, match="damaged or not one"):
        session.load_state(saved)


def test_what_is_no_file_is_refused_at_once(session: Session, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StateFileError, match="no regular file"):
            session.load_state(path)


def test_a_file_that_is_too_large_is_not_read(session: Session, saved: Path) -> None:
    os.truncate(saved, 10**12)  # it takes no room on the disk
    with pytest.raises(StateFileError, match="are the most there can be"):
        session.load_state(saved)


WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 45)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats() | st.text(max_size=5), lambda each: st.lists(each), max_leaves=8
)
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["length", "operations", "slot_length"]), WHOLE)
    | st.tuples(st.sampled_from(["tokens", "slots"]), JSON | st.lists(WHOLE, max_size=12))
    | st.tuples(st.just("texts"), st.text(max_size=30)),
    min_size=1,
    max_size=3,
)
OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=5, verify_len=4, snapshot_slots=2)


def table() -> Session:
    description = TextDescription(vocab_size=VOCABULARY, options=OPTIONS, identity="a table")
    return Session.over(TextProgram(Table(3), OPTIONS.max_seq_len, OPTIONS.snapshot_slots), description)


def mutate(path: Path, name: str, value: object) -> None:
    if name == "texts":
        forge_state(path, lambda content: content.update(texts=value))
    elif name in ("tokens", "slots"):
        forge_texts(path, lambda texts: texts.update({name: value}))
    else:
        assert isinstance(value, int)
        forge_state(path, put(name, value))


@pytest.mark.slow
@given(MUTATIONS)
@settings(max_examples=150)
def test_whatever_a_file_says_it_is_loaded_or_refused(mutations: list[tuple[str, object]]) -> None:
    session = table()
    with tempfile.TemporaryDirectory() as folder:
        path = save_in_full(session, [1, 2, 3, 4, 5, 1], Path(folder) / "state")
        for name, value in mutations:
            try:
                mutate(path, name, value)
            except (ValueError, TypeError, AttributeError):
                return  # an earlier one left no texts to change
        session.reset()
        session.prefill([3, 3])
        try:
            session.load_state(path)
        except StateFileError:
            assert session.tokens == [3, 3]
        assert session.length == int(session.state()["length"])
        assert 0 <= session.length <= session.max_seq_len
        if session.room:
            session.decode(1)
        for slot in list(session.slots):
            try:
                session.restore(slot)
            except SnapshotError:
                continue
        assert session.reset() == 0
        session.prefill([1, 2, 3])


# Files that stay


def test_a_saved_file_is_on_the_disk_before_it_has_its_name(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        log.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def renamed(source: Path, target: Path) -> Path:
        log.append(f"{source.name} -> {target.name}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    session.save(tmp_path / "state")
    assert log == [".state.partial", ".state.partial -> state", tmp_path.name]


def test_what_a_killed_save_left_is_used_up_by_the_next(session: Session, tmp_path: Path) -> None:
    (tmp_path / ".state.partial").write_bytes(b"half" * 100_000)
    session.save(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    session.load_state(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_what_was_there(session: Session, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        session.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["state"]
