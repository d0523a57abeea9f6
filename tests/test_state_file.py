"""A session on disk over a real program: the core's files, and those of 0.2, which had a format of Python's."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from forged_state import Content, forge_state, forge_texts, save_as_before, without_note
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_state import save_in_full
from states import Arrays, same
from table import VOCABULARY, Table, table_session

from hybridge.cache.errors import CommitError, OutputError, SnapshotError, StateFileError, UsageError
from hybridge.runtime import ExportOptions, Session
from hybridge.runtime.core.programs import TextDescription, TextProgram

PROMPT = [5, 6, 7, 0, 9, 5, 6, 130, 8, 9, 5, 6]
"""With the first and the last of the vocabulary."""
ARTIFACTS = Path(__file__).parent / "artifacts"


@pytest.fixture(scope="module")
def session(artifact: Path) -> Session:
    return Session.load(artifact)


@pytest.fixture
def older(session: Session, tmp_path: Path) -> Path:
    """A file of 0.2 that has something of everything."""
    save_in_full(session, PROMPT, tmp_path / "of the core").unlink()
    return save_as_before(session, tmp_path / "state")


@pytest.fixture(params=["core", "core without notes", "0.2"])
def saved(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Path:
    """The same in each of the formats."""
    path = save_in_full(session, PROMPT, tmp_path / "state")
    if request.param == "0.2":
        save_as_before(session, path)
    if request.param == "core without notes":
        without_note(path)
    return path


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


def test_a_file_that_0_2_wrote_is_loaded() -> None:
    """Eleven tokens, with the first four in a slot, of the artifact beside it; test_older_formats.py has what comes then."""
    session = Session.load(ARTIFACTS / "format-2")
    assert session.load_state(ARTIFACTS / "state-0.2") == 11
    assert session.note == "kept by 0.2"
    assert session.slots == {0: [5, 7, 11, 13]}
    assert list(session.generate([24], max_new_tokens=5)) == [104, 35, 65, 104, 76]
    assert session.restore(0) == 4
    goes_on = session.decode(17)
    session.reset()
    assert np.allclose(goes_on, session.prefill([5, 7, 11, 13, 17]), atol=1e-5)


@pytest.mark.parametrize("note", ["", "what a caller noted\n", "ä" * 3000])
def test_a_note_comes_back(session: Session, tmp_path: Path, note: str) -> None:
    session.save(tmp_path / "of the core", note)
    for path in (tmp_path / "of the core", save_as_before(session, tmp_path / "of 0.2", note)):
        session.load_state(path)
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
    with pytest.raises(StateFileError, match=r"another artifact|no state of this model"):
        other.load_state(saved)
    assert other.length == 0


def test_what_is_no_saved_session_is_refused(session: Session, tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.zeros(1)}, tmp_path / "weights")
    safetensors.numpy.save_file({"a": np.zeros(1, np.float32)}, tmp_path / "other weights", {"of": "a model"})
    for name, says in (
        ("weights", "damaged or not one"),
        ("other weights", "not a saved session"),
        ("nothing", "does not exist"),
    ):
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


# Files of 0.2 that were forged, checksum and all


def put(name: str, value: int) -> Callable[[Content], object]:
    return lambda content: content["buffers"][name].fill(value)


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
    "another version": lambda path: forge_state(path, lambda content: content.update(format="hybridge-state-9")),
    "a buffer of another size": lambda path: forge_state(
        path, lambda content: content["buffers"].update(length=np.zeros(2, np.int64))
    ),
    "another buffer": lambda path: forge_state(path, lambda content: content["buffers"].update(more=np.zeros(1))),
    "a type that no state has": lambda path: forge_state(
        path, lambda content: content["buffers"].update(length=np.zeros(4, np.uint16))
    ),
    "no length": lambda path: forge_state(path, lambda content: content["buffers"].pop("length")),
    "another type": lambda path: forge_state(
        path, lambda content: content["buffers"].update(length=content["buffers"]["length"].astype(np.float64))
    ),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_file_is_refused_and_the_session_goes_on(session: Session, older: Path, forgery: str) -> None:
    """A length of -100000 once took the process down, and ``{"tokens": 5}`` broke the session for good."""
    FORGED[forgery](older)
    session.reset()
    session.prefill(PROMPT)
    before = bits(session)
    with pytest.raises(StateFileError):
        session.load_state(older)
    assert session.tokens == PROMPT
    assert same(bits(session), before)
    session.decode(1)
    session.reset()
    session.prefill(PROMPT)


def edit_header(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(old, new, 1)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


HEADERS: dict[str, tuple[bytes, bytes]] = {
    "a name twice": (b'"__metadata__":{', b'"__metadata__":{"note":"twice",'),
    "a buffer that leads out": (b'"data_offsets":[0,', b'"data_offsets":[99999999999,'),
    "a buffer that ends nowhere": (b'"data_offsets":[0,', b'"data_offsets":[0,9'),
    "a negative place": (b'"data_offsets":[0,', b'"data_offsets":[-8,'),
    "half a place": (b'"data_offsets":[0,', b'"data_offsets":[0.5,'),
    "one place": (b'"data_offsets":[0,', b'"data_offsets":['),
    "no shape": (b'"shape":[', b'"form":['),
    "no JSON": (b"{", b"["),
    "no text": (b'"', b"\xff"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_cannot_be_is_refused(session: Session, older: Path, what: str) -> None:
    before = bits(session)
    edit_header(older, *HEADERS[what])
    with pytest.raises(StateFileError, match="damaged or not one"):
        session.load_state(older)
    assert same(bits(session), before)


@pytest.mark.parametrize("size", [0, 9, 1 << 40, (1 << 64) - 1])
def test_a_header_of_another_size_is_refused(session: Session, older: Path, size: int) -> None:
    older.write_bytes(size.to_bytes(8, "little") + older.read_bytes()[8:])
    with pytest.raises(StateFileError, match="damaged or not one"):
        session.load_state(older)


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
        save_in_full(session, [1, 2, 3, 4, 5, 1], Path(folder) / "of the core")
        path = save_as_before(session, Path(folder) / "state")
        for name, value in mutations:
            try:
                mutate(path, name, value)
            except (ValueError, TypeError, AttributeError, OverflowError):
                return  # an earlier one left no texts to change
        session.reset()
        session.prefill([3, 3])
        try:
            session.load_state(path)
        except StateFileError:
            assert session.tokens == [3, 3]
        assert session.length == int(session.state()["length"][0])
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
