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
from numpy.typing import NDArray
from store import demo_folder
from table import table_session

import hybridge
from hybridge.errors import CommitError, DraftError, HybridgeError, NativeError, SnapshotError, TokenError, UsageError
from hybridge.runtime import Context, Drafter, Model, PromptLookup, Proposal, Sampling, Session, open_artifact
from hybridge.runtime.binding import library
from hybridge.runtime.pinned import library_folder

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n"]


@pytest.fixture(scope="module")
def model(kernels_artifact: Path) -> Model:
    return Model.open(open_artifact(kernels_artifact))


class Repeating:
    """Proposes the end of the text once more."""

    needs_hidden = is_cheap = False

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(context.tokens[-limit:])


WITHOUT_TORCH = """
    import json, tempfile
    class Repeating:
        needs_hidden = is_cheap = False
        def propose(self, context, limit):
            return Proposal(context.tokens[-limit:])
    found = {}
    def kept(name, **options):
        session.reset()
        found[name] = list(session.generate(CODE, max_new_tokens=60, **options))
    kept("plain")
    kept("lookup", drafter=PromptLookup(), block_length=4)
    kept("own", drafter=OwnDrafter(session), block_length=4)
    kept("model", drafter=DraftModel(Model.open(open_artifact(DRAFT)), session), block_length=4)
    kept("function", drafter=Repeating(), block_length=4)
    kept("drawn", sampling=Sampling(temperature=0.8, top_k=30, seed=5))
    kept("drawn with lookup", drafter=PromptLookup(), sampling=Sampling(temperature=0.8, top_k=30, seed=5))
    session.reset()
    session.prefill(CODE)
    assert session.snapshot(0) == len(CODE) and session.slots[0] == CODE == session.tokens
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
    """Everything that a session does, by the demo's model, drafter and draft model."""
    demo = demo_folder()
    program = WITHOUT_TORCH.replace("CODE", repr(CODE)).replace("DRAFT", repr(str(demo / "hybridge-demo-draft")))
    found = json.loads(in_core(demo / "hybridge-demo", program))
    plain = found["plain"]
    for name in ("lookup", "own", "model", "function"):
        assert found[name] == plain, name
    assert found["drawn"] == found["drawn with lookup"] != plain
    assert found["verified"] == plain[1:4]
    assert found["decoded"] == plain[3]


def test_threads_have_sessions_of_their_own(model: Model) -> None:
    """They wait for each other's calls, and nobody waits with Python's lock."""
    wanted = list(Session(model).generate(PROMPT, max_new_tokens=40))
    found: list[list[int]] = []

    def talk() -> None:
        session = Session(model)
        for drafter in (None, PromptLookup(), Repeating()):
            session.reset()
            kept = session.checkpoint()
            found.append(list(session.generate(PROMPT, max_new_tokens=40, drafter=drafter, until=lambda token: False)))
            session.resume(kept)

    workers = [threading.Thread(target=talk) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert found == [wanted] * 12


def test_a_session_is_in_one_call_at_a_time(session: Session, model: Model) -> None:
    """But another one of the model may be called from a callback."""
    beside, lengths = Session(model), []

    def own(logits: NDArray[np.float32], token: int) -> None:
        for call in (lambda: session.decode(token), lambda: session.tokens, session.reset, session.close):
            with pytest.raises(UsageError, match="another call"):
                call()
        lengths.append(len(beside.decode(token)))

    assert len(list(session.generate(PROMPT, max_new_tokens=3, watch=own))) == 3
    assert lengths == [model.vocab_size] * 3


class Broken(Exception):  # noqa: N818
    """What a callback raises."""


def broken(*_: object) -> Any:
    raise Broken


def raising(name: str) -> Any:
    """An object of which one method raises."""
    methods = {
        "mask": lambda self, logits: None,
        "take": lambda self, token: None,
        "forced": lambda self: [],
        "fitting": lambda self, tokens: len(tokens),
        "propose": lambda self, context, limit: Proposal(context.tokens[-limit:]),
        "needs_hidden": False,
        "is_cheap": False,
    }
    return type("Raising", (), methods | {name: broken})()


class Saying:
    """Proposes whatever it is given."""

    needs_hidden = is_cheap = False

    def __init__(self, **proposal: Any) -> None:
        self.proposal = proposal

    def propose(self, context: Context, limit: int) -> Proposal:
        return Proposal(**self.proposal)


CALLBACKS: dict[str, dict[str, Any]] = {
    "until": {"until": broken},
    "watch": {"watch": broken},
    "watch, of a block": {"watch": broken, "drafter": PromptLookup(), "block_length": 3},
    "drafter": {"drafter": raising("propose"), "block_length": 3},
    "a drafter that is measured": {"drafter": raising("propose")},
    "mask": {"constraint": raising("mask")},
    "take": {"constraint": raising("take")},
    "forced": {"constraint": raising("forced")},
    "fitting": {"constraint": raising("fitting"), "drafter": Repeating(), "block_length": 3},
    "clock": {"clock": broken},
    "no seconds": {"clock": lambda: "late"},
    "a draft that is none": {"drafter": Saying(tokens=["7"]), "block_length": 3},
    "confidences that are none": {"drafter": Saying(tokens=[7], confidences=["sure"]), "block_length": 3},
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_a_callback_raises_ends_the_generation(session: Session, model: Model, name: str) -> None:
    plain = list(Session(model).generate(PROMPT, max_new_tokens=10))
    with pytest.raises((Broken, TokenError, DraftError, ValueError, TypeError)):
        list(session.generate(PROMPT, max_new_tokens=40, **CALLBACKS[name]))
    assert session.tokens in (PROMPT, [*PROMPT, plain[0]])
    rest = [*PROMPT, *plain][session.length :]
    assert list(session.generate(rest[:1], max_new_tokens=5)) == rest[1:6]


def test_an_error_in_the_middle_leaves_the_tokens_that_were_given(session: Session, model: Model) -> None:
    plain = list(Session(model).generate(PROMPT, max_new_tokens=40))
    given: list[int] = []

    def take(token: int) -> bool:
        given.append(token)
        if len(given) == 7:
            raise Broken
        return False

    with pytest.raises(Broken):
        list(session.generate(PROMPT, max_new_tokens=40, drafter=PromptLookup(), block_length=4, until=take))
    assert given == plain[:7]
    assert session.tokens == [*PROMPT, *plain[:6]]
    assert list(session.generate(plain[6:7], max_new_tokens=10)) == plain[7:17]


@pytest.mark.parametrize("drafter", [None, PromptLookup()])
def test_cancel_ends_it_whenever_it_comes(session: Session, drafter: Drafter | None) -> None:
    """From a callback, from another thread, and while the generator waits."""
    options: dict[str, Any] = {"drafter": drafter, "block_length": 4 if drafter else None}
    at_once = list(session.generate(PROMPT, max_new_tokens=40, watch=lambda logits, token: session.cancel(), **options))
    assert len(at_once) == 1
    assert session.tokens == PROMPT
    session.reset()
    stream = session.generate(PROMPT, max_new_tokens=40, **options)
    given = [next(stream) for _ in range(6)]
    caller = threading.Thread(target=session.cancel)
    caller.start()
    caller.join()
    assert session.length >= len(PROMPT)  # a look at it is no other generation
    given += stream
    assert 6 <= len(given) <= 6 + 4
    assert session.tokens == [*PROMPT, *given[:-1]]
    session.cancel()
    assert len(list(session.generate(given[-1:], max_new_tokens=5))) == 5, "where none runs it does nothing"


def test_two_generations_of_a_session_do_not_meet(session: Session, model: Model) -> None:
    """A new one ends the one before, whose end then changes nothing."""
    plain = list(Session(model).generate(PROMPT, max_new_tokens=20))
    first = session.generate(PROMPT, max_new_tokens=20, drafter=PromptLookup(), block_length=4)
    given = [next(first) for _ in range(3)]
    first.close()  # type: ignore[attr-defined]
    second = session.generate(given[-1:], max_new_tokens=17)
    assert next(second) == plain[3]
    first.close()  # type: ignore[attr-defined]
    third = session.generate(plain[3:4], max_new_tokens=16)
    assert next(third) == plain[4]
    with pytest.raises(UsageError, match="was changed while the generation waited"):
        next(second)
    assert list(third) == plain[5:]
    assert session.tokens == [*PROMPT, *plain[:-1]]


def press(number: int, token: int = 3) -> Callable[..., Any]:
    """Send this process a signal with a token."""
    count = 0

    def call(*_: object) -> bool:
        nonlocal count
        count += 1
        if count == token:
            signal.raise_signal(number)
        return False

    return call


@pytest.mark.parametrize("where", ["until", "watch", "clock", "propose", "mask"])
def test_ctrl_c_ends_it_between_two_tokens(session: Session, model: Model, where: str) -> None:
    plain = list(Session(model).generate(PROMPT, max_new_tokens=40))
    struck = press(signal.SIGINT)
    drafter, constraint = raising("watch"), raising("watch")

    def propose(context: Context, limit: int) -> Proposal:
        struck()
        return Proposal(context.tokens[-limit:])

    def mask(logits: NDArray[np.float32]) -> None:
        struck()

    drafter.propose, constraint.mask = propose, mask
    options: dict[str, dict[str, Any]] = {
        "until": {"until": struck},
        "watch": {"watch": struck},
        "clock": {"clock": lambda: float(struck())},
        "propose": {"drafter": drafter, "block_length": 2},
        "mask": {"constraint": constraint},
    }
    given: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        given.extend(session.generate(PROMPT, max_new_tokens=40, **options[where]))
    assert session.tokens == [*PROMPT, *plain][: session.length]
    assert session.length >= len(PROMPT)
    rest = [*PROMPT, *plain][session.length :]
    assert list(session.generate(rest[:1], max_new_tokens=5)) == rest[1:6]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_ctrl_c_ends_a_prompt_between_two_chunks_of_which_none_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    session = table_session()
    session.prefill([1, 2])
    program, calls = session.model.program, list[str]()
    assert program is not None
    really = program.call

    def call(name: str, *inputs: Any) -> Any:
        calls.append(name)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return really(name, *inputs)

    monkeypatch.setattr(program, "call", call)
    with pytest.raises(KeyboardInterrupt):
        session.generate([1] * 30)
    assert session.tokens == [1, 2]
    assert calls == ["prefill", "prefill"]
    calls.clear()
    with pytest.raises(KeyboardInterrupt):  # a call of its own is no generation: it happens, and the error comes after it
        session.prefill([1] * 30)
    assert session.length == 32


@pytest.fixture
def handled_signals() -> Iterator[list[int]]:
    """Numbers of the signals that a handler was called with, which goes on."""
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, handle)
    yield seen
    signal.signal(signal.SIGTERM, before)


def test_a_handler_that_goes_on_ends_nothing(session: Session, handled_signals: list[int]) -> None:
    assert len(list(session.generate(PROMPT, max_new_tokens=10, watch=press(signal.SIGTERM)))) == 10
    assert handled_signals == [signal.SIGTERM]


def test_handlers_are_put_back(session: Session, handled_signals: list[int]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for call in (lambda logits, token: None, press(signal.SIGINT), broken):
        session.reset()
        with contextlib.suppress(KeyboardInterrupt, Broken):
            list(session.generate(PROMPT, max_new_tokens=5, watch=call))
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
    for call in (session.snapshot, session.restore):
        with pytest.raises(SnapshotError):
            call(number)
    with pytest.raises(TokenError, match="outside the vocabulary"):
        list(session.generate([1], drafter=Saying(tokens=[number]), block_length=2))
    session.reset()
    assert len(list(session.generate(PROMPT, sampling=Sampling(temperature=1e-3, top_k=abs(number), seed=1)))) > 10
    session.reset()
    if abs(number) < 2**64:
        assert len(list(session.generate(PROMPT, max_new_tokens=abs(number)))) > 10
    else:
        with pytest.raises(UsageError, match="max_new_tokens"):
            session.generate(PROMPT, max_new_tokens=abs(number))


def test_what_is_closed_is_refused(model: Model, kernels_artifact: Path) -> None:
    opened = Model.open(open_artifact(kernels_artifact))
    with Session(opened) as session:
        opened.close()
        session.prefill(PROMPT)  # it keeps the program as long as it needs it
        kept = session.checkpoint()
        kept.close()
        kept.close()
        with pytest.raises(UsageError, match="closed"):
            session.resume(kept)
        stream = session.generate([1], max_new_tokens=9)
        next(stream)
    with pytest.raises(UsageError, match="closed"):
        next(stream)
    for call in (lambda: session.length, lambda: session.decode(1), session.checkpoint, lambda: session.generate([1])):
        with pytest.raises(UsageError, match="closed"):
            call()
    with pytest.raises(HybridgeError, match="closed"):
        Session(opened)


@pytest.fixture
def core_of_another_version(tmp_path: Path) -> Path:
    """A library that says that it is of another version."""
    source = tmp_path / "other.c"
    source.write_text('const char* hybridge_version(void) { return "0.1.0"; }\n')
    made = tmp_path / library.NAME
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", made], check=True)
    return made


def test_a_core_of_another_version_is_refused(core_of_another_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "build", lambda: core_of_another_version)
    with pytest.raises(NativeError, match=rf"is of hybridge 0\.1\.0, and this is {hybridge.__version__}"):
        library.load.__wrapped__()


@pytest.mark.slow
def test_there_is_one_copy_of_executorchs_runtime(session: Session) -> None:
    """PyTorch's extension, which an export loads, shares it: and its pool of threads."""
    session.prefill(PROMPT)
    import executorch.extension.pybindings.portable_lib  # noqa: F401

    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libexecutorch.so" in line}
    assert mapped == {str((library_folder() / "libexecutorch.so").resolve())}


def test_its_only_door_is_the_header() -> None:
    exported = subprocess.run(
        ["nm", "-D", "--defined-only", library.build()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in exported.splitlines()}
    assert {name for name in names if not name.startswith("hybridge_")} == set()
    needed = subprocess.run(["ldd", library.build()], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"lib(torch|python|c10)", needed)
