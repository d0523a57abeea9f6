"""Beam search over a hybrid model: python search.py OUT

Every beam is a checkpoint of the session: the bounded states, and the keys and values of its own tokens only. Going to
another beam resumes its checkpoint, and nothing is read twice.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import hybridge
from hybridge.runtime import Checkpoint
from hybridge.runtime.binding.tokenizer import Tokenizer

PROMPT = "class Stack:\n    def push(self, "
BEAMS, STEPS = 4, 24


@dataclass(frozen=True)
class Beam:
    """A text so far: its new tokens, their log probability, the state after them and what it expects next."""

    tokens: list[int]
    score: float
    state: Checkpoint
    expects: NDArray[np.float32]


def main(out: str) -> list[Beam]:
    """Find the most likely texts of ``STEPS`` tokens; returns them, the best first."""
    session = hybridge.Session.load(out)
    tokenizer = Tokenizer.from_file(f"{out}/tokenizer.json")
    logits = session.prefill(tokenizer.encode(PROMPT).ids)
    beams = [Beam([], 0.0, session.checkpoint(), log_probabilities(logits))]
    for _ in range(STEPS):
        beams = extend(session, beams)
    for beam in beams:
        print(f"{beam.score:8.3f}  {tokenizer.decode(beam.tokens)!r}")
    return beams


def extend(session: hybridge.Session, beams: list[Beam]) -> list[Beam]:
    """Return the best texts that are one token longer."""
    scores = np.stack([beam.score + beam.expects for beam in beams])
    longer = []
    for place in np.argsort(-scores, axis=None)[:BEAMS].tolist():
        number, token = divmod(place, scores.shape[1])
        beam = beams[number]
        session.resume(beam.state)
        expects = log_probabilities(session.decode(token))
        longer.append(Beam([*beam.tokens, token], float(scores[number, token]), session.checkpoint(), expects))
    return longer


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logarithms of a softmax."""
    above = logits - logits.max()
    return above - np.log(np.exp(above).sum())


if __name__ == "__main__":
    main(sys.argv[1])
