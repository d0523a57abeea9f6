"""Export random models of every family, run random operations on the real programs, and write the report.

Each case is a family, one of its two configs of odd sizes and a kernel set, in a process of its own. A case's result is kept in
``.conformance/`` and used again as long as the code that made it is the same, so an interrupted run continues.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from compiler_flags import instruction_sets
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from campaigns import ROOT, campaign

RESULTS = ROOT / ".conformance"
REPORT = ROOT / "docs" / "conformance.md"
INSTRUCTION_SETS = [each.name for each in instruction_sets()]
DRAFTED_FAMILIES = ("falcon_h1", "lfm2", "qwen3_5_text")
"""Targets of Mamba-2, short convolutions and the delta rule."""
DRAFTERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("dflash", "dflash2", "dspark", "eagle3"), DRAFTED_FAMILIES),
    "gemma4_assistant": ("gemma4_text",),
    "mtp": ("bailing_hybrid", "inkling_text", "qwen3_5_text"),
    **dict.fromkeys(("dflash-few", "dflash2-few", "dspark-few"), DRAFTED_FAMILIES),
    "mtp-few": ("bailing_hybrid", "inkling_text", "qwen3_5_text"),
    **dict.fromkeys(("auto", "auto-few"), DRAFTED_FAMILIES),
}
"""Kinds of drafters, and the targets that each is tried on; assistants and multi-token prediction are of certain targets.

Those that end with ``-few`` propose some of the tokens. ``auto`` is prompt lookup and a DFlash drafter in turns.
"""
DRAFTED_KERNELS = ("hybridge", "llm")
DRAFTED_BLOCKS, DRAFTED_TOKENS = 2_000, 100_000
"""Blocks of each kind of drafter that are compared with its definition, and tokens with plain decoding, in all of its cases."""

err = Console(stderr=True)


@dataclass(frozen=True)
class Case:
    """One export: a family, which of its configs, the kernels, and for which instruction set; the best if it is empty.

    drafter: the kind of the artifact's drafter, which is then compared with its definition.
    """

    family: str
    variant: int
    kernels: str
    isa: str = ""
    drafter: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.family, f"{self.variant + 1}", self.kernels, self.isa, self.drafter)))

    @property
    def result(self) -> Path:
        return RESULTS / f"{self.name.replace(' ', '-')}.json"


def main(
    families: Annotated[list[str] | None, typer.Argument(help="Model types; all if left out.")] = None,
    operations: Annotated[int, typer.Option(min=1, help="Random operations for each case.")] = 320,
    jobs: Annotated[int, typer.Option(min=1, help="Cases at a time.")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what has a result.")] = False,
    isa: Annotated[
        list[str] | None, typer.Option(help="Instead, hybridge's kernels of this instruction set; may be given several times.")
    ] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="Instead, drafters of this kind; may be given several times.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also use results of other code than this; the report says how many.")
    ] = False,
) -> None:
    """Export every family for real and hold it against the uncached eager model; writes docs/conformance.md."""
    from zoo import VARIANTS
    from zoo.untried import UNTRIED

    if unknown := set(families or []) - {*VARIANTS, *UNTRIED}:
        err.print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(sorted({*VARIANTS, *UNTRIED}))}.")
        raise typer.Exit(2)
    if unknown := set(isa or []) - set(INSTRUCTION_SETS):
        err.print(f"unknown: {', '.join(sorted(unknown))}; this kind of processor has {', '.join(INSTRUCTION_SETS)}.")
        raise typer.Exit(2)
    if unknown := set(drafter or []) - set(DRAFTERS):
        err.print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(DRAFTERS)}.")
        raise typer.Exit(2)
    RESULTS.mkdir(exist_ok=True)
    untried = [Case(family, variant, "hybridge") for family, sizes in UNTRIED.items() for variant in range(len(sizes))]
    every = [*cases(sorted(VARIANTS)), *untried]
    mine = [case for case in every if not families or case.family in families]
    wanted = [case for case in mine if case.isa in (isa or [""]) and (not drafter or case.drafter in drafter)]
    print_of_sources = campaign.fingerprint("tests/helpers", "scripts/campaigns/conformance")
    todo = [case for case in wanted if fresh or not is_done(case, print_of_sources, keep)]
    run_all(todo, operations, jobs, print_of_sources)
    results = {case: read(case) for case in every if case.result.exists()}
    REPORT.write_text(report(results, print_of_sources), encoding="utf-8")
    failed = [case for case in wanted if not read(case).get("passed")]
    for case in failed:
        err.print(f"[red]failed[/] {case.name}: {read(case).get('error', 'no result')}", highlight=False)
    err.print(f"{len(wanted) - len(failed)} of {len(wanted)} cases passed; report in {REPORT.relative_to(ROOT)}")
    raise typer.Exit(1 if failed else 0)


def cases(families: list[str]) -> Iterator[Case]:
    """All families once before any a second time: an interrupted run has seen them all."""
    for first in product((0, 1), ("hybridge", "llm", "aten")):
        yield from (Case(family, *first) for family in families)
    for kernels, drafter in product(DRAFTED_KERNELS, DRAFTERS):
        yield from (Case(family, 0, kernels, drafter=drafter) for family in families if family in DRAFTERS[drafter])
    for isa in INSTRUCTION_SETS:
        yield from (Case(family, 0, "hybridge", isa) for family in families)


def is_done(case: Case, sources: str, keep: bool) -> bool:
    result = read(case)
    return bool(result) and (result["sources"] == sources or (keep and result["passed"]))


def read(case: Case) -> dict[str, Any]:
    """Return the kept result of a case, if any."""
    return json.loads(case.result.read_text(encoding="utf-8")) if case.result.exists() else {}  # type: ignore[no-any-return]


def run_all(todo: list[Case], operations: int, jobs: int, sources: str) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err) as progress, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("Conformance", total=len(todo))
        running = {pool.submit(run, case, operations, sources): case for case in todo}
        for done in concurrent.futures.as_completed(running):
            result = done.result()
            good = f"worst {result['worst']:.1e}" if "worst" in result else f"{result.get('blocks')} blocks"
            outcome = good if result.get("passed") else f"[red]{result.get('error')}[/]"
            progress.console.print(f"{running[done].name}: {outcome}", highlight=False)
            progress.advance(task)


def share(case: Case) -> Iterator[str]:
    """Yield how many blocks and tokens the case of a drafter has to do of those of its kind."""
    for kind in (DRAFTED_BLOCKS, DRAFTED_TOKENS):
        yield str(-(-kind // (len(DRAFTED_KERNELS) * len(DRAFTERS[case.drafter]))))


def run(case: Case, operations: int, sources: str) -> dict[str, Any]:
    """Run a case in its own process, and keep what came of it."""
    asked = [*share(case), case.drafter] if case.drafter else [str(operations)]
    command = [sys.executable, "-m", "campaigns.conformance.case", case.family, str(case.variant), case.kernels, *asked]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HYBRIDGE_ISA": case.isa}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        result = json.loads(lines[-1])
    else:
        errors = [line for line in done.stderr.strip().splitlines() if line.strip()]
        result = {"passed": False, "error": errors[-1][-300:] if errors else f"the process ended with {done.returncode}"}
    case.result.write_text(json.dumps(result | {"sources": sources}, indent=1) + "\n", encoding="utf-8")
    return result  # type: ignore[no-any-return]


def report(results: dict[Case, dict[str, Any]], sources: str) -> str:
    """Return the page: one line a family, of its worst case, and one for each kind of drafter."""
    drafted = {case: result for case, result in results.items() if case.drafter}
    results = {case: result for case, result in results.items() if not case.drafter}
    families = sorted({case.family for case in results})
    passed = sum(all(results[c].get("passed") for c in results if c.family == family) for family in families)
    lines = [
        "# Conformance",
        "",
        "Every family is exported to a real `.pte` from random weights, in two configs of odd sizes, with hybridge's kernels,",
        "with the runtime's own state operators (`llm`) and with core operators only (`aten`); random prefills, decodes,",
        "verifies, commits, snapshots, restores and resets run against the uncached eager model. Made by",
        "`scripts/trust conformance`. A line shows the worst of a family's cases; nodes and bytes are those of the first.",
        "Errors are relative to the largest logit.",
        "",
        f"{passed} of {len(families)} families passed every case; {len(results)} cases, "
        f"{sum(r.get('operations', 0) for r in results.values())} operations." + older(results, sources),
        "",
        *by_instruction_set(results),
        "| family | layers | cases | nodes of decode (a layer) | export, s | .pte, kB | state, kB | worst error | top-1 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for family in families:
        mine = {case: result for case, result in results.items() if case.family == family}
        lines.append(line(family, list(mine.values())))
    return "\n".join([*lines, *by_drafter(drafted)]) + "\n"


def by_drafter(results: dict[Case, dict[str, Any]]) -> list[str]:
    """Return the table of the drafters' kinds; nothing where none was run."""
    if not results:
        return []
    lines = [
        "",
        "## Drafters",
        "",
        "Each kind of drafter inside the artifact, with random weights of odd sizes, on targets of three kinds of state and",
        "with two kernel sets. In random programs with rollbacks, snapshots, restores and windows every proposed block must be",
        "that of the published definition, which starts from the beginning each time (transformers' own for `mtp` and",
        "`gemma4_assistant`); and the text that of plain decoding, of which the blocks' guesses are changed to right ones by",
        "chance, so that blocks are accepted to every length. A text may part from it where the two best logits are within a",
        "millionth of the largest: a *tie*, which the order of a sum decides. Those called *-few* have a draft vocabulary of",
        "48 tokens or a few more, chosen by what the model says (`hybridge`) or the first ones (`llm`). *auto* is prompt",
        "lookup, and a DFlash drafter where it finds nothing; its texts begin with their prompts again.",
        "",
        "| drafter | targets | cases | blocks as by the definition | tokens as without it | ties |",
        "|---|---|---|---|---|---|",
    ]
    for kind in DRAFTERS:
        mine = {case: result for case, result in results.items() if case.drafter == kind}
        good = [result for result in mine.values() if result.get("passed")]
        targets = ", ".join(sorted({case.family for case in mine}))
        failed = "" if len(good) == len(mine) else " **failed**"
        blocks, tokens, ties = (sum(result[name] for result in good) for name in ("blocks", "tokens", "ties"))
        lines.append(f"| {kind} | {targets} | {len(good)} of {len(mine)}{failed} | {blocks} | {tokens} | {ties} |")
    return lines


def by_instruction_set(results: dict[Case, dict[str, Any]]) -> list[str]:
    """Return how many cases passed with each that was chosen."""
    chosen = [isa for isa in INSTRUCTION_SETS if any(case.isa == isa for case in results)]
    passed = {isa: [bool(r.get("passed")) for case, r in results.items() if case.isa == isa] for isa in chosen}
    said = ", ".join(f"{isa} {sum(each)} of {len(each)}" for isa, each in passed.items())
    return [f"Of these with one instruction set of hybridge's kernels (`--isa`): {said}.", ""] if said else []


def older(results: dict[Case, dict[str, Any]], sources: str) -> str:
    count = sum(result["sources"] != sources for result in results.values())
    return f" {count} of them ran before the last change of the code." if count else ""


def line(family: str, results: list[dict[str, Any]]) -> str:
    failed = [each for each in results if not each.get("passed")]
    good = [each for each in results if each.get("passed")]
    if failed or not good:
        return f"| {family} | | {len(good)} of {len(results)} | **failed** | | | | | |"
    first = good[0]
    return (
        f"| {family} | {first['layers']} | {len(good)} of {len(results)} | {first['nodes']} ({first['nodes_per_layer']:.0f}) | "
        f"{max(r['export_seconds'] for r in good):.0f} | {first['pte_bytes'] / 1e3:.0f} | {first['state_bytes'] / 1e3:.0f} | "
        f"{max(r['worst'] for r in good):.1e} | {100 * min(r['top1'] for r in good):.1f} % |"
    )


if __name__ == "__main__":
    campaign.run("conformance", main)
