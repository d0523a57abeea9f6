"""Random programs of several sessions with saves, loads and generations, compared with the eager model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hybridge.errors import HybridgeError, ValidationError
from hybridge.export.check.oracle import uncached
from hybridge.export.check.random_program import Oracle, RandomProgram
from hybridge.export.check.validate import CorruptingDrafter, compare, is_greedy, tolerance
from hybridge.export.report import ValidationReport
from hybridge.runtime import Session

CHANGE, TRIES = 1e-6, 32


def nearby(model: Any) -> Generator[Oracle]:
    """Yield the model with each number of its embedding changed by about ``CHANGE`` of it, ``TRIES`` times another way.

    Such a model is as near as another order of sums is. Experts are chosen by their scores, and if two are as good as equal,
    any rounding decides and the logits jump: those of a random kimi_linear by 27 % for a change of 3e-7.
    """
    weight, generator = model.get_input_embeddings().weight, torch.Generator().manual_seed(0)
    own = weight.data
    try:
        for _ in range(TRIES):
            weight.data = own * (1 + CHANGE * torch.randn(own.shape, generator=generator))
            yield uncached(model)
    finally:
        weight.data = own


def none_nearby() -> Generator[Oracle]:
    """Yield nothing: without experts no logit jumps."""
    yield from ()


Nearby = Callable[[], Generator[Oracle]]

OPERATIONS = 40
"""Operations of each session in a round."""


@dataclass(frozen=True)
class Saved:
    """A state file and what it should hold."""

    path: Path
    text: list[int]
    slots: dict[int, list[int]]


@dataclass
class Shelf:
    """The state files of a round; a session may load what another one has saved."""

    folder: Path
    files: list[Saved] = field(default_factory=list)


class SoakProgram(RandomProgram):
    """A random program that also saves its state, continues from any state that was saved, and generates."""

    def __init__(self, session: Session, rng: random.Random, shelf: Shelf) -> None:
        super().__init__(session, rng)
        self.shelf = shelf
        self.generated: list[tuple[list[int], list[int]]] = []
        """Texts and what was generated after each."""

    def choices(self) -> dict[Callable[[], None], float]:
        """Return the frequencies of all operations."""
        return {**super().choices(), self._save: 0.7, self._load: 0.7, self._generate: 1}

    def _save(self) -> None:
        self.log.append("save")
        path = self.shelf.folder / f"state-{len(self.shelf.files) % 8}"  # files are replaced, too
        self.session.save(path)
        self.shelf.files = [each for each in self.shelf.files if each.path != path]
        self.shelf.files.append(Saved(path, list(self.text), {slot: list(text) for slot, text in self.slots.items()}))

    def _load(self) -> None:
        if not self.shelf.files:
            self._save()
            return
        self.log.append("load")
        saved = self.rng.choice(self.shelf.files)
        self.session.load_state(saved.path)
        self.text, self.block = list(saved.text), None
        self.slots = {slot: list(text) for slot, text in saved.slots.items()}

    def _generate(self) -> None:
        prompt, new = self._tokens(4), self.rng.randint(1, 8)
        if len(prompt) + new > self.session.room:
            self._decode()
            return
        self.log.append(f"generate {len(prompt)} {new}")
        drafter = CorruptingDrafter(self.rng, self.session.vocab_size) if self.rng.random() < 0.7 else None
        block = self.session.verify_len if drafter else None
        tokens = list(self.session.generate(prompt, max_new_tokens=new, drafter=drafter, block_length=block))
        self._overwrite()
        before = self.text + prompt
        self.generated += [(before, tokens)] if tokens else []
        if not len(before) <= self.session.length <= len(before) + len(tokens):
            raise self._wrong(f"{self.session.length} tokens are committed of {len(before)} and {len(tokens)} new ones")
        self.text = (before + tokens)[: self.session.length]


@dataclass
class Round:
    """The result of one round."""

    number: int
    operations: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    worst: float = 0.0
    """The largest error, as a share of the tolerance."""
    ties: int = 0
    """Programs whose logits are those of a model nearby, as experts with equal scores were chosen another way."""
    error: str = ""


def play_round(
    sessions: Sequence[Session], oracle: Oracle, seed: int, number: int, folder: Path, nearby: Nearby = none_nearby
) -> Round:
    """Interleave programs of some of ``sessions`` and hold all that they gave against ``oracle``, or one of those ``nearby``.

    folder is for state files. The same seed and number play the same round.
    """
    rng, result = random.Random(f"{seed} {number}"), Round(number)
    shelf = Shelf(folder)
    programs = [SoakProgram(each, random.Random(rng.random()), shelf) for each in sessions[: rng.randint(1, len(sessions))]]
    try:
        while unfinished := [each for each in programs if len(each.log) < OPERATIONS]:
            rng.choice(unfinished).step()
        for program in programs:
            _judge(program, oracle, nearby, result)
    except ValidationError as error:
        result.error = str(error)
    except HybridgeError as error:  # what should have been done was refused
        logs = " | ".join(" · ".join(each.log) for each in programs)
        result.error = f"{type(error).__name__}: {error} Sessions' operations, after: {logs}"
    for program in programs:
        result.operations.update(line.split()[0] + " refused" * line.endswith("(refused)") for line in program.log)
    return result


def _judge(program: SoakProgram, oracle: Oracle, nearby: Nearby, result: Round) -> None:
    """Raise ValidationError if neither ``oracle`` nor one of those nearby gives what the program gave."""
    report, wrong = _held(program, oracle)
    if wrong:
        with closing(nearby()) as others:
            right = next((held for held, error in (_held(program, each) for each in others) if not error), None)
        if right is None:
            raise ValidationError(wrong)
        report, result.ties = right, result.ties + 1
    result.compared += report.compared + sum(len(tokens) for _, tokens in program.generated)
    result.worst = max(result.worst, report.worst_relative / report.tolerance)


def _held(program: SoakProgram, oracle: Oracle) -> tuple[ValidationReport, str]:
    """Compare a program with ``oracle``; return the report, and what is wrong, if anything is."""
    report = ValidationReport(seed=0, tolerance=tolerance(program.session.manifest.options))
    compare(report, 0, program, oracle)
    if wrong := report.first_divergence:
        return report, f"an error of {wrong.error:.1e} after: {' · '.join(wrong.operations)}"
    for text, tokens in program.generated:
        if not is_greedy(report, text, tokens, oracle):
            return report, f"{tokens} is not greedy after {text}, in: {' · '.join(program.log)}"
    return report, ""
