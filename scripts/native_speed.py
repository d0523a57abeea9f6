"""Tokens a second of the C++ session over those of Python's: the embedded models, the same texts and drafters, in turns.

Both generate greedily, and must give the same tokens. Reading the prompt is part of the time.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import hybridge
from hybridge.export.cli.embedded import code_prompts, export_embedded
from hybridge.runtime import PromptLookup, Session, open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.core import Model
from hybridge.runtime.core.drafters import BlockDrafter, Drafter, DraftModel
from hybridge.runtime.native import NativeDrafter, NativeSession


@dataclass
class Way:
    """One way to generate, in both sessions."""

    name: str
    session: Session
    drafter: Drafter | None
    native: NativeSession
    native_drafter: NativeDrafter | None

    def python(self, prompt: Sequence[int], count: int) -> list[int]:
        self.session.reset()
        return list(self.session.generate(prompt, max_new_tokens=count, drafter=self.drafter))

    def cpp(self, prompt: Sequence[int], count: int) -> list[int]:
        self.native.reset()
        return list(self.native.generate(prompt, max_new_tokens=count, drafter=self.native_drafter))


def main() -> int:
    """Print a line for each drafter; exit code 1 where the two sessions' tokens differ."""
    parser = argparse.ArgumentParser(prog="scripts/native-speed", description=__doc__)
    parser.add_argument("--prompts", type=int, default=8, help="texts (default: 8)")
    parser.add_argument("--tokens", type=int, default=400, help="new tokens of each (default: 400)")
    parser.add_argument("--threads", type=int, default=1, help="cores of both (default: 1)")
    options = parser.parse_args()
    if min(options.prompts, options.tokens, options.threads) < 1 or options.threads > len(os.sched_getaffinity(0)):
        parser.error("give counts of 1 or more, and no more threads than cores")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    hybridge.set_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="hybridge-native-speed-") as scratch:
        folders = [Path(scratch) / name for name in ("target", "draft", "dspark")]
        export_embedded(*folders)
        prompts = code_prompts(tokenizer_of(open_artifact(folders[0])), options.prompts)
        return report(list(ways(folders)), prompts, options.tokens)


def ways(folders: Sequence[Path]) -> Iterator[Way]:
    """Every drafter that both have."""
    session, block = Session.load(folders[0]), Session.load(folders[2])
    native, native_block = NativeSession.load(folders[0]), NativeSession.load(folders[2])
    small = Model(open_artifact(folders[1]))
    yield Way("plain", session, None, native, None)
    yield Way("prompt lookup", session, PromptLookup(), native, "lookup")
    yield Way("draft model", session, DraftModel.load(folders[1], open_artifact(folders[0]), session), native, small)
    yield Way("multi-token prediction", session, BlockDrafter(session), native, "own")
    yield Way("DSpark", block, BlockDrafter(block), native_block, "own")


def report(every: Sequence[Way], prompts: Sequence[Sequence[int]], count: int) -> int:
    """Time each way on each text, Python and C++ in turns."""
    gc.freeze()
    print("| drafter | Python, tokens/s | C++, tokens/s | C++ ÷ Python | texts that differ |\n|---|---|---|---|---|")
    differing = 0
    for way in every:
        rates: list[tuple[float, float]] = []
        different = 0
        for prompt in prompts:
            (one, python), (two, cpp) = (timed(run, prompt, count) for run in (way.python, way.cpp))
            rates.append((len(one) / python, len(two) / cpp))
            different += one != two
        ratio = median(cpp / python for python, cpp in rates)
        shown = (median(each) for each in zip(*rates, strict=True))
        print(f"| {way.name} | {' | '.join(f'{rate:.0f}' for rate in shown)} | {ratio:.2f} | {different} |", flush=True)
        differing += different
    return 1 if differing else 0


def timed(run: Callable[[Sequence[int], int], list[int]], prompt: Sequence[int], count: int) -> tuple[list[int], float]:
    """What came, and the seconds that it took."""
    began = time.perf_counter()
    new = run(prompt, count)
    return new, time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
