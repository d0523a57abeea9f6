"""Tokens a second of generations in Python over those of the C++ loop alone: the same texts and drafters, in turns.

Python asks for a round at a time and yields each token; the C++ loop runs from the prompt to the end in one call. Both generate
greedily and must give the same tokens. Reading the prompt is part of the time.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import byref, c_int64
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import hybridge
from campaigns import campaign
from hybridge.export.cli.embedded import code_prompts, export_embedded
from hybridge.runtime import BlockDrafter, DraftModel, Model, PromptLookup, Session, open_artifact
from hybridge.runtime.binding.interface import DrafterKind, GeneratedStruct, GenerationStruct, OnToken
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.tokenizer import Tokenizer

PYTHON, CPP = "Python", "C++"

Timed = tuple[list[int], float]
"""New tokens, and the seconds that they took. The C++ loop keeps the last token to itself."""
Engine = Callable[[Sequence[int], int], Timed]
"""A prompt and how many tokens are to follow."""


@dataclass(frozen=True)
class Way:
    """One way to generate, by each engine."""

    name: str
    engines: Mapping[str, Engine]


def main() -> int:
    """Print a line for each drafter; exit code 1 where tokens differ."""
    parser = campaign.parser("native-speed", __doc__)
    parser.add_argument("--prompts", type=int, default=8, help="texts (default: 8)")
    parser.add_argument("--tokens", type=int, default=400, help="new tokens of each (default: 400)")
    parser.add_argument("--threads", type=int, default=1, help="cores of each engine (default: 1)")
    options = parser.parse_args()
    if min(options.prompts, options.tokens, options.threads) < 1 or options.threads > len(os.sched_getaffinity(0)):
        parser.error("give counts of 1 or more, and no more threads than cores")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    hybridge.set_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="hybridge-native-speed-") as scratch:
        folders = [Path(scratch) / name for name in ("target", "draft", "dspark")]
        export_embedded(*folders)
        prompts = code_prompts(Tokenizer.of(open_artifact(folders[0])), options.prompts)
        return report(list(ways(folders)), prompts, options.tokens)


def ways(folders: Sequence[Path]) -> Iterator[Way]:
    """Every drafter. The two engines have sessions of their own, which measure for themselves how long blocks pay."""
    target, small, dspark = (Model.open(open_artifact(folder)) for folder in folders)
    drafters = {
        "plain": (target, None),
        "prompt lookup": (target, PromptLookup()),
        "draft model": (target, DraftModel(small, target)),
        "multi-token prediction": (target, BlockDrafter(target)),
        "DSpark": (dspark, BlockDrafter(dspark)),
    }
    for name, (model, drafter) in drafters.items():
        yield Way(name, {PYTHON: in_python(Session(model), drafter), CPP: in_cpp(Session(model), drafter)})


Core = PromptLookup | BlockDrafter | DraftModel | None


def in_python(session: Session, drafter: Core) -> Engine:
    """Return what generates as a Python program does."""

    def generate(prompt: Sequence[int], count: int) -> Timed:
        session.reset()
        began = time.perf_counter()
        tokens = list(session.generate(prompt, max_new_tokens=count, drafter=drafter))
        return tokens, time.perf_counter() - began

    return generate


def in_cpp(session: Session, drafter: Core) -> Engine:
    """Return what calls ``hybridge_generate``."""
    kind = DrafterKind.NONE if drafter is None else drafter.kind
    draft = drafter.model.handle if isinstance(drafter, DraftModel) else 0

    def generate(prompt: Sequence[int], count: int) -> Timed:
        session.reset()
        options, done = GenerationStruct(max_new_tokens=count, drafter=kind, draft=draft), GeneratedStruct()
        ids = (c_int64 * len(prompt))(*prompt)
        began = time.perf_counter()
        run("generate", session.handle, ids, len(ids), byref(options), OnToken(), None, byref(done))
        return session.tokens[len(prompt) :], time.perf_counter() - began

    return generate


def report(every: Sequence[Way], prompts: Sequence[Sequence[int]], count: int) -> int:
    """Time each way on each text, the engines in turns."""
    gc.freeze()
    names = list(every[0].engines)
    columns = [*(f"{name}, tokens/s" for name in names), *(f"{PYTHON} ÷ {name}" for name in names if name != PYTHON)]
    print(f"| drafter | {' | '.join(columns)} | texts that differ |\n{'|---' * (len(columns) + 2)}|")
    differing = 0
    for way in every:
        rates: list[dict[str, float]] = []
        different = 0
        for prompt in prompts:
            found = {name: engine(prompt, count) for name, engine in way.engines.items()}
            new = found[PYTHON][0]
            rates.append({name: len(new) / seconds for name, (_, seconds) in found.items()})
            different += any(tokens not in (new, new[:-1] if name == CPP else new) for name, (tokens, _) in found.items())
        shown = [f"{median(rate[name] for rate in rates):.0f}" for name in names]
        shown += [f"{median(rate[PYTHON] / rate[name] for rate in rates):.2f}" for name in names if name != PYTHON]
        print(f"| {way.name} | {' | '.join(shown)} | {different} |", flush=True)
        differing += different
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
