"""Beam search over a hybrid model: python search.py OUT

Every beam is a checkpoint of the session: the bounded states, and the keys and values of its own tokens only. Going to
another beam resumes its checkpoint, and nothing is read twice.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

import hybridge
from hybridge.runtime.core.checkpoint import Checkpoint

PROMPT = "class Stack:\n    def push(self, "
BEAMS, STEPS = 4, 24


@dataclass(frozen=True)
class Beam:
    """A text so far: its new tokens, their log probability, the state behind them and what it expects next."""

    tokens: list[int]
    score: float
    state: Checkpoint
    expects: torch.Tensor


def main(out: str) -> list[Beam]:
    """Find the most likely texts of ``STEPS`` tokens; returns them, the best first."""
    session = hybridge.Session.load(out)
    tokenizer = Tokenizer.from_file(f"{out}/tokenizer.json")
    logits = session.prefill(tokenizer.encode(PROMPT).ids)
    beams = [Beam([], 0.0, session.checkpoint(), logits.log_softmax(-1))]
    for _ in range(STEPS):
        beams = extend(session, beams)
    for beam in beams:
        print(f"{beam.score:8.3f}  {tokenizer.decode(beam.tokens)!r}")
    return beams


def extend(session: hybridge.Session, beams: list[Beam]) -> list[Beam]:
    """Return the best texts that are one token longer."""
    scores = torch.stack([beam.score + beam.expects for beam in beams])
    best = scores.flatten().topk(BEAMS)
    longer = []
    for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        beam, token = beams[place // scores.shape[1]], place % scores.shape[1]
        session.resume(beam.state)
        expects = session.decode(token).log_softmax(-1)
        longer.append(Beam([*beam.tokens, token], score, session.checkpoint(), expects))
    return longer


if __name__ == "__main__":
    main(sys.argv[1])
