"""The native core from Python: without PyTorch, from threads, and with callbacks that raise or are interrupted."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from core_child import in_core
from store import demo_folder

import hybridge
from hybridge.cache.errors import ArtifactError, CapacityError, CommitError, NativeError, SnapshotError, TokenError, UsageError
from hybridge.runtime import Sampling, open_artifact
from hybridge.runtime import Session as PythonSession
from hybridge.runtime.backends import threads
from hybridge.runtime.core import Model, Session, library
from hybridge.runtime.core.session import Checkpoint
from hybridge.runtime.pinned import library_folder

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n"]


@pytest.fixture(scope="module")
def model(own_artifact: Path) -> Model:
    return Model(open_artifact(own_artifact))


@pytest.fixture
def session(model: Model) -> Session:
    return Session(model)


WITHOUT_TORCH = """
    import json, tempfile
    found = {}
    def kept(name, **options):
        session.reset()
        found[name] = session.generate(CODE, max_new_tokens=60, **options).tokens
    draft = Model(open_artifact(DRAFT))
    kept("plain")
    kept("lookup", drafter="lookup", block_length=4)
    kept("own", drafter="own", block_length=4)
    kept("model", drafter=draft, block_length=4)
    kept("function", drafter=lambda text, limit: text[-limit:], block_length=4)
    kept("drawn", drafter="lookup", sampling=Sampling(temperature=0.8, top_k=30, seed=5))
    session.reset()
    session.prefill(CODE)
    assert session.snapshot(0) == len(CODE) and session.slot(0) == CODE == session.tokens
    checkpoint = session.checkpoint()
    checked = session.verify(found["plain"][:3])
    assert session.commit(2) == len(CODE) + 2
    found["verified"] = checked.argmax(-1).tolist()
    after = session.decode(found["plain"][2])
    found["decoded"] = int(after.argmax())
    assert after.dtype == np.float32
    assert session.restore(0) == len(CODE)
    assert session.verify(found["plain"][:3]).tobytes() == checked.tobytes()
    other = Session(model)
    assert other.resume(checkpoint) == len(CODE)
    assert other.verify(found["plain"][:3]).tobytes() == checked.tobytes()
    with tempfile.TemporaryDirectory() as folder:
        session.save(f"{folder}/state")
        other.reset()
        assert other.load_state(f"{folder}/state") == len(CODE)
    assert other.tokens == CODE
    assert other.verify(found["plain"][:3]).tobytes() == checked.tobytes()
    loaded = [name for name in ("torch", "transformers", "executorch.extension") if sys.modules.get(name) is not None]
    assert loaded == [] and "libtorch" not in Path("/proc/self/maps").read_text()
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_it_runs_without_torch() -> None:
    """Everything that a session does, by the demo's model, drafter and draft model; with the tokens of Python's session."""
    demo = demo_folder()
    program = WITHOUT_TORCH.replace("CODE", repr(CODE)).replace("DRAFT", repr(str(demo / "hybridge-demo-draft")))
    found = json.loads(in_core(demo / "hybridge-demo", program))
    python = PythonSession.load(demo / "hybridge-demo")
    plain = list(python.generate(CODE, max_new_tokens=60))
    for name in ("plain", "lookup", "own", "model", "function"):
        assert found[name] == plain, name
    assert found["verified"] == plain[1:4]
    assert found["decoded"] == plain[3]
    python.reset()
    drawn = python.generate(CODE, max_new_tokens=60, sampling=Sampling(temperature=0.8, top_k=30, seed=5))
    assert found["drawn"] == list(drawn)


def test_threads_have_sessions_of_their_own(model: Model) -> None:
    """They wait for each other's calls, and nobody waits with Python's lock."""
    wanted = Session(model).generate(PROMPT, max_new_tokens=40).tokens
    found: list[list[int]] = []

    def talk() -> None:
        session = Session(model)
        for drafter in (None, "lookup", lambda text, limit: text[-limit:]):
            session.reset()
            kept = session.checkpoint()
            found.append(session.generate(PROMPT, max_new_tokens=40, drafter=drafter, on_token=lambda token: True).tokens)
            session.resume(kept)

    workers = [threading.Thread(target=talk) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert found == [wanted] * 12


def test_a_session_is_in_one_call_at_a_time(session: Session, model: Model) -> None:
    beside = Session(model)
    lengths = []

    def own(token: int) -> None:
        with pytest.raises(UsageError, match="another call"):
            session.decode(token)
        lengths.append(len(beside.decode(token)))

    assert len(session.generate(PROMPT, max_new_tokens=3, on_token=own).tokens) == 3
    assert lengths == [model.vocab_size] * 3


class Broken(Exception):  # noqa: N818
    """What a callback raises."""


def broken(*_: object) -> Any:
    raise Broken


def test_a_prompt_can_be_watched_and_interrupted(session: Session) -> None:
    session.prefill(PROMPT)
    prompt, read = [3] * (3 * session.prefill_chunk), list[int]()
    session.generate(prompt, max_new_tokens=1, on_read=read.append)
    assert read == [session.prefill_chunk, 2 * session.prefill_chunk]
    session.reset()
    session.prefill(PROMPT)
    with pytest.raises(KeyboardInterrupt):
        session.generate(prompt, max_new_tokens=1, on_read=lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Broken):
        session.generate(prompt, max_new_tokens=1, on_read=broken)
    assert session.tokens == PROMPT


CALLBACKS: dict[str, dict[str, Any]] = {
    "on_token": {"on_token": broken},
    "drafter": {"drafter": broken, "block_length": 3},
    "a drafter that is measured": {"drafter": broken},
    "mask": {"mask": broken},
    "clock": {"clock": broken},
    "a draft that is none": {"drafter": lambda text, limit: ["7"]},
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_a_callback_raises_ends_the_generation(session: Session, name: str) -> None:
    with pytest.raises((Broken, TokenError)):
        session.generate(PROMPT, max_new_tokens=40, **CALLBACKS[name])
    assert session.length in (len(PROMPT), len(PROMPT) + 1)
    session.decode(7)


def test_an_error_in_the_middle_leaves_the_tokens_that_were_given(session: Session, model: Model) -> None:
    plain = Session(model).generate(PROMPT, max_new_tokens=40).tokens
    given: list[int] = []

    def take(token: int) -> None:
        given.append(token)
        if len(given) == 7:
            raise Broken

    with pytest.raises(Broken):
        session.generate(PROMPT, max_new_tokens=40, drafter="lookup", block_length=4, on_token=take)
    assert given == plain[:7]
    assert session.tokens == [*PROMPT, *plain[:6]]
    assert session.generate(plain[6:7], max_new_tokens=10).tokens == plain[7:17]


def test_on_token_and_cancel_end_it(session: Session) -> None:
    left = iter([True] * 4 + [False])
    assert len(session.generate(PROMPT, max_new_tokens=40, on_token=lambda _: next(left)).tokens) == 5
    session.reset()
    assert len(session.generate(PROMPT, max_new_tokens=40, on_token=lambda _: session.cancel()).tokens) == 1


def press(number: int) -> Callable[[int], None]:
    """Send this process a signal with the third token."""
    count = 0

    def on_token(_: int) -> None:
        nonlocal count
        count += 1
        if count == 3:
            signal.raise_signal(number)

    return on_token


def test_ctrl_c_ends_it_between_two_tokens(session: Session) -> None:
    with pytest.raises(KeyboardInterrupt):
        session.generate(PROMPT, max_new_tokens=40, on_token=press(signal.SIGINT))
    assert session.length == len(PROMPT) + 2
    session.decode(7)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_from_outside_ends_it_too(own_artifact: Path) -> None:
    """At whatever moment it comes, in a process that generates without end."""
    program = """
        import os, signal, threading, time
        ended = 0
        for round in range(30):
            threading.Timer(0.002 + 0.001 * round, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                until = time.monotonic() + 5
                while time.monotonic() < until:
                    session.reset()
                    session.generate([5, 6, 7], max_new_tokens=80, drafter="lookup")
            except KeyboardInterrupt:
                ended += 1
            assert session.length <= session.max_seq_len
        session.reset()
        print(ended, session.generate([5, 6, 7], max_new_tokens=5).tokens)
    """
    wanted = Session(Model(open_artifact(own_artifact))).generate([5, 6, 7], max_new_tokens=5).tokens
    assert in_core(own_artifact, program).split(" ", 1) == ["30", f"{wanted}\n"]


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Numbers of the signals that a handler was called with, which goes on."""
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_a_handler_that_goes_on_ends_nothing(session: Session, handled: list[int]) -> None:
    assert len(session.generate(PROMPT, max_new_tokens=10, on_token=press(signal.SIGTERM)).tokens) == 10
    assert handled == [signal.SIGTERM]


def test_handlers_are_put_back(session: Session, handled: list[int]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for call in (lambda: 1, press(signal.SIGINT), broken):
        session.reset()
        with contextlib.suppress(KeyboardInterrupt, Broken, TypeError):
            session.generate(PROMPT, max_new_tokens=5, on_token=call)
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


HUGE = [10**30, -(10**30), 2**63, -(2**63) - 1]


@pytest.mark.parametrize("number", HUGE)
def test_numbers_beyond_64_bits_are_refused(session: Session, number: int) -> None:
    """ctypes would cut them off without a word."""
    for call in (session.decode, lambda token: session.prefill([1, token]), lambda token: session.generate([token])):
        with pytest.raises(TokenError, match="outside the vocabulary"):
            call(number)
    session.verify([1, 2])
    with pytest.raises(CommitError):
        session.commit(number)
    for call in (session.snapshot, session.restore, session.slot):
        with pytest.raises(SnapshotError):
            call(number)
    with pytest.raises(UsageError):
        session.generate([1], drafter=lambda text, limit: [number], block_length=2)
    for options in ({"max_new_tokens": abs(number)}, {"sampling": Sampling(temperature=1e-3, top_k=abs(number), seed=1)}):
        session.reset()
        assert len(session.generate(PROMPT, **options).tokens) > 10


def test_errors_say_what_pythons_session_says(session: Session, own_artifact: Path) -> None:
    python = PythonSession.load(own_artifact)
    calls: list[Callable[[Any], object]] = [
        lambda each: each.prefill([]),
        lambda each: each.verify([10**6]),
        lambda each: each.prefill([1] * 1000),
        lambda each: each.verify([1] * 100),
        lambda each: each.snapshot(99),
    ]
    for call in calls:
        with pytest.raises(UsageError) as ours:
            call(session)
        with pytest.raises(UsageError) as theirs:
            call(python)
        assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))
    with pytest.raises(CapacityError):
        session.generate([1] * 1000)
    wrong: Any = "look-up"
    with pytest.raises(UsageError, match="the drafter is 'look-up'"):
        session.generate([1], drafter=wrong)


def test_what_is_closed_is_refused(model: Model, own_artifact: Path) -> None:
    opened = Model(open_artifact(own_artifact))
    with Session(opened) as session:
        opened.close()
        session.prefill(PROMPT)  # it keeps the program as long as it needs it
        kept = session.checkpoint()
        kept.close()
        kept.close()
        with pytest.raises(UsageError, match="closed"):
            session.resume(kept)
    for call in (lambda: session.length, lambda: session.decode(1), session.checkpoint):
        with pytest.raises(UsageError, match="closed"):
            call()
    with pytest.raises(ArtifactError, match="closed"):
        Session(opened)
    other: Checkpoint = Session(model).checkpoint()
    with pytest.raises(UsageError, match="another model"):
        Session(Model(open_artifact(own_artifact))).resume(other)


def test_an_artifact_for_onnxruntime_is_refused(small: Path) -> None:
    with pytest.raises(ArtifactError, match=r"runs a \.pte"):
        Model(open_artifact(small))


@pytest.fixture
def other_version(tmp_path: Path) -> Path:
    """A library that says that it is of another version."""
    source = tmp_path / "other.c"
    source.write_text('const char* hybridge_version(void) { return "0.1.0"; }\n')
    made = tmp_path / library.NAME
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", made], check=True)
    return made


def test_a_core_of_another_version_is_refused(other_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "build", lambda: other_version)
    with pytest.raises(NativeError, match=rf"is of hybridge 0\.1\.0, and this is {hybridge.__version__}"):
        library.load.__wrapped__()


def test_it_shares_executorchs_runtime_with_pythons_session(session: Session, own_artifact: Path) -> None:
    """One copy of each library in the process, and one pool of threads."""
    python = PythonSession.load(own_artifact)
    assert np.allclose(session.prefill(PROMPT), python.prefill(PROMPT), rtol=0, atol=2e-5)
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libexecutorch.so" in line}
    assert mapped == {str((library_folder() / "libexecutorch.so").resolve())}


def test_threads_are_chosen_once_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
        from hybridge.runtime.core import library
        library.set_threads(1)
        print(session.prefill([1, 2, 3]).argmax(), library.chosen_threads())
    """
    assert in_core(Path(__file__).parent / "artifacts/format-2", program).split()[1] == "1"
    before = threads.threads()
    try:
        hybridge.set_threads(1)
        assert library.chosen_threads() == threads.threads() == 1
    finally:
        hybridge.set_threads(before)


def test_its_only_door_is_the_header() -> None:
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", library.build()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in exported.splitlines()}
    assert {name for name in names if not name.startswith("hybridge_")} == set()
    needed = subprocess.run(["ldd", library.build()], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"lib(torch|python|c10)", needed)


def test_statistics_add_up(session: Session) -> None:
    done = session.generate(PROMPT, max_new_tokens=40, drafter="lookup", block_length=4)
    assert len(done.tokens) == done.decodes + done.verifies + done.accepted + 1
    assert done.proposed >= done.accepted > 0
    spent = done.draft_seconds + done.verify_seconds + done.commit_seconds + done.decode_seconds
    assert 0 < spent <= done.new_seconds * 1.01
    assert done.prefill_seconds > 0
