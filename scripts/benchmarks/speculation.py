"""Speed by acceptance: real drafts, verifies and commits of real shapes, with guesses of which a chosen share is right.

Drafters with random weights guess nothing, and targets write nothing that could be guessed. So both do all of their work, then
the target's best token is made that of a text, and the guesses that text's next tokens, each spoilt with a chosen chance. How
much a drafter gains is then what its acceptance makes of its costs; published acceptances can be looked up on the curve.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

import hybridge
from benchmarks import export_cost
from benchmarks.drafter_shapes import DRAFTERS, write_drafter
from benchmarks.shapes import SHAPES, write_checkpoint
from hybridge.runtime import Context, GenerationStats, Session
from hybridge.runtime.core.drafters import BlockDrafter, Drafter, Proposal

SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Chances that a guess is right where those before it are."""
LOOKUP, ADAPTIVE = "prompt lookup", 0
"""A drafter that costs nothing; and the block length that means: as the pace chooses."""
EXPORT = ("--quantize", "8da4w", "--embedding-quantize", "4w", "--rounding", "nearest", "--max-seq-len", "2048")
PROMPT, NEW_TOKENS = 64, 64


@dataclass
class Curve:
    """A drafter with one block length on one number of threads.

    seconds: of each generation over those of plain decoding in the same round, by share; rounds: seconds of a draft, verify and
    commit, by part; tokens: that a round yielded, by share.
    """

    shape: str
    drafter: str
    block: int
    threads: int
    decode: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    times: dict[float, float] = field(default_factory=dict)
    tokens: dict[float, float] = field(default_factory=dict)

    @property
    def round_in_decodes(self) -> float:
        """Return what a round costs."""
        return sum(self.parts.values()) / self.decode

    def times_at(self, tokens: float) -> float:
        """Return how many times as fast as plain decoding rounds of so many tokens are."""
        return tokens / self.round_in_decodes


class Scripted(Session):
    """A session whose best token is always that of ``script``, a text."""

    script: Sequence[int]

    def prefill(self, tokens: Any) -> Tensor:
        """Run the prompt."""
        return self._forced(super().prefill(tokens)[None], len(self.tokens))[0]

    def decode(self, token: int) -> Tensor:
        """Run one token."""
        return self._forced(super().decode(token)[None], len(self.tokens))[0]

    def verify(self, tokens: Any) -> Tensor:
        """Run a block."""
        return self._forced(super().verify(tokens), len(self.tokens) + 1)

    def _forced(self, logits: Tensor, place: int) -> Tensor:
        """Make the best token after each row, of which the first is before ``place``, the text's."""
        for row, token in zip(logits, self.script[place:], strict=False):
            row[token] = 1e9
        return logits


class Guided:
    """Lets ``inner``, if any, propose for its time. The guesses are ``script``'s, each right with a chance ``share``."""

    def __init__(self, inner: Drafter | None, script: Sequence[int], share: float, vocab: int) -> None:
        self.inner, self.script, self.share, self.vocab = inner, script, share, vocab
        self.random = random.Random(0)
        self.needs_hidden, self.is_free = inner is not None, inner is None

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose as many tokens as ``inner`` did."""
        count = limit if self.inner is None else len(self.inner.propose(context, limit).tokens)
        start = len(context.tokens)
        return Proposal([self._guess(token) for token in self.script[start : start + count]], chance=self.share)

    def _guess(self, token: int) -> int:
        return token if self.random.random() < self.share else (token + 1) % self.vocab


def measure(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> list[Curve]:
    """Measure all drafters of one target, by the options of ``scripts/bench``."""
    folder = options.work / name
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(SHAPES[name], folder / "checkpoint")
    curves: list[Curve] = []
    for kind, shape in DRAFTERS[name].items():
        checkpoint, named = write_drafter(shape, folder / "checkpoint", folder / f"drafter-{kind}")
        made = export_cost.export(
            checkpoint, folder, [*EXPORT, *shape.options, *named], options.export_limit, keep=options.keep_artifacts
        )
        say(f"{name} with {kind}: exported in {made.seconds:.0f} s, {made.size / 1e6:.0f} MB")
        session = Scripted.load(Path(made.folder))
        assert isinstance(session, Scripted)
        ways: dict[str, Drafter | None] = {kind: BlockDrafter(session)}
        if kind == [*DRAFTERS[name]][-1]:
            ways[LOOKUP] = None
        curves += [each for way in ways.items() for each in of_drafter(session, name, *way, shape.blocks, options, say)]
    return curves


def of_drafter(
    session: Scripted,
    name: str,
    kind: str,
    drafter: Drafter | None,
    blocks: Sequence[int],
    options: argparse.Namespace,
    say: Callable[[str], None],
) -> Iterator[Curve]:
    """Measure a drafter with every block length, and with those that the pace chooses, on each number of threads."""
    rng = random.Random(1)
    session.script = [rng.randrange(session.vocab_size) for _ in range(PROMPT + NEW_TOKENS + max(blocks))]
    for threads in options.threads:
        hybridge.set_threads(threads)
        for block in (*blocks, ADAPTIVE):
            curve = Curve(name, kind, block, threads)
            fill(curve, session, drafter, options.rounds)
            say(f"  {kind}, block {block or 'by pace'}, {threads} threads: a round {curve.round_in_decodes:.2f} decodes")
            yield curve


def fill(curve: Curve, session: Scripted, inner: Drafter | None, rounds: int) -> None:
    """Generate at every acceptance, beside plain decoding each time."""
    parts: dict[str, list[float]] = {"draft": [], "verify": [], "commit": []}
    decodes: list[float] = []
    for share in SHARES:
        found, tokens = list[float](), list[float]()
        guided = Guided(inner, session.script, share, session.vocab_size)
        for _ in range(rounds):
            plain, stats = generate(session, None, None), generate(session, guided, curve.block or None)
            found.append(stats.tokens_per_second / plain.tokens_per_second)
            decodes.append(plain.decode_seconds / plain.decodes)
            if stats.verifies:
                tokens.append(stats.mean_accepted_length)
                for part, each in parts.items():
                    each.append(getattr(stats, f"{part}_seconds") / stats.verifies)
        curve.times[share], curve.tokens[share] = median(found), median(tokens) if tokens else 0.0
    curve.decode = median(decodes)
    curve.parts = {part: median(each) if each else 0.0 for part, each in parts.items()}


def generate(session: Scripted, drafter: Drafter | None, block: int | None) -> GenerationStats:
    """Continue the script's beginning; returns what it took. The text must be the script's."""
    stats, script = GenerationStats(), session.script
    session.reset()
    text = session.generate(
        script[:PROMPT], max_new_tokens=NEW_TOKENS, eos_ids=(), drafter=drafter, block_length=block, stats=stats
    )
    assert list(text) == script[PROMPT : PROMPT + NEW_TOKENS]
    return stats


def save(curves: Sequence[Curve], path: Path) -> None:
    """Keep everything that was measured; curves of other shapes stay."""
    mine = {curve.shape for curve in curves}
    kept = [each for each in json.loads(path.read_text()) if each["shape"] not in mine] if path.exists() else []
    path.write_text(json.dumps([*kept, *map(asdict, curves)], indent=1) + "\n")


def read(path: Path) -> list[Curve]:
    """Return what was kept."""
    return [
        Curve(**each | {name: {float(share): value for share, value in each[name].items()} for name in ("times", "tokens")})
        for each in json.loads(path.read_text())
    ]


def table(curves: Sequence[Curve]) -> str:
    """Return a table for each shape and number of threads."""
    keys = dict.fromkeys((curve.shape, curve.threads) for curve in curves)
    return "\n\n".join("\n".join(_lines(shape, threads, curves)) for shape, threads in keys)


def _lines(shape: str, threads: int, curves: Sequence[Curve]) -> Iterator[str]:
    yield f"**{shape}**, {threads} {'thread' if threads == 1 else 'threads'}; times as fast as plain decoding"
    yield ""
    yield (
        "| drafter | block | draft, decodes | verify | a round | "
        + " | ".join(f"{share:.2f}" for share in SHARES)
        + " | published |"
    )
    yield "|---" * (6 + len(SHARES)) + "|"
    for curve in (each for each in curves if (each.shape, each.threads) == (shape, threads)):
        costs = (curve.parts["draft"], curve.parts["verify"], sum(curve.parts.values()))
        shown = [f"{cost / curve.decode:.2f}" for cost in costs] if curve.block else ["", "", ""]
        times = [f"{curve.times[share]:.2f}" for share in SHARES]
        yield f"| {' | '.join([curve.drafter, str(curve.block or 'pace'), *shown, *times, _published(curve)])} |"


def _published(curve: Curve) -> str:
    """What rounds of the published number of tokens would bring, where a block can hold as many."""
    shape = DRAFTERS[curve.shape].get(curve.drafter)
    known = (shape.published or {}) if shape else {}
    fitting = {text: tokens for text, tokens in known.items() if tokens <= curve.block}
    return ", ".join(f"{curve.times_at(tokens):.2f} at {tokens} ({text})" for text, tokens in fitting.items())
