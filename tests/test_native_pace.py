"""Block lengths in C++: the same decisions as Python's for the same times and draft tokens, alone and in whole generations."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

import pytest
from hybridge.runtime.generation.pace import Pace
from native_programs import native_program
from store import demo_folder

from hybridge.runtime import Context, Drafter, GenerationStats, PromptLookup, Proposal, Sampling, Session, open_artifact
from hybridge.runtime.core import Model
from hybridge.runtime.core.drafters import BlockDrafter, DraftModel
from hybridge.runtime.native import NativeSession

Known = Literal["lookup", "own", "model", "guesses"]


@pytest.fixture(scope="module")
def play() -> Callable[[Sequence[str]], list[float]]:
    """Plays lines of calls in C++; the numbers that it answers."""
    program = native_program("pace")

    def played(lines: Sequence[str]) -> list[float]:
        done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
        return [float(line) for line in done.stdout.split()]

    return played


class Script:
    """Calls of a pace on made-up rounds, with what Python's answers."""

    def __init__(self, seed: int, lengths: Sequence[int], fixed: int | None) -> None:
        self.rng, self.lengths, self.pace = random.Random(seed), lengths, Pace(lengths, fixed)
        self.lines = [f"pace {_words(lengths)}" if fixed is None else f"fixed {fixed} {_words(lengths)}"]
        self.answers: list[float] = []
        self.share, self.cost, self.draft = self.rng.random(), self.rng.uniform(0.02, 1.0), self.rng.choice([0.0, 0.05, 0.4])

    def ask(self, line: str, answer: float) -> None:
        self.lines.append(line)
        self.answers.append(float(answer))

    def round(self) -> None:
        """Play one round as a generation does."""
        rng, pace = self.rng, self.pace
        if rng.random() < 0.02:
            self.share = rng.random()  # another kind of text
        room, chance = rng.randint(1, 40), rng.choice([None, None, rng.random()])
        length = pace.choose(room, chance)
        self.ask(f"choose {room} {'' if chance is None else repr(chance)}", length)
        chances = [rng.random() for _ in range(length - 1)]
        if chances and rng.random() < 0.5:
            count = pace.cut(chances)
            self.ask(f"cut {_words(chances)}", count)
            length = count + 1
        right = [rng.random() < self.share for _ in range(length - 1)]
        accepted = next((i for i, good in enumerate(right) if not good), len(right))
        drafting = self.draft * rng.random() if length > 1 or chances else 0.0
        if length == 1:
            self.decode()
        seconds = (1 + self.cost * (length - 1)) * rng.uniform(0.8, 1.5) * rng.choice([1, 1, 1, 8]) + drafting
        pace.round_done(length, length - 1, accepted, seconds, drafting)
        self.lines.append(f"done {length} {length - 1} {accepted} {seconds!r} {drafting!r}")
        self.ask("acceptance", pace.acceptance)

    def decode(self) -> None:
        self.ask("wants", self.pace.wants_shadow())
        if self.pace.wants_shadow():
            tokens, seconds = [int(self.rng.random() < self.share) for _ in range(self.pace.shadow_length)], self.draft
            self.pace.shadow(tokens, seconds)
            self.lines.append(f"shadow {seconds!r} {_words(tokens)}")
        self.pace.compare(1)
        self.lines.append("compare 1")


def _words(values: Sequence[float]) -> str:
    return " ".join(map(repr, values))


@pytest.mark.parametrize(("lengths", "fixed"), [((2, 4, 8, 16), None), ((5,), None), ((4, 9), None), ((4, 9), 3)])
def test_every_decision_is_pythons(
    play: Callable[[Sequence[str]], list[float]], lengths: Sequence[int], fixed: int | None
) -> None:
    scripts = [Script(seed, lengths, fixed) for seed in range(40)]
    for script in scripts:
        for _ in range(200):
            script.round()
    answers = play([line for script in scripts for line in script.lines])
    wanted = [answer for script in scripts for answer in script.answers]
    assert answers == pytest.approx(wanted, rel=1e-12)
    assert len({answer for answer in wanted if answer >= 1}) > (2 if len(lengths) > 1 else 1)


def test_a_drafter_keeps_what_was_measured_with_a_model(play: Callable[[Sequence[str]], list[float]]) -> None:
    first, second, longer, other, back = play([f"judge {call}" for call in ("0 2 4", "0 2 4", "0 2 8", "1 2 8", "0 2 8")])
    assert first < second
    assert longer == other == back == first


class Guesses:
    """Proposes tokens of a text that is known, some of them spoilt, whoever asks."""

    needs_hidden = is_free = False

    def __init__(self, text: Sequence[int], share: float) -> None:
        self.text, self.share, self.rng = text, share, random.Random(4)

    def propose(self, context: Context, limit: int) -> Proposal:
        start = len(context.tokens)
        return Proposal([t if self.rng.random() < self.share else (t + 1) % 90 for t in self.text[start : start + limit]])


CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\nclass Line:\n    def"]


@pytest.fixture(scope="module")
def models() -> tuple[Session, Model, Path]:
    """Both over the demo's artifact, which has a trained drafter; and the draft model's artifact."""
    folder = demo_folder() / "hybridge-demo"
    return Session.load(folder), Model(open_artifact(folder)), folder.with_name("hybridge-demo-draft")


def in_python(session: Session, steps: Sequence[float], drafter: Drafter, sampling: Sampling) -> tuple[list[int], list[int]]:
    """A generation's tokens, and its counts, on a clock that passes by ``steps``."""
    stats, times = GenerationStats(), itertools.accumulate(itertools.chain([1.0], itertools.cycle(steps)))
    session.reset()
    with mock.patch("hybridge.runtime.core.generation.perf_counter", times.__next__):
        tokens = list(session.generate(CODE, max_new_tokens=150, drafter=drafter, sampling=sampling, stats=stats))
    return tokens, [stats.proposed, stats.accepted, stats.verifies, stats.rollbacks]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", get_args(Known))
@pytest.mark.parametrize("sampling", [Sampling(seed=0), Sampling(temperature=0.5, seed=5)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("seed", range(4))
def test_generations_take_pythons_decisions(
    models: tuple[Session, Model, Path], drafter: Known, sampling: Sampling, seed: int
) -> None:
    python, model, small = models
    rng = random.Random(seed)
    steps = [rng.expovariate(1.0) for _ in range(97)]
    native = NativeSession(model)
    plain = [*CODE, *native.generate(CODE, max_new_tokens=150, sampling=sampling)]
    drafters: dict[Known, Callable[[], Drafter]] = {
        "lookup": PromptLookup,
        "own": lambda: BlockDrafter(python),
        "model": lambda: DraftModel(Session.load(small), python),
        "guesses": lambda: Guesses(plain, 0.9),
    }
    wanted, counts = in_python(python, steps, drafters[drafter](), sampling)
    natives: dict[Known, Any] = {
        "lookup": "lookup",
        "own": "own",
        "model": Model(open_artifact(small)),
        "guesses": Guesses(plain, 0.9),
    }
    stats, times = GenerationStats(), itertools.accumulate(itertools.cycle(steps))
    native.reset()
    tokens = list(
        native.generate(
            CODE, max_new_tokens=150, drafter=natives[drafter], sampling=sampling, clock=times.__next__, stats=stats
        )
    )
    assert tokens == wanted == plain[len(CODE) :]
    assert [stats.proposed, stats.accepted, stats.verifies, stats.rollbacks] == counts
    assert seed or drafter == "own" or stats.verifies > 0
