"""Run random operations on a session and on the simplest model of it, lists of tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridge.errors import UsageError, ValidationError
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Logits, Session

Oracle = Callable[[Sequence[int]], Tensor]
"""A function from tokens to the float32 logits [T, V] that a model should compute."""


@dataclass(frozen=True)
class Observation:
    """Logits [V] of the artifact after a text, and the number of the operation that returned them."""

    text: tuple[int, ...]
    logits: Tensor
    operation: int


class RandomPictures:
    """Random pictures for the texts of a model. pixels: of each, by the first of its ids."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.pixels: dict[int, NDArray[np.uint8]] = {}
        self._made: list[Picture] = []

    def picture(self, rng: random.Random) -> Picture:
        """Return a picture, sometimes one of the earlier ones again."""
        if self._made and rng.random() < 0.3:
            return rng.choice(self._made)
        unit, most = self.model.picture_unit, self.model.most_picture_tokens
        described = self.model.manifest.pictures
        if described is not None and described.form.is_square:
            height = width = math.isqrt(most)
        else:
            height = rng.randint(1, rng.choice([1, math.isqrt(most), most]))
            width = rng.randint(1, most // height)
        noise = np.random.default_rng(rng.getrandbits(64))
        rgb = noise.integers(0, 256, (height * unit, width * unit, 3), dtype=np.uint8)
        made = Picture(self.model, rgb, prepared=True)
        self._made.append(made)
        self.pixels[made.ids[0]] = rgb
        return made

    def forget(self) -> None:
        """Close all pictures; texts with them can be compared no more."""
        self._made.clear()
        self.pixels.clear()


class RandomProgram:
    """Random operations on a session and on its model: a list of tokens, and one for each slot.

    They include calls to refuse: commits without a block, texts that do not fit, missing or overwritten slots, parts of
    pictures.
    """

    def __init__(self, session: Session, rng: random.Random, pictures: RandomPictures | None = None) -> None:
        """pictures: of a model that takes pictures."""
        self.session, self.rng, self.pictures = session, rng, pictures
        self.text: list[int] = []
        self.block: list[int] | None = None
        self.slots: dict[int, list[int]] = {}
        self.log: list[str] = []
        self.observations: list[Observation] = []
        session.reset()

    def play(self, operations: int) -> None:
        """Run ``operations`` operations. Raises ValidationError if the session differs from its model."""
        while len(self.log) < operations:
            self.step()

    def step(self) -> None:
        """Run one operation, often the commit of a verified block. Raises ValidationError as ``play`` does."""
        operation = self._commit if self.block and self.rng.random() < 0.8 else self._choose(self.choices())
        operation()
        if self.session.length != len(self.text):
            raise self._wrong(f"the length is {self.session.length}, expected {len(self.text)}")

    def choices(self) -> dict[Callable[[], None], float]:
        """Return the relative frequency of each operation."""
        choices = {
            self._prefill: 4, self._decode: 4, self._verify: 6, self._commit: 5, self._snapshot: 2, self._restore: 2,
            self._reset: 0.3,
        }  # fmt: skip
        if not self.session.snapshot_slots:
            choices = {each: weight for each, weight in choices.items() if each not in (self._snapshot, self._restore)}
        return choices if self.pictures is None else choices | {self._picture: 4, self._part_of_a_picture: 0.5}

    def _choose(self, choices: dict[Callable[[], None], float]) -> Callable[[], None]:
        return self.rng.choices(list(choices), list(choices.values()))[0]

    def _tokens(self, most: int) -> list[int]:
        return [self.rng.randrange(self.session.vocab_size) for _ in range(self.rng.randint(1, most))]

    def _extend(self, name: str, tokens: list[int], call: Callable[[], Logits]) -> None:
        self.log.append(f"{name} {len(tokens)}")
        if len(tokens) > self.session.room:
            self._refused(call)
            return
        logits = call()
        self._overwrite()
        self.text += tokens
        self._observe(self.text, logits)

    def _prefill(self) -> None:
        chunk = self.session.prefill_chunk
        tokens = self._tokens(self.rng.choice([1, chunk // 2 + 1, chunk, chunk + 1, 3 * chunk]))
        self._extend("prefill", tokens, lambda: self.session.prefill(tokens))

    def _picture(self) -> None:
        """Read pictures: at the first position, one after another, or among tokens."""
        assert self.pictures is not None
        text: list[int] = []
        for _ in range(self.rng.choice([1, 1, 2])):
            text += self._tokens(9) if self.rng.random() < 0.4 else []
            text += self.pictures.picture(self.rng).ids
        text += self._tokens(9) if self.rng.random() < 0.4 else []
        self._extend("picture", text, lambda: self.session.prefill(text))

    def _part_of_a_picture(self) -> None:
        assert self.pictures is not None
        ids = self.pictures.picture(self.rng).ids
        part = [*self._tokens(2), *(ids[1:] if self.rng.random() < 0.5 and len(ids) > 1 else ids[:-1]), *self._tokens(2)]
        self.log.append("picture in part")
        if len(ids) > 1:
            self._refused(lambda: self.session.prefill(part))

    def _decode(self) -> None:
        token = self._tokens(1)
        self._extend("decode", token, lambda: self.session.decode(token[0]))

    def _verify(self) -> None:
        tokens = self._tokens(self.session.verify_len)
        self.log.append(f"verify {len(tokens)}")
        if len(tokens) > self.session.room:
            self._refused(lambda: self.session.verify(tokens))
            return
        logits = self.session.verify(tokens)
        self._overwrite()
        self.block = tokens
        for i, row in enumerate(logits):
            self._observe(self.text + tokens[: i + 1], row)

    def _commit(self) -> None:
        count = self.rng.randint(0, len(self.block) + 1) if self.block else 1
        self.log.append(f"commit {count}")
        if not self.block or count > len(self.block):
            self._refused(lambda: self.session.commit(count))
            return
        self.session.commit(count)
        self.text += self.block[:count]
        self.block = None

    def _snapshot(self) -> None:
        slot = self.rng.randint(0, self.session.snapshot_slots)
        self.log.append(f"snapshot {slot}")
        if slot == self.session.snapshot_slots:
            self._refused(lambda: self.session.snapshot(slot))
            return
        self.session.snapshot(slot)
        self.block = None
        self.slots[slot] = list(self.text)

    def _restore(self) -> None:
        slot = self.rng.randint(0, self.session.snapshot_slots - 1)
        self.log.append(f"restore {slot}")
        if slot not in self.slots:
            self._refused(lambda: self.session.restore(slot))
            return
        self.session.restore(slot)
        self.block = None
        self.text = list(self.slots[slot])

    def _reset(self) -> None:
        self.log.append("reset")
        self.session.reset()
        self.text, self.block, self.slots = [], None, {}

    def _overwrite(self) -> None:
        """Forget slots beyond the current length, whose rows are overwritten by new tokens."""
        self.slots = {slot: text for slot, text in self.slots.items() if len(text) <= len(self.text)}
        self.block = None

    def _refused(self, call: Callable[[], object]) -> None:
        self.log[-1] += " (refused)"
        try:
            call()
        except UsageError:
            return
        raise self._wrong("the last operation was not refused")

    def _wrong(self, what: str) -> ValidationError:
        return ValidationError(f"{what}, after: {' · '.join(self.log)}")

    def _observe(self, text: list[int], logits: Logits) -> None:
        self.observations.append(Observation(tuple(text), torch.as_tensor(logits), len(self.log)))
