"""Run a campaign, or many of them with one table at the end; exit code 1 if anything was wrong.

``scripts/trust`` lists the campaigns, ``scripts/trust NAME [options]`` runs one, and ``scripts/trust all``, or a group's name,
runs those of known length one after another with their output in ``.trust/``. That takes days; ``--quick`` runs a slice of each
in about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from campaigns import ROOT

err = Console(stderr=True)


@dataclass(frozen=True)
class Campaign:
    """What a campaign does, and its arguments in a run of many.

    Args:
        summary: one line for the list.
        group: the table's name for campaigns of its kind.
        long: arguments in a run of many; None leaves the campaign to be run by its name alone.
        quick: the same with ``--quick``.
        script: a file of scripts/campaigns, or ``pytest``, instead of the module of the campaign's name.
        one_thread: run with one thread for each process.
    """

    summary: str
    group: str
    long: str | None = None
    quick: str | None = None
    script: str = ""
    one_thread: bool = False

    def command(self, name: str, words: list[str]) -> list[str]:
        """Return the command line of the campaign ``name`` with the arguments ``words``."""
        if self.script == "pytest":
            return [sys.executable, "-m", "pytest", "-q", *words]
        if self.script:
            return [str(ROOT / "scripts" / "campaigns" / self.script), *words]
        return [sys.executable, "-m", f"campaigns.{name.replace('-', '_')}", *words]

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the campaign's process."""
        return os.environ | ({"OMP_NUM_THREADS": "1"} if self.one_thread else {})


MUTANTS = "--share 0.8 hybridge.cache.block tests/cache/test_block.py"
INTERRUPTS = "tests/runtime/binding/test_interrupts.py tests/runtime/kernels/test_thread_pool.py"
CAMPAIGNS: Mapping[str, Campaign] = {
    "soak": Campaign(
        "random operations on real artifacts, compared with the eager model", "attacks",
        "--minutes 1440 --operations 1000000", "--minutes 2 --turn 10",
    ),
    "fuzz": Campaign(
        "hostile input for kernels and for every file that hybridge opens", "attacks",
        "--count 2000", "--minutes 2",
    ),
    "faults": Campaign(
        "kill -9, full disks, power cuts and Ctrl-C while files are written", "attacks",
        "", "--kills 8 --exports 1 --disks 4 --lines 60", one_thread=True,
    ),
    "long-texts": Campaign(
        "100,000 tokens by random operations, compared with fresh prefills", "attacks",
        "", "lfm2 --tokens 1500 --repeated 500", one_thread=True,
    ),
    "processes": Campaign(
        "a thousand loads, a hundred sessions, threads and forks", "attacks",
        "", "--loads 40 --sessions 20 --threads 4 --children 4 --calls 200", one_thread=True,
    ),
    "chat-templates": Campaign(
        "the core's chat templates against transformers' sandbox", "models",
        "", "--count 40",
    ),
    "tokenizers": Campaign(
        "the core's tokenizer beside the tokenizers library: ids, offsets, texts, speed", "attacks",
        "", "--count 60", one_thread=True,
    ),
    "interrupts": Campaign(
        "Ctrl-C at every line, and the thread pool", "attacks",
        INTERRUPTS, f"{INTERRUPTS} -k prefill", script="pytest", one_thread=True,
    ),
    "coverage": Campaign(
        "the lines and branches that all tests reach", "tests",
        "--all --numprocesses=auto --dist=worksteal --cov", script="pytest", one_thread=True,
    ),
    "mutants": Campaign(
        "mutmut over one module: its tests must notice the changes", "tests",
        MUTANTS, MUTANTS, one_thread=True,
    ),
    "broken-features": Campaign("break a feature at a time: the default tests must notice each", "tests", one_thread=True),
    "test-pythons": Campaign("scripts/test --fast with every Python that is here", "tests", script="test-pythons"),
    "conformance": Campaign(
        "every family as a real program; writes docs/conformance.md", "models", "",
    ),
    "length-drift": Campaign("the cost of rounding by the length of the text", "models"),
    "quality": Campaign("the cost of each rounding and recipe on a trained model", "models"),
    "real-models": Campaign("published models beside llama.cpp: numbers, texts, speed", "models"),
    "state-rounding": Campaign("the cost of a bfloat16 recurrent state", "models"),
    "bench": Campaign("speed and size beside llama.cpp, ONNX, eager PyTorch and plain .pte", "speed"),
    "native-speed": Campaign("Python's generate over the C++ loop alone", "speed"),
    "picture-speed": Campaign("time and memory of a picture beside transformers and llama.cpp", "speed"),
    "serve-bench": Campaign("the server: checkpoints, grammars, turns", "speed"),
    "export-memory": Campaign("time and memory of exporting large checkpoints", "speed"),
    "instructions": Campaign("products for each instruction of the 4-bit kernels, from the assembly", "speed"),
    "clients": Campaign("every client of an artifact, compared with the same greedy tokens", "platforms"),
    "on-aarch64": Campaign("the wheel and the tests on emulated Linux for ARM64; needs root", "platforms"),
    "one-file-cli": Campaign("hybridge-cli for two processors, beside hybridge run", "platforms"),
    "cross-wheel": Campaign("build the wheel for Linux on ARM64 here", "platforms", script="cross-wheel"),
    "try-wheel": Campaign("install a wheel and run its commands, without a compiler", "platforms", script="try-wheel"),
    "licenses": Campaign("write docs/licenses.md", "documents", script="licenses"),
    "screenshots": Campaign("take the pictures of README.md and docs/pages.md", "documents"),
}  # fmt: skip
GROUPS = sorted({each.group for each in CAMPAIGNS.values() if each.long is not None})


@dataclass(frozen=True)
class Outcome:
    """The end of a campaign: its exit code, and the last line that it printed."""

    code: int
    minutes: float
    last: str


def main(campaigns: Mapping[str, Campaign] = CAMPAIGNS) -> int:
    """List the campaigns, run one, or run many."""
    words = sys.argv[1:]
    if not words:
        print(listing(campaigns))
        return 0
    if words[0] in campaigns:
        chosen = campaigns[words[0]]
        return subprocess.run(chosen.command(words[0], words[1:]), env=chosen.environment, check=False).returncode
    return many(campaigns, words)


def many(campaigns: Mapping[str, Campaign], words: list[str]) -> int:
    """Run several campaigns one after another; one that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(
        prog="scripts/trust",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=listing(campaigns),
    )
    parser.add_argument("group", choices=["all", *GROUPS], help="run the campaigns of this group that have a length below")
    parser.add_argument("--quick", action="store_true", help="a slice of each, in about ten minutes")
    parser.add_argument("--logs", type=Path, default=ROOT / ".trust", help="the folder for the campaigns' output")
    options = parser.parse_args(words)
    options.logs.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name, each in campaigns.items():
        asked = each.quick if options.quick else each.long
        if asked is not None and options.group in ("all", each.group):
            outcomes[name] = run(name, each, asked.split(), options.logs)
    print(table(outcomes, options.logs))
    return 1 if not outcomes or any(each.code for each in outcomes.values()) else 0


def listing(campaigns: Mapping[str, Campaign]) -> str:
    """Return a line for each campaign, by groups."""
    lines = []
    for group in dict.fromkeys(each.group for each in campaigns.values()):
        lines += ["", f"{group}:"]
        lines += [f"  {name:16} {each.summary}" for name, each in campaigns.items() if each.group == group]
    return "\n".join(lines[1:])


def run(name: str, campaign: Campaign, words: list[str], logs: Path) -> Outcome:
    """Run a campaign, with its output in a file."""
    start, log = time.monotonic(), logs / f"{name}.log"
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            campaign.command(name, words),
            cwd=ROOT,
            env=campaign.environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    outcome = Outcome(done.returncode, (time.monotonic() - start) / 60, lines[-1].strip() if lines else "")
    verdict = "wrong" if done.returncode else "fine"
    err.print(f"{name}: {verdict} after {outcome.minutes:.1f} minutes", highlight=False)
    return outcome


def table(outcomes: Mapping[str, Outcome], logs: Path) -> str:
    """Return a line for each campaign, and the log of each that failed."""
    head = "| campaign | result | minutes | its last line |\n|---|---|---|---|"
    lines = [
        f"| {name} | {f'WRONG, exit code {each.code}' if each.code else 'fine'} | {each.minutes:.1f} | {cell(each.last)} |"
        for name, each in outcomes.items()
    ]
    wrong = [f"{name}: see {logs / name}.log" for name, each in outcomes.items() if each.code]
    return "\n".join([head, *lines, *wrong])


def cell(line: str) -> str:
    """Return a line that fits into a cell: of a table only what its cells say."""
    return " ".join(line.strip("|").replace("|", ",").split())[:100]


if __name__ == "__main__":
    sys.exit(main())
