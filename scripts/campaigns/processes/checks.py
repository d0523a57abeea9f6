"""Load, drop, interleave, thread and fork sessions; run the C interface under the thread sanitizer."""

from __future__ import annotations

import gc
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hybridge.errors import UsageError
from hybridge.runtime.binding.session import Logits, Session

GROWTH = 0.02
"""Memory that a thousand loads may add, of what the process has."""
TEXT = 24
"""Tokens of a text."""


class Wrong(Exception):  # noqa: N818  it is what a check finds, and no error of the script
    """A result differs, memory grew, or an error was missing."""


def text(number: int, vocab_size: int) -> list[int]:
    """Return a text of its own for each number."""
    rng = random.Random(number)
    return [rng.randrange(vocab_size) for _ in range(TEXT)]


def play(session: Session, tokens: Sequence[int]) -> Logits:
    """Commit a text by all operations; the logits after it."""
    session.reset()
    session.prefill(tokens[:10])
    session.snapshot(0)
    for start in range(10, len(tokens) - 1, 4):
        block = tokens[start : start + 4]
        session.verify(block)
        session.commit(len(block) // 2)
        for token in block[len(block) // 2 :]:
            session.decode(token)
    session.restore(0)
    return session.prefill(tokens[10:])


def loads(artifact: Path, count: int) -> str:
    """Load, use and drop a session ``count`` times: the memory that it takes is given back."""
    expected = play(Session.load(artifact), text(0, Session.load(artifact).vocab_size))
    warm_up = max(5, count // 10)
    sizes = []
    for number in range(warm_up + count):
        session = Session.load(artifact)
        _same(play(session, text(0, session.vocab_size)), expected, f"load {number}")
        del session
        gc.collect()
        sizes.append(resident())
    first, last = min(sizes[warm_up : warm_up + count // 4 + 1]), min(sizes[-(count // 4 + 1) :])
    growth = last / first - 1
    if growth > GROWTH:
        raise Wrong(f"{count} loads added {growth:.1%} to {first / 2**20:.0f} MiB")
    return f"{first / 2**20:.0f} MiB, {growth:+.2%}"


def sessions(artifact: Path, count: int) -> str:
    """Have ``count`` sessions at once, in turns of a random order: none changes another."""
    opened = [Session.load(artifact) for _ in range(count)]
    before, turns = resident(), [(number, place) for number in range(count) for place in range(TEXT)]
    order = sorted(range(len(turns)), key=lambda i: (turns[i][1], random.Random(i).random()))
    last: dict[int, Logits] = {}
    for number, place in (turns[i] for i in order):
        last[number] = opened[number].decode(text(number, opened[0].vocab_size)[place])
    alone = Session.load(artifact)
    for number, logits in last.items():
        alone.reset()
        for token in text(number, alone.vocab_size):
            expected = alone.decode(token)
        _same(logits, expected, f"session {number} of {count}")
    return f"{(resident() - before) / count / 2**10:.0f} KiB a session while they compute"


def threads(artifact: Path, count: int) -> str:
    """Run ``count`` threads at once, each with sessions of its own that it loads and drops."""
    alone = Session.load(artifact)
    expected = [play(alone, text(number, alone.vocab_size)).copy() for number in range(count)]
    wrong: list[str] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                session = Session.load(artifact)
                for _ in range(5):
                    _same(play(session, text(number, session.vocab_size)), expected[number], f"thread {number}, {turn}")
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    _together([lambda number=number: work(number) for number in range(count)])
    if wrong:
        raise Wrong(wrong[0])
    return f"{count * 25} texts"


def children(artifact: Path, count: int) -> str:
    """Fork ``count`` children of a process whose sessions have computed: both go on where they were, at the same time."""
    session = Session.load(artifact)
    tokens = text(0, session.vocab_size)
    expected = play(session, tokens).copy(), session.decode(tokens[0]).copy()
    play(session, tokens)
    answers = [_in_a_child(lambda: (session.decode(tokens[0]), play(Session.load(artifact), tokens))) for _ in range(count)]
    _same(session.decode(tokens[0]), expected[1], "the parent")
    for number, answer in enumerate(answers):
        went_on, again = answer()
        _same(went_on, expected[1], f"child {number} that goes on")
        _same(again, expected[0], f"a session of child {number}")
    return f"{count} children"


def one_session(artifact: Path, calls: int) -> str:
    """Let two threads call one session: each call succeeds or says why not, and what succeeded is what the session holds."""
    session = Session.load(artifact)
    said: Counter[str] = Counter()
    wrong: list[str] = []
    done: list[int] = []
    start = threading.Barrier(2)

    def work(token: int) -> None:
        for _ in range(calls):
            start.wait()
            try:
                session.decode(token)
                done.append(token)
                said["done"] += 1
            except UsageError as error:
                said["refused"] += 1
                if "one thread at a time" not in str(error):
                    wrong.append(str(error))
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
            start.wait()
            if token == 1 and session.room < 2:
                session.reset()
                done.clear()

    _together([lambda token=token: work(token) for token in (1, 2)])
    if wrong:
        raise Wrong(wrong[0])
    if sorted(session.tokens) != sorted(done):
        raise Wrong(f"{len(done)} tokens were committed, and the session has {session.length}")
    expected = Session.load(artifact).prefill([*session.tokens, 3])
    if not np.allclose(session.decode(3), expected, rtol=1e-3, atol=1e-4):
        raise Wrong("its logits are not those of its tokens")
    return f"{said['done']} done, {said['refused']} refused"


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _same(got: Logits, expected: Logits, where: str) -> None:
    if not np.array_equal(got, expected):
        raise Wrong(f"{where} gives other logits, by up to {float(np.abs(got - expected).max()):.1e}")


def _together(work: Sequence[Callable[[], None]]) -> None:
    started = [threading.Thread(target=each) for each in work]
    for each in started:
        each.start()
    for each in started:
        each.join()


def _in_a_child(work: Callable[[], tuple[Logits, Logits]], seconds: float = 60) -> Callable[[], tuple[Logits, Logits]]:
    """Start ``work`` in a fork; what is returned waits for its answer. A child that says nothing for a minute is wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(writing, "wb") as file:
                pickle.dump(work(), file)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)

    def answer() -> tuple[Logits, Logits]:
        end = time.monotonic() + seconds
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.kill(child, 9)
                os.waitpid(child, 0)
                raise Wrong(f"a child says nothing for {seconds:.0f} seconds")
            time.sleep(0.01)
        with os.fdopen(reading, "rb") as file:
            data = file.read()
        if not data:
            raise Wrong("a child ended without an answer")
        found: tuple[Logits, Logits] = pickle.loads(data)  # our own child's
        return found

    return answer


PROMPT = ("100", "101", "102", "103", "104", "100", "101", "102", "103", "104", "100", "101")
OPTIONS = "ignore_noninstrumented_modules=1 halt_on_error=1"
"""ExecuTorch is not compiled for the sanitizer, which cannot see how its threads wait for each other."""


def under_the_thread_sanitizer(program: Path, artifact: Path, draft: Path, rounds: int) -> tuple[bool, str]:
    """Run tests/native/threads.cpp.

    Args:
        program: as tests/native/CMakeLists.txt builds it, with the whole core under the thread sanitizer.
        artifact: a model with chats.
        draft: the artifact of its draft model.
        rounds: rounds of each thread.

    Returns:
        whether it went well, and what was found.
    """
    with tempfile.TemporaryDirectory() as scratch:
        words = [str(program), str(artifact), str(draft / "model.pte"), scratch, str(rounds), *PROMPT]
        environment = os.environ | {"TSAN_OPTIONS": OPTIONS}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=1800, check=False)
    print(done.stderr[-4000:], end="", file=sys.stderr)
    return done.returncode == 0, done.stdout.strip() or f"ended with {done.returncode}"
