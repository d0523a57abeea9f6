"""Speed by acceptance: real drafts, verifies and commits of real shapes, with draft tokens of which a chosen share is right.

Drafters with random weights guess nothing, and targets write nothing that could be guessed. So both do all of their work, then
the target's best token is made that of the draft with a chosen chance, and another one otherwise. How
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

import hybridge
from campaigns.agreeing import Agreeing
from campaigns.bench import export_cost, prepare
from campaigns.bench.drafter_shapes import DRAFTERS, write_drafter
from campaigns.bench.driver import ARGUMENTS, Contestant, EngineError, Limits
from campaigns.bench.results import VARIANTS, Measure, Row
from campaigns.bench.shapes import SHAPES, write_checkpoint
from campaigns.bench.worker import VERIFY
from hybridge.runtime import Artifact, Context, Drafter, GenerationStats, Model, OwnDrafter, Proposal, Session, open_artifact

SHARES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Chances that a guess is right where those before it are."""
LOOKUP, ADAPTIVE = "prompt lookup", 0
"""A drafter that costs nothing; and the block length that means: as the pace chooses."""
EXPORT = ("--quantize", "8da4w", "--embedding-quantize", "4w", "--rounding", "nearest", "--max-seq-len", "2048")
PROMPT, NEW_TOKENS = 64, 256


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
        """Return how many times as fast as plain decoding rounds of ``tokens`` tokens are."""
        return tokens / self.round_in_decodes


class Free:
    """Proposes tokens in no time, and knows their chance."""

    needs_hidden, is_cheap = False, True

    def __init__(self, share: float) -> None:
        self.share = share

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose ``limit`` tokens."""
        return Proposal([1] * limit, confidence=self.share)


def measure(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> list[Curve]:
    """Measure all drafters of one target, by the options of ``scripts/bench``."""
    folder = options.work / name
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(SHAPES[name], folder / "checkpoint")
    curves: list[Curve] = []
    for kind, shape in DRAFTERS[name].items():
        if options.drafters is not None and kind not in options.drafters.split(","):
            continue
        checkpoint, named = write_drafter(shape, folder / "checkpoint", folder / f"drafter-{kind}")
        made = export_cost.export(
            checkpoint, folder, [*EXPORT, *shape.options, *named], options.export_limit, keep=options.keep_artifacts
        )
        say(f"{name} with {kind}: exported in {made.seconds:.0f} s, {made.size / 1e6:.0f} MB")
        artifact = open_artifact(Path(made.folder))
        ways = [kind, LOOKUP] if kind == [*DRAFTERS[name]][-1] and options.drafters is None else [kind]
        curves += [each for way in ways for each in of_drafter(artifact, name, way, shape.blocks, options, say)]
    return curves


def of_drafter(
    artifact: Artifact, name: str, kind: str, blocks: Sequence[int], options: argparse.Namespace, say: Callable[[str], None]
) -> Iterator[Curve]:
    """Measure a drafter with every block length, and with those that the pace chooses, on each number of threads."""
    for threads in options.threads:
        hybridge.set_threads(threads)
        model = Model.open(artifact)
        for block in (*blocks, ADAPTIVE):
            curve = Curve(name, kind, block, threads)
            fill(curve, model, options.rounds, options.acceptances)
            say(f"  {kind}, block {block or 'by pace'}, {threads} threads: a round {curve.round_in_decodes:.2f} decodes")
            yield curve


def fill(curve: Curve, model: Model, rounds: int, shares: Sequence[float]) -> None:
    """Generate at every acceptance, beside plain decoding each time; a session's pace learns one acceptance alone.

    Every round is another text: in one of them more draft tokens may be right than in the next.
    """
    parts: dict[str, list[float]] = {"draft": [], "verify": [], "commit": []}
    decodes: list[float] = []
    for share in shares:
        found, tokens = list[float](), list[float]()
        with Session(model) as session:
            drafter = Free(share) if curve.drafter == LOOKUP else OwnDrafter(session)
            for seed in range(rounds):
                plain, stats = (generate(session, share, each, curve.block or None, seed) for each in (None, drafter))
                found.append(stats.tokens_per_second / plain.tokens_per_second)
                decodes.append(plain.decode_seconds / plain.decodes)
                if stats.verifies:
                    tokens.append(stats.mean_accepted_length)
                    for part, each in parts.items():
                        each.append(getattr(stats, f"{part}_seconds") / stats.verifies)
        curve.times[share], curve.tokens[share] = median(found), median(tokens) if tokens else 0.0
    curve.decode = median(decodes)
    curve.parts = {part: median(each) if each else 0.0 for part, each in parts.items()}


def generate(session: Session, share: float, drafter: Drafter | None, block: int | None, seed: int) -> GenerationStats:
    """Continue a random prompt; returns what it took."""
    stats, rng = GenerationStats(), random.Random(1 + seed)
    prompt = [rng.randrange(session.vocab_size) for _ in range(PROMPT)]
    session.reset()
    text = session.generate(
        prompt,
        max_new_tokens=NEW_TOKENS,
        eos_ids=(),
        drafter=drafter,
        block_length=block,
        constraint=Agreeing(share, random.Random(seed), session.vocab_size),
        stats=stats,
    )
    assert len(list(text)) == NEW_TOKENS
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
    mine = [each for each in curves if (each.shape, each.threads) == (shape, threads)]
    shares = sorted({share for each in mine for share in each.times})
    yield f"**{shape}**, {threads} {'thread' if threads == 1 else 'threads'}; times as fast as plain decoding"
    yield ""
    yield (
        "| drafter | block | draft, decodes | verify | a round | "
        + " | ".join(f"{share:.2f}" for share in shares)
        + " | published |"
    )
    yield "|---" * (6 + len(shares)) + "|"
    for curve in mine:
        costs = (curve.parts["draft"], curve.parts["verify"], sum(curve.parts.values()))
        shown = [f"{cost / curve.decode:.2f}" for cost in costs] if curve.block else ["", "", ""]
        times = [f"{curve.times[share]:.2f}" if share in curve.times else "" for share in shares]
        yield f"| {' | '.join([curve.drafter, str(curve.block or 'pace'), *shown, *times, _published(curve)])} |"


def _published(curve: Curve) -> str:
    """Return the speed of rounds of the published number of tokens, if a block can hold as many."""
    shape = DRAFTERS[curve.shape].get(curve.drafter)
    known = (shape.published or {}) if shape else {}
    fitting = {text: tokens for text, tokens in known.items() if tokens <= curve.block}
    return ", ".join(f"{curve.times_at(tokens):.2f} at {tokens} ({text})" for text, tokens in fitting.items())


NAME = "llama.cpp, free drafts"
STEPS = 10


def expected(length: int, share: float) -> float:
    """Return how many tokens a verified block of ``length`` yields where each draft token is right with a chance ``share``."""
    return float(sum(share**place for place in range(length)))


def measure_llama(shape: str, options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Curve]:
    """Yield a curve for each number of threads; none where llama.cpp is not installed or cannot go back, which is said."""
    variant = next(each for each in VARIANTS if each.rollback)
    place = prepare.Workplace(
        options.work, options.work / shape, PROMPT, options.export_limit, options.keep_artifacts, options.isa
    )
    row = Row(variant=variant.name, group=variant.group)
    built = prepare.build(variant, place, row)
    contestant = prepare.load(built, place, row) if built else None
    if contestant is None:
        say(f"{shape} with llama.cpp: {row.failed}")
        return
    try:
        for threads in options.threads:
            curve = Curve(shape, NAME, VERIFY, threads)
            fill_llama(curve, contestant, options.rounds, options.acceptances)
            say(f"  {NAME}, block {VERIFY}, {threads} threads: a round {curve.round_in_decodes:.2f} decodes")
            yield curve
    except EngineError as error:
        say(f"{shape} with llama.cpp: {error}")
    finally:
        contestant.client.close()


def fill_llama(curve: Curve, contestant: Contestant, rounds: int, shares: Sequence[float]) -> None:
    """Time its steps in turns, and conclude from them. Raises EngineError."""
    limits = Limits(rounds)
    contestant.client.ask(limits.step, do="set_threads", count=curve.threads)
    seconds: dict[Measure, list[float]] = {"decode": [], "verify": [], "commit": []}
    for _ in range(rounds + 1):
        for name, times in seconds.items():
            contestant.client.ask(limits.fill, do="fill", context=PROMPT)
            what = {"name": name, "arguments": ARGUMENTS[name]}
            times += contestant.client.ask(limits.step, do="measure", what=what, steps=STEPS)["seconds"]
    curve.decode = median(seconds["decode"])
    curve.parts = {"draft": 0.0, "verify": median(seconds["verify"]), "commit": median(seconds["commit"])}
    curve.tokens = {share: expected(VERIFY, share) for share in shares}
    curve.times = {share: curve.times_at(tokens) for share, tokens in curve.tokens.items()}
