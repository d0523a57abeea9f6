"""Run engines side by side, each in a process of its own: all loaded, each in turn for one batch of steps."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from campaigns import ROOT
from campaigns.bench.results import Measure, Row, Run, Samples
from campaigns.bench.worker import COMMIT, PREFILL, VERIFY
from hybridge.export.profile import parts


class Bandwidth:
    """Measured again in every round, so that it sees the same noise as the engines."""

    def __init__(self) -> None:
        self._memory = parts.Bandwidth()

    def measure(self, threads: int) -> float:
        """Bytes per second, the median of three."""
        torch.set_num_threads(threads)
        return self._memory.measure(times=3)


class EngineError(Exception):
    """The engine cannot do what it was asked for, says why, or is gone."""


class Client:
    """One engine in a process of its own; only the driver decides when it runs."""

    def __init__(self, python: Path | str, engine: str, options: dict[str, Any], log: Path) -> None:
        paths = [str(ROOT / "scripts"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
        command: Sequence[Any] = [python, "-m", "campaigns.bench.worker", engine, json.dumps(options)]
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )
        self.bare = int(self._answer(300)["resident"])
        """Resident bytes before anything is loaded."""

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        """Return the answer to a request. Raises EngineError where there is none within ``limit`` seconds."""
        _pipe(self.process.stdin).write(json.dumps(request) + "\n")
        _pipe(self.process.stdin).flush()
        answer = self._answer(limit)
        if "error" in answer:
            raise EngineError(answer["error"].removeprefix("NotImplementedError: "))
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _answer(self, limit: float) -> dict[str, Any]:
        pipe = _pipe(self.process.stdout)
        if not select.select([pipe], [], [], limit)[0]:
            self.close()
            raise EngineError(f"no answer within {limit:.0f} s")
        line = pipe.readline()
        if not line:
            code = self.process.wait()
            raise EngineError(f"its process ended with {code}; see {self.log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


BATCH_SECONDS, MOST_STEPS, PAUSE = 0.5, 20, 0.05
ARGUMENTS: dict[Measure, list[int]] = {"decode": [], "verify": [VERIFY], "commit": [COMMIT], "prefill": [PREFILL]}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """rounds: how often each engine gets its turn in each cell. Seconds: to make a context, for anything else."""

    rounds: int
    fill: float = 3600.0
    step: float = 600.0


@dataclass
class Contestant:
    """An engine and the row that it fills."""

    client: Client
    row: Row


def measure_group(run: Run, contestants: list[Contestant], bandwidth: Bandwidth, limits: Limits, say: Say) -> None:
    """Fill the rows of all contestants and the run's bandwidth."""
    for threads in run.threads:
        for context in run.contexts:
            say(f"{run.shape}, {threads} threads, context {context}")
            ready = [c for c in contestants if prepare(c, context, threads, limits)]
            measures: list[Measure] = ["decode", "verify", "commit"]
            for measure in measures:
                interleave(run, ready, measure, context, threads, limits, bandwidth)
        ready = [c for c in contestants if "all" not in c.row.missing]
        interleave(run, ready, "prefill", 0, threads, limits, bandwidth)


def prepare(contestant: Contestant, context: int, threads: int, limits: Limits) -> bool:
    """Threads, context and a first decode; says why not in the row."""
    if "all" in contestant.row.missing:
        return False
    try:
        contestant.client.ask(limits.step, do="set_threads", count=threads)
        contestant.client.ask(limits.fill, do="fill", context=context)
        contestant.client.ask(limits.step, do="measure", what={"name": "decode", "arguments": []}, steps=2)
    except EngineError as error:
        contestant.row.missing[f"context {context}, {threads} threads"] = str(error)
        if contestant.client.process.poll() is not None:
            contestant.row.missing["all"] = str(error)
        return False
    return True


def interleave(
    run: Run, ready: list[Contestant], measure: Measure, context: int, threads: int, limits: Limits, bandwidth: Bandwidth
) -> None:
    """One cell of the tables for every engine that can do it."""
    cells = [(c, Samples(measure=measure, context=context, threads=threads, rounds=[])) for c in ready]
    for _ in range(limits.rounds if measure != "prefill" else max(3, limits.rounds // 2)):
        rate = bandwidth.measure(threads)
        run.bandwidth.setdefault(threads, []).append(rate)
        for contestant, samples in cells:
            if measure not in contestant.row.missing and "all" not in contestant.row.missing:
                turn(contestant, samples, limits, rate)
    for contestant, samples in cells:
        if samples.rounds:
            contestant.row.samples.append(samples)


def turn(contestant: Contestant, samples: Samples, limits: Limits, rate: float) -> None:
    """One batch of steps after one that does not count: the caches are the others' until then."""
    time.sleep(PAUSE)
    what = {"name": samples.measure, "arguments": ARGUMENTS[samples.measure]}
    try:
        if samples.measure != "prefill":
            contestant.client.ask(limits.fill, do="fill", context=samples.context)
        (first,) = contestant.client.ask(limits.step, do="measure", what=what, steps=1)["seconds"]
        steps = 1 if samples.measure == "prefill" else min(MOST_STEPS, max(3, int(BATCH_SECONDS / first)))
        samples.rounds.append(contestant.client.ask(limits.step, do="measure", what=what, steps=steps)["seconds"])
        samples.bandwidth.append(rate)
    except EngineError as error:
        contestant.row.missing[samples.measure] = str(error)
        if contestant.client.process.poll() is not None:
            contestant.row.missing["all"] = str(error)
