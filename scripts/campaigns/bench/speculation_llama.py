"""llama.cpp beside hybridge's drafters: what a block of its own, verified and rolled back, would bring at each acceptance.

Its loop in llama-cpp-python goes back by cropping, which a recurrent state has no way to do. llama.cpp itself can, since it has
copies of that state for the last tokens, so these steps are timed, through its C interface: a decode, a verify of 8 tokens, and
going back by 4. The speed by acceptance follows from them, for drafts that cost nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median

from campaigns.bench import prepare
from campaigns.bench.client import EngineError
from campaigns.bench.driver import ARGUMENTS, Contestant, Limits
from campaigns.bench.engine import VERIFY
from campaigns.bench.results import Measure, Row
from campaigns.bench.speculation import PROMPT, SHARES, Curve
from campaigns.bench.variants import VARIANTS

NAME = "llama.cpp, free drafts"
STEPS = 10


def expected(length: int, share: float) -> float:
    """Return how many tokens a verified block of ``length`` yields where each draft token is right with a chance ``share``."""
    return float(sum(share**place for place in range(length)))


def measure(shape: str, options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Curve]:
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
            fill(curve, contestant, options.rounds)
            say(f"  {NAME}, block {VERIFY}, {threads} threads: a round {curve.round_in_decodes:.2f} decodes")
            yield curve
    except EngineError as error:
        say(f"{shape} with llama.cpp: {error}")
    finally:
        contestant.client.close()


def fill(curve: Curve, contestant: Contestant, rounds: int) -> None:
    """Time its steps in turns, and conclude from them. Raises EngineError."""
    limits = Limits(rounds)
    contestant.ask(limits.step, do="set_threads", count=curve.threads)
    seconds: dict[Measure, list[float]] = {"decode": [], "verify": [], "commit": []}
    for _ in range(rounds + 1):
        for name, times in seconds.items():
            contestant.ask(limits.fill, do="fill", context=PROMPT)
            what = {"name": name, "arguments": ARGUMENTS[name]}
            times += contestant.ask(limits.step, do="measure", what=what, steps=STEPS)["seconds"]
    curve.decode = median(seconds["decode"])
    curve.parts = {"draft": 0.0, "verify": median(seconds["verify"]), "commit": median(seconds["commit"])}
    curve.tokens = {share: expected(VERIFY, share) for share in SHARES}
    curve.times = {share: curve.times_at(tokens) for share, tokens in curve.tokens.items()}
