"""A machine whose costs are known: real generations over a text that is given, on a clock that the calls advance."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybridge.runtime import AutoDrafter, Context, Drafter, ExportOptions, PromptLookup, Proposal, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import Numbers, TextProgram

VOCABULARY, PROMPT = 7, 16


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds by method, ``decode``, ``commit``, and ``verify_S`` and ``draft_S`` for each block length S.

    cold: times as many the first time that a method runs. slow: times as many for some while now and then, half of the time,
    as on a machine that others use too.
    """

    costs: Mapping[str, float]
    cold: float = 1.0
    slow: float = 1.0

    @property
    def lengths(self) -> list[int]:
        """Return the block lengths."""
        return sorted(int(name.split("_")[1]) for name in self.costs if name.startswith("verify"))


class Clock:
    """Seconds that pass only when a call takes them."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine, self.random, self.phases = machine, random.Random(seed), random.Random(500 + seed)
        self.now, self.factor, self.until = 0.0, 1.0, 0.0
        self._seen = set[str]()

    def __call__(self) -> float:
        return self.now

    def run(self, name: str) -> None:
        """Let the time of a method pass; it is now and then a little longer."""
        while self.now >= self.until:
            self.factor = self.machine.slow if self.phases.random() < 0.5 else 1.0
            self.until += self.phases.uniform(5.0, 50.0) * self.machine.costs["decode"]
        cold = 1.0 if name in self._seen else self.machine.cold
        self._seen.add(name)
        self.now += self.machine.costs.get(name, 0.0) * cold * self.factor * (1 + 0.05 * self.random.expovariate(1.0))


class TimedMethods(TextProgram):
    """Methods over a text that take their time, and whose best token is always that of ``script``."""

    def __init__(self, clock: Clock, script: Sequence[int]) -> None:
        super().__init__(self.logits_after)
        self.clock, self.script = clock, script

    def logits_after(self, text: tuple[int, ...]) -> NDArray[np.float32]:
        return np.eye(VOCABULARY, dtype=np.float32)[self.script[len(text)]]

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        self.clock.run(f"verify_{inputs[0].shape[-1]}" if name.startswith("verify") else name)
        return super().call(name, *inputs)


class SimulatedDrafter:
    """Guesses the script's next tokens, each right with a chance ``share``, as draft methods of lengths ``blocks`` do.

    sure: it says how likely each guess is to be right, more or less; otherwise nothing.
    """

    needs_hidden = is_cheap = False
    reading = 0.0
    """Seconds of the first proposal of a text, which reads its prompt; 0 to measure the next one."""

    def __init__(
        self, clock: Clock, script: Sequence[int], blocks: Sequence[int], share: float, *, sure: bool, seed: int
    ) -> None:
        self.clock, self.script, self.blocks, self.share, self.sure = clock, script, blocks, share, sure
        self.random = random.Random(1000 + seed)

    def propose(self, context: Context, limit: int) -> Proposal:
        block = next((each for each in self.blocks if each > limit), self.blocks[-1])
        start, began = len(context.tokens), self.clock.now
        self.clock.run(f"draft_{block}")
        self.reading = self.reading or self.clock.now - began
        right = [self.random.random() < self.share for _ in range(min(limit, block - 1))]
        tokens = [token if good else (token + 1) % VOCABULARY for token, good in zip(self.script[start:], right, strict=False)]
        if not self.sure:
            return Proposal(tokens)
        spread = min(self.share, 1 - self.share)
        return Proposal(tokens, confidences=[self.share + spread * (0.5 if good else -0.5) for good in right[: len(tokens)]])


def times_plain(
    machine: Machine, share: float, *, sure: bool, texts: int, length: int = 64, seeds: int = 8, way: str = "alone",
    period: int | None = None,
) -> list[float]:  # fmt: skip
    """Speed over plain decoding's of the first text, the second and so on, each of ``length`` new tokens, by one controller.

    way: the simulated drafter ``alone``, an ``auto`` drafter with it, or prompt ``lookup``. period: tokens after which the
    second half of a text repeats itself; a random text otherwise.
    """
    seconds = [_seconds(machine, share, sure, texts, length, seed, way, period) for seed in range(seeds)]
    plain = [_seconds(machine, share, sure, texts, length, seed, "plain", period) for seed in range(seeds)]
    return [sum(slow) / sum(fast) for slow, fast in zip(zip(*plain, strict=True), zip(*seconds, strict=True), strict=True)]


def _script(rng: random.Random, length: int, period: int | None) -> list[int]:
    script = [rng.randrange(VOCABULARY) for _ in range(length)]
    if period is not None:
        for i in range(length // 2, length):
            script[i] = script[i - period]
    return script


def _seconds(
    machine: Machine, share: float, sure: bool, texts: int, length: int, seed: int, way: str, period: int | None
) -> list[float]:
    """Seconds of each text's new tokens, with guesses that are right with a chance ``share``, or without a drafter."""
    rng, lengths = random.Random(seed), machine.lengths
    script = _script(rng, PROMPT + length + lengths[-1], period)
    options = ExportOptions(
        max_seq_len=len(script), prefill_chunk=PROMPT, verify_len=lengths[-1], shorter_verify_lens=tuple(lengths[:-1])
    )
    clock, found = Clock(machine, seed), []
    session = Session.over(TimedMethods(clock, script), ProgramInfo(vocab_size=VOCABULARY, options=options))
    simulated = SimulatedDrafter(clock, script, lengths, share, sure=sure, seed=seed)
    drafter: Drafter | None
    match way:
        case "plain":
            drafter = None
        case "lookup":
            drafter = PromptLookup()
        case "auto":
            drafter = AutoDrafter(session, simulated)
        case _:
            drafter = simulated
    for _ in range(texts):
        session.reset()
        stream = session.generate(script[:PROMPT], max_new_tokens=length, drafter=drafter, clock=clock)
        new, began = [next(stream)], clock.now
        simulated.reading = 0.0
        new += stream
        assert new == script[PROMPT : PROMPT + length]
        found.append(clock.now - began - simulated.reading)  # a prompt pays for one token
    return found
