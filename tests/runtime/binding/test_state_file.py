"""A session on disk over a real program: another one goes on from it, and what is wrong with a file is refused."""

from __future__ import annotations

import math
import os
import resource
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import byref, c_size_t, memset
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_files import CHECKSUM, HEADER, forge_state, save_in_full, texts_content
from states import Arrays, same, seen
from table import VOCABULARY, Table, table_session

from hybridge.errors import CommitError, NumericalError, OutputError, SnapshotError, StateFileError, UsageError
from hybridge.runtime import ExportOptions, Model, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.interface import ArrayStruct
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.programs import Numbers, TextProgram
from hybridge.runtime.binding.programs import seen as shown

PROMPT = [5, 6, 7, 0, 9, 5, 6, 130, 8, 9, 5, 6]
"""With the first and the last of the vocabulary."""


@pytest.fixture
def state_file(session: Session, tmp_path: Path) -> Path:
    """Return a file that has something of everything."""
    return save_in_full(session, PROMPT, tmp_path / "state")


def bits(session: Session) -> Arrays:
    return {name: each for name, each in session.state().items() if "staged" not in name}


FORMS = ["artifact", *(pytest.param(form, marks=pytest.mark.slow) for form in ("kernels_artifact", "onnx_artifact"))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("goes_back", [False, True])
def test_nothing_is_read_that_was_not_saved(form: str, goes_back: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Load into memory that is full of NaN. goes_back: a slot is longer than the text, and its rows are needed."""
    session, other = (Session.load(request.getfixturevalue(form)) for _ in range(2))
    session.prefill(PROMPT[:4])
    session.snapshot(0)
    session.prefill(PROMPT[4:])
    session.snapshot(1)
    if goes_back:
        session.restore(0)
    session.save(tmp_path / "state")
    fill(other, 0xFF)
    assert other.load_state(tmp_path / "state") == session.length
    assert same(seen(other), seen(session))
    for go_on in (
        lambda each: each.restore(1) and each.decode(3) if goes_back else each.restore(0) and each.decode(3),
        lambda each: each.verify([1, 2, 3]),
        lambda each: each.commit(2),
        lambda each: each.prefill(list(range(1, 30))),
        lambda each: list(each.generate([3], max_new_tokens=6, eos_ids=())),
    ):
        assert np.array_equal(go_on(other), go_on(session))


def fill(session: Session, byte: int) -> None:
    """Fill the memory of all buffers."""
    count = c_size_t()
    run("buffers", session.handle, None, 0, byref(count))
    views = (ArrayStruct * count.value)()
    run("buffers", session.handle, views, count.value, byref(count))
    for view in views:
        memset(view.data, byte, shown(view).nbytes)


def test_a_saved_state_has_the_rows_of_its_text(session: Session, tmp_path: Path) -> None:
    """A file holds bounded states, tokens and the rows in use; three tokens of a context of 1,024 once took 47 MB."""
    sizes = []
    for tokens in ([1, 2, 3], [4] * 20):
        session.prefill(tokens)
        session.save(tmp_path / "state")
        sizes.append((tmp_path / "state").stat().st_size)
        state = session.state()
        numbers = state["slot_length"].nbytes + state["operations"].nbytes + 8 * (1 + session.snapshot_slots + session.length)
        own = HEADER + numbers + sum(each.nbytes for each in seen(session).values()) + len(struct.pack("<Q", 0)) + CHECKSUM
        assert sizes[-1] == own
    row = sum(each.nbytes // each.shape[1] for name, each in state.items() if name.endswith((".keys", ".values")))
    assert sizes[1] - sizes[0] == 20 * (8 + row)


class LongContext(TextProgram):
    """A program whose rows by position take 64 MB, of which a text fills a few."""

    names = (*TextProgram.names, "layers.0.keys")

    def __init__(self, options: ExportOptions) -> None:
        super().__init__(Table(1, ends=False), options.max_seq_len, options.snapshot_slots)
        self.keys = np.zeros((1, options.max_seq_len + options.prefill_chunk, 4096), np.float32)

    def buffer(self, name: str) -> Numbers:
        return self.keys if name == "layers.0.keys" else super().buffer(name)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory that can be begun anew")
def test_saving_and_loading_take_memory_for_the_text_alone(tmp_path: Path) -> None:
    options = ExportOptions(max_seq_len=4091, prefill_chunk=5, verify_len=4, snapshot_slots=2)
    session = Session.over(LongContext(options), ProgramInfo(vocab_size=VOCABULARY, options=options, identity="long"))
    session.prefill([1, 2, 3])
    for call in (session.save, session.load_state):
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        call(tmp_path / "state")
        assert resident("VmHWM") - before < 4 << 20
    assert (tmp_path / "state").stat().st_size < 64 << 10
    assert session.tokens == [1, 2, 3]


def resident(field: str) -> int:
    """Return bytes of this process's memory: now, VmRSS, or the most so far, VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


@pytest.mark.parametrize("note", ["", "what a caller noted\n", "ä" * 3000])
def test_a_note_comes_back(session: Session, tmp_path: Path, note: str) -> None:
    session.save(tmp_path / "state", note)
    session.load_state(tmp_path / "state")
    assert session.note == note


def test_a_loaded_state_has_no_block_that_waits(session: Session, state_file: Path) -> None:
    session.verify([1, 2])
    session.load_state(state_file)
    assert int(session.state()["staged"][0]) == 0
    with pytest.raises(CommitError):
        session.commit(1)


def test_saving_leaves_the_session_as_it_is(session: Session, tmp_path: Path) -> None:
    save_in_full(session, PROMPT, tmp_path / "state")
    session.commit(2)
    assert session.tokens == [*PROMPT, 1, 2]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.7, 0.999, None])
def test_a_flipped_byte_is_refused_and_changes_nothing(session: Session, state_file: Path, share: float | None) -> None:
    before, data = bits(session), bytearray(state_file.read_bytes())
    data[16 if share is None else int(share * len(data))] ^= 0x10  # the model's number is at 16
    state_file.write_bytes(data)
    with pytest.raises(StateFileError):
        session.load_state(state_file)
    assert same(bits(session), before)


@pytest.mark.parametrize("left", [0, 5, 100, 4000, -1, None])
def test_a_truncated_file_or_a_longer_one_is_refused(session: Session, state_file: Path, left: int | None) -> None:
    data = state_file.read_bytes()
    state_file.write_bytes(data + b"x" if left is None else data[:left])
    with pytest.raises(StateFileError, match="state"):
        session.load_state(state_file)


def test_a_file_of_another_artifact_is_refused(session: Session, state_file: Path, kernels_artifact: Path) -> None:
    other = Session.load(kernels_artifact)
    with pytest.raises(StateFileError, match="another artifact"):
        other.load_state(state_file)
    assert other.length == 0


def test_what_is_no_saved_session_is_refused(session: Session, tmp_path: Path) -> None:
    metadata = {"format": "hybridge-state-1", "artifact": str(session.manifest.identity)}
    safetensors.numpy.save_file({"length": np.zeros(1, np.int64)}, tmp_path / "of 0.2", metadata)
    with pytest.raises(StateFileError, match=r"of 0\.2 is no saved state"):
        session.load_state(tmp_path / "of 0.2")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "nothing", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StateFileError, match="does not exist, cannot be read, or is no regular file"):
            session.load_state(path)


def test_a_state_of_another_processor_loads_with_a_word(
    kernels_artifact: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session.load(kernels_artifact)
    state_file = save_in_full(session, PROMPT, tmp_path / "saved.state")
    assert session.load_state(state_file)
    assert not caplog.messages
    forge_state(state_file, lambda content: None, b"i8mmx")
    assert session.load_state(state_file)
    assert "was saved by kernels for i8mmx" in caplog.text
    forge_state(state_file, lambda content: None, b"\x1b[2J")
    with pytest.raises(StateFileError, match="is damaged"):
        session.load_state(state_file)


def test_a_state_of_an_older_layout_is_refused_by_name(session: Session, state_file: Path) -> None:
    data = state_file.read_bytes()
    state_file.write_bytes(b"hybridge-state3\0" + data[16:])
    with pytest.raises(StateFileError, match="saved by an older version of hybridge; save it again"):
        session.load_state(state_file)
    state_file.write_bytes(b"hybridge-states\0" + data[16:])
    with pytest.raises(StateFileError, match="is no saved state"):
        session.load_state(state_file)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_what_was_there(session: Session, state_file: Path) -> None:
    before = state_file.read_bytes()
    with files_of_at_most(4096), pytest.raises(OutputError, match="state cannot be written: File too large"):
        session.save(state_file)
    assert state_file.read_bytes() == before
    assert [path.name for path in state_file.parent.iterdir()] == ["state"]


def test_a_session_without_an_artifact_cannot_be_saved(tmp_path: Path) -> None:
    for call in (table_session().save, table_session().load_state):
        with pytest.raises(UsageError, match="exported artifact"):
            call(tmp_path / "state")


def test_a_file_that_is_too_large_is_not_read(session: Session, state_file: Path) -> None:
    os.truncate(state_file, 10**12)  # it takes no room on the disk
    with pytest.raises(StateFileError, match="damaged"):
        session.load_state(state_file)


def at(place: int, value: int) -> Callable[[bytearray], object]:
    """Write a number into the texts: a length, tokens, a length, …"""

    def change(content: bytearray) -> None:
        content[8 * place : 8 * place + 8] = struct.pack("<q", value)

    return change


def everywhere(old: int, new: int) -> Callable[[bytearray], object]:
    """Write a number into the state's buffers wherever another one stands, which nothing but a length is."""

    def change(content: bytearray) -> None:
        begin = len(texts_content([PROMPT, [], PROMPT[:4]]))
        end = begin + (len(content) - begin) // 8 * 8
        numbers = struct.unpack(f"<{(end - begin) // 8}q", content[begin:end])
        assert old in numbers
        content[begin:end] = struct.pack(f"<{len(numbers)}q", *(new if number == old else number for number in numbers))

    return change


def state_number(place: int, value: int) -> Callable[[bytearray], object]:
    """Write one of the four numbers that come first, in the program's order: lengths, and how many operations there were."""
    return at(len(texts_content([PROMPT, [], PROMPT[:4]])) // 8 + place, value)


FORGED: dict[str, Callable[[bytearray], object]] = {
    "a huge text": at(0, 2**62),
    "a negative text": at(0, -1),
    "a text of another length": at(0, len(PROMPT) - 1),
    "a token outside the vocabulary": at(1, 131),
    "a negative token": at(1, -1),
    **{f"number {place} is {new}": state_number(place, new) for place in range(4) for new in (-2, 2**62)},
    **{f"a state of length {new}": everywhere(len(PROMPT), new) for new in (-100000, -1, 0, 97, 2**63 - 1)},
    **{f"a slot of length {new}": everywhere(4, new) for new in (-100000, -2, 0, 97, 2**63 - 1)},
    "something after it": lambda content: content.extend(bytes(8)),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_state_is_refused_and_changes_nothing(state_file: Path, session: Session, model: Model, forgery: str) -> None:
    """With a checksum made anew, a length of -100000 once took the process down."""
    forge_state(state_file, FORGED[forgery])
    other = Session(model)
    for each in (session, other):
        each.reset()
        each.prefill(PROMPT)
    with pytest.raises(StateFileError):
        other.load_state(state_file)
    assert other.length == len(PROMPT)
    assert np.array_equal(session.decode(3), other.decode(3))


@pytest.mark.slow
@settings(
    max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255) | st.integers(-(2**63), 2**63 - 1)), max_size=4))
def test_whatever_a_state_says_it_is_loaded_or_refused(session: Session, tmp_path: Path, edits: list[tuple[int, int]]) -> None:
    path = save_in_full(session, PROMPT, tmp_path / "a state")

    def change(content: bytearray) -> None:
        for place, value in edits:
            start = place % (len(content) // 8) * 8
            content[start : start + 8] = struct.pack("<q", value)

    forge_state(path, change)
    session.reset()
    session.prefill([3, 3])
    with suppress(StateFileError):
        session.load_state(path)
    assert 0 <= session.length <= session.max_seq_len
    for call in (lambda: session.decode(1), lambda: session.restore(1), session.reset):
        with suppress(NumericalError, SnapshotError):  # the numbers of the state itself may be anything
            call()


def test_a_state_that_is_saved_after_a_reset_holds_nothing_of_before(session: Session, tmp_path: Path) -> None:
    """Slots once kept their texts through a reset, and a saved state had them."""
    session.prefill([77] * 5)
    session.snapshot(0)
    session.reset()
    session.prefill(PROMPT)
    session.save(tmp_path / "state")
    assert struct.pack("<q", 77) not in (tmp_path / "state").read_bytes()


def test_what_a_killed_save_left_is_used_up_by_the_next(session: Session, tmp_path: Path) -> None:
    (tmp_path / ".state.partial").write_bytes(b"half" * 100_000)
    save_in_full(session, PROMPT, tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert session.load_state(tmp_path / "state") == len(PROMPT)


def test_a_state_of_nan_gives_an_error_and_no_token(session: Session, tmp_path: Path) -> None:
    save_in_full(session, PROMPT, tmp_path / "state")
    row = session.state()["layers.0.recurrent_state"][0, 0, 0, :8].tobytes()
    forge_state(tmp_path / "state", lambda content: replace_bytes(content, row))
    session.load_state(tmp_path / "state")
    with pytest.raises(NumericalError, match="'verify'"):
        session.verify([1, 2])
    assert session.length == len(PROMPT)
    with pytest.raises(CommitError):
        session.commit(1)
    with pytest.raises(NumericalError, match="'decode'"):
        session.decode(1)
    assert session.length == len(PROMPT) + 1, "the program committed it"
    with pytest.raises(NumericalError):
        session.generate([1], max_new_tokens=5)
    assert session.restore(1) == 4
    assert np.isfinite(session.decode(1)).all()


def replace_bytes(content: bytearray, old: bytes) -> None:
    """Put NaN where ``old`` stands, float32."""
    place = content.find(old)
    assert place >= 0
    content[place : place + len(old)] = struct.pack("<f", math.nan) * (len(old) // 4)
