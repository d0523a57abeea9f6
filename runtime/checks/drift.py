"""Measure how far a quantized model is from the original: not whether an artifact is right, but what rounding costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from hybridge.runtime.checks.checked_session import Oracle
from hybridge.runtime.core.session import Session

TEXTS, TOKENS = 8, 64


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Over ``positions`` of sampled texts: mean KL divergence in nats, original to rounded, and equal best tokens."""

    positions: int
    kl: float
    top1_agreement: float


def measure_drift(session: Session, original: Oracle, rounded: Oracle, *, seed: int) -> Drift:
    """Compare the two models on texts that the artifact samples at temperature 1, each from a token of its own."""
    kl, agree, positions = 0.0, 0, 0
    for i in range(TEXTS):
        session.reset()
        start = [(seed + 7919 * i) % session.vocab_size]
        count = max(1, min(TOKENS, session.max_seq_len - 1))
        text = start + list(session.generate(start, max_new_tokens=count, temperature=1.0, seed=seed + i))
        want, got = original(text).log_softmax(-1), rounded(text).log_softmax(-1)
        kl += float(F.kl_div(got, want, reduction="sum", log_target=True))
        agree += int((want.argmax(-1) == got.argmax(-1)).sum())
        positions += len(text)
    return Drift(positions=positions, kl=kl / positions, top1_agreement=agree / positions)
