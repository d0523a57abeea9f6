"""Commit a long text by random operations, and compare its logits with those of a session that only prefilled it.

An error of a recurrent state that grows with the text would show here and nowhere else. The uncached model cannot read a text
of this length in a sensible time, so the reference is a fresh prefill: another method, in chunks of another length.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from campaigns import ROOT, campaign
from campaigns.bench.export_cost import fingerprint
from campaigns.soak.subjects import RECURRENCES, Subject
from hybridge.runtime.binding.session import Session

BOUNDS = {"": 1e-4, "8da4w": 5e-2}
"""The largest difference that passes, relative to the largest logit, by quantization."""
TEXTS = ("random", "one token")


@dataclass(frozen=True)
class Result:
    """The largest difference of any compared logits, relative to the largest logit, and where it was."""

    worst: float
    at: int
    compared: int
    seconds: float


def main(
    families: Annotated[list[str] | None, typer.Argument(help="Model types; one of each recurrence if left out.")] = None,
    tokens: Annotated[int, typer.Option(min=100, help="Length of the random text.")] = 100_000,
    repeated: Annotated[int, typer.Option(min=100, help="Length of the text that repeats one token.")] = 10_000,
    seed: Annotated[int, typer.Option(help="What texts and operations are made of.")] = 0,
    work: Annotated[Path, typer.Option(help="For artifacts.")] = ROOT / ".soak",
) -> None:
    """Print the differences for each family, float32 and 8da4w; exit code 1 if one is beyond its bound."""
    if unknown := set(families or []) - set(RECURRENCES):
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(RECURRENCES)}", file=sys.stderr)
        raise typer.Exit(2)
    folder, failed = work / fingerprint()[:16], False
    folder.mkdir(parents=True, exist_ok=True)
    print("| family | precision | text | tokens | compared | largest difference | after | bound | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for family, quantize, text in product(families or RECURRENCES, BOUNDS, TEXTS):
        length = tokens if text == "random" else repeated
        _, artifact = Subject(family, "hybridge", quantize, tokens + 64).prepare(folder)
        result = compare(artifact, length, text, seed)
        failed |= not result.worst <= BOUNDS[quantize]
        print(
            f"| {family} | {quantize or 'float32'} | {text} | {length:,} | {result.compared:,} | {result.worst:.1e} | "
            f"{result.at:,} | {BOUNDS[quantize]:.0e} | {result.seconds:.0f} |",
            flush=True,
        )
    raise typer.Exit(1 if failed else 0)


def compare(artifact: Path, length: int, text: str, seed: int) -> Result:
    """Grow one session by random operations and another by prefills alone; compare where both hold the same text."""
    rng, started = random.Random(seed), time.monotonic()
    grown, fresh = Session.load(artifact), Session.load(artifact)
    ids = list(tokens_of(text, length, grown.vocab_size, rng))
    worst, at, compared = 0.0, 0, 0
    for end in positions(length, grown, ids, rng):
        got, want = grown.decode(ids[end]), fresh.prefill(ids[fresh.length : end + 1])
        error = float(np.nan_to_num(np.abs(got - want), nan=np.inf).max() / np.abs(want).max())
        compared += 1
        if error > worst:
            worst, at = error, end + 1
    return Result(worst, at, compared, time.monotonic() - started)


def tokens_of(text: str, length: int, vocab_size: int, rng: random.Random) -> Iterator[int]:
    """Yield the tokens of a text."""
    chosen = rng.randrange(vocab_size)
    for _ in range(length):
        yield chosen if text == "one token" else rng.randrange(vocab_size)


def positions(length: int, session: Session, ids: list[int], rng: random.Random) -> Iterator[int]:
    """Commit ``ids`` by decodes, by blocks of which a part is rejected, and after snapshots; yield about 200 positions.

    At each the session holds the tokens before it; the caller commits the one that is there.
    """
    every = check = max(1, length // 200)
    while (done := session.length) < length - 1:
        if done >= check:
            yield done
            check += every
        elif rng.random() < 0.3 or length - done <= session.verify_len:
            session.decode(ids[done])
        else:
            accepted = rng.randint(0, session.verify_len)
            wrong = [rng.randrange(session.vocab_size) for _ in range(session.verify_len - accepted)]
            session.verify(ids[done : done + accepted] + wrong)
            session.commit(accepted)
            if rng.random() < 0.1:
                session.snapshot(0)
                session.decode(wrong[0] if wrong else ids[0])
                session.restore(0)
    yield length - 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    campaign.run("long-texts", main)
