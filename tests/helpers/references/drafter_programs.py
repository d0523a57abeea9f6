"""Random programs over a session with a drafter of its own: what it proposes is held against a definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from drafter_twins import EagleTwin, Twin
from torch import Tensor

from hybridge.errors import SnapshotError
from hybridge.runtime import Context, Sampling, Session
from hybridge.runtime.binding.session import Drafted, DraftNoise

Definition = Callable[[list[int], int], list[int]]
"""So many guesses after a text, whose last token is not committed."""


def hidden_states(model: Any, tokens: Sequence[int]) -> tuple[Tensor, ...]:
    """transformers' own, [1, n, H] each, without a cache."""
    with torch.no_grad():
        found: tuple[Tensor, ...] = model(torch.tensor([[*tokens]]), use_cache=False, output_hidden_states=True).hidden_states
    return found


def draft(session: Session, context: Context, limit: int, draws: DraftNoise | None = None) -> Drafted:
    """What the drafter proposes after a context once it has read its hidden states; nothing where there are none."""
    hidden = context.pop_hidden()
    return session.draft(hidden, context.tokens[-len(hidden) :], limit=limit, draws=draws) if len(hidden) else Drafted([], [])


def drawn_token(scores: Tensor, temperature: float, noise: int) -> int:
    """Return the token drawn from softmax(scores [V] / temperature) by the noise of its position."""
    x = np.uint32(noise) + np.arange(len(scores), dtype=np.uint32) * np.uint32(0x9E3779B1)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    places = ((x ^ (x >> np.uint32(15))).astype(np.float64) + 0.5) / 2**32
    return int((scores.double().numpy() / temperature - np.log(-np.log1p(-places))).argmax())


def definition_of(twin: Twin | EagleTwin, model: Any) -> Definition:
    """The definition of a twin over ``model``."""

    def guess(text: list[int], count: int) -> list[int]:
        taps = twin.taps(hidden_states(model, text[:-1]))
        return twin.guess(taps, text[-1], count)[0] if isinstance(twin, Twin) else twin.guess(taps, text[1:], count)[0]

    return guess


def compare_blocks(session: Session, definition: Definition, seed: int, operations: int) -> int:
    """Commit, go back and propose at random; returns how many blocks were the definition's. Fails where one is not."""
    rng, compared, kept = random.Random(seed), 0, dict[int, int]()
    session.reset()
    assert session.manifest.drafter is not None
    context, blocks = Context([], Sampling()), session.manifest.drafter.blocks
    for _ in range(operations):
        if session.room < 10 or (kept and rng.random() < 0.15):
            go_back(session, context, rng, kept)
            continue
        commit(session, context, rng)
        guesses = rng.choice(blocks) - 1
        proposal = draft(session, context, guesses)
        if not proposal.tokens:  # a chain needs room for itself, and has then not read what was committed
            assert session.manifest.drafter.kind in ("mtp", "eagle3")
            assert session.room < guesses
            go_back(session, context, rng, kept)
            continue
        assert proposal.tokens == definition(context.tokens, guesses)
        compared += 1
        if session.snapshot_slots and rng.random() < 0.2:
            session.snapshot(slot := rng.randrange(session.snapshot_slots))
            kept[slot] = context.tokens[-1]
    return compared


def commit(session: Session, context: Context, rng: random.Random) -> None:
    """Commit some tokens in one of the ways that there are, and let one more be known after them.

    The one that was known is the first of them, as in a generation: a chain has read it with the state before it.
    """
    vocab = session.vocab_size - 3
    tokens = context.tokens[len(session.tokens) :] or [rng.randrange(vocab)]
    tokens += [rng.randrange(vocab) for _ in range(rng.randint(0, 8))]
    way = rng.choice(["prefill", "decode", "verify"])
    if way == "prefill":
        session.prefill(tokens)
        context.add_hidden(session.hidden)
    elif way == "decode":
        session.decode(tokens[0])
        context.add_hidden(session.hidden)
    else:
        session.verify(tokens[: session.verify_len])
        accepted = rng.randint(1, min(len(tokens), session.verify_len))
        context.add_hidden(session.hidden[:accepted])
        session.commit(accepted)
    context.tokens = [*session.tokens, rng.randrange(vocab)]


def go_back(session: Session, context: Context, rng: random.Random, kept: dict[int, int]) -> None:
    """Restore a slot and the token known after it, or begin anew where there is none, or it was overwritten."""
    context.pop_hidden()
    try:
        session.restore(slot := rng.choice([*kept]) if kept else -1)
        context.tokens = [*session.tokens, kept[slot]]
    except SnapshotError:
        session.reset()
        kept.clear()
        context.tokens = []
