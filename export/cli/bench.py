"""``hybridge bench``"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hybridge.cache.errors import UsageError, ValidationError
from hybridge.export.cli.common import JsonOption, app, err, out, print_json, table
from hybridge.export.cli.device import bench_device
from hybridge.export.cli.embedded import code_prompts, export_embedded
from hybridge.export.cli.figures import print_figures
from hybridge.export.cli.generating import ThreadsOption
from hybridge.export.cli.profile import profile_parts
from hybridge.export.cli.speculation_figures import BenchReport, Subject, measure
from hybridge.runtime.artifacts.artifact import open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.backends.threads import set_threads
from hybridge.runtime.checks.speculation_bench import PLAIN, Outcome
from hybridge.runtime.drafters.block_drafter import BlockDrafter
from hybridge.runtime.drafters.draft_model import DraftModel
from hybridge.runtime.drafters.prompt_lookup import PromptLookup
from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.sessions.session import Session

PROMPTS = 40


@app.command()
def bench(
    artifact: Annotated[
        Path | None, typer.Argument(help="An exported artifact; left out, the embedded models are exported and measured.")
    ] = None,
    draft: Annotated[Path | None, typer.Option("--draft", help="The artifact of a draft model.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate and compare, over all drafters.")] = 100_000,
    samples: Annotated[int, typer.Option(min=300, help="Tokens to draw for each test of the sampling.")] = 200_000,
    threads: ThreadsOption = None,
    profiled: Annotated[
        bool, typer.Option("--profile", help="Instead, where a decode, a verify and a prefill spend their time.")
    ] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Instead, how fast this device is, as a row for the table of devices in docs/.")
    ] = False,
    context: Annotated[int, typer.Option(min=1, help="Tokens before them, for --profile and --device.")] = 128,
    json: JsonOption = False,
) -> None:
    """Measure what speculative decoding brings, interleaved with plain decoding, and check that it changes no text."""
    if profiled and device:
        raise UsageError("--profile and --device exclude each other; give one of them.")
    if profiled:
        if artifact is None:
            raise UsageError("--profile needs an artifact: hybridge bench OUT --profile.")
        profile_parts(artifact, threads, context, json=json)
        return
    if artifact is None and draft is not None:
        raise UsageError("--draft needs the target's artifact before it; leave both out for the embedded models.")
    with tempfile.TemporaryDirectory(prefix="hybridge-bench-") as scratch:
        if artifact is None:
            artifact, draft = Path(scratch) / "target", Path(scratch) / "draft"
            export_embedded(artifact, draft)
        if threads is not None:
            set_threads(threads)
        if device:
            bench_device(artifact, context, json=json)
            return
        subject = load(artifact, draft)
        gc.freeze()  # what is loaded stays: the collector need not look at it between two tokens
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            task = progress.add_task("Measuring", total=None)
            report = measure(subject, tokens, samples, lambda done, total: progress.update(task, completed=done, total=total))
    if json:
        print_json(report.to_dict())
    else:
        show(report)
    if not report.lossless:
        raise ValidationError("speculation changed the text; see the figures above.")


def load(artifact: Path, draft: Path | None) -> Subject:
    """Open the sessions of a target and of its drafters. Raises what opening them raises."""
    opened = open_artifact(artifact)
    if opened.tokenizer is None:
        raise UsageError(f"{artifact} has no tokenizer.json to read code with, which is what is generated; export with one.")
    session = Session.of(opened)
    ways: dict[str, Drafter | None] = {PLAIN: None, "prompt lookup": PromptLookup()}
    if draft is not None:
        ways["draft model"] = DraftModel.load(draft, opened, session)
    if opened.manifest.drafter is not None:
        kind = opened.manifest.drafter.kind
        ways["multi-token prediction" if kind == "mtp" else kind] = BlockDrafter(session)
    prompts = code_prompts(tokenizer_of(opened), PROMPTS)
    return Subject(session=session, ways=ways, prompts=prompts, draft=draft)


def show(report: BenchReport) -> None:
    """Print the tables: each way of generating, and the figures beside their targets."""
    for title, outcomes in report.outcomes.items():
        print_outcomes(title, outcomes)
    print_figures(report.figures())


def print_outcomes(title: str, outcomes: Mapping[str, Outcome]) -> None:
    """Print a row for each way of generating; draft, verify and commit are shares of its time."""
    columns = ("tokens/s", "× plain", "accepted", "tokens a block", "rollbacks", "decodes", "draft", "verify", "commit")
    grid = table(title, "", *columns)
    for name, outcome in outcomes.items():
        grid.add_row(name, *_row(outcome, outcomes[PLAIN]))
    out.print(grid)


def _row(outcome: Outcome, plain: Outcome) -> list[str]:
    total = outcome.total
    shares = [seconds / total.new_seconds for seconds in (total.draft_seconds, total.verify_seconds, total.commit_seconds)]
    return [
        f"{outcome.tokens_per_second:.0f}",
        f"{outcome.times(plain):.2f}",
        f"{total.acceptance_rate:.0%}",
        f"{total.mean_accepted_length:.1f}",
        f"{total.rollbacks}",
        f"{total.decodes}",
        *(f"{share:.0%}" for share in shares),
    ]
