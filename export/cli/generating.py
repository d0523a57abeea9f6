"""Parts that ``run`` and ``chat`` share: a model with its drafter, and the options that choose it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.common import table
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.backends.threads import set_threads
from hybridge.runtime.drafters.block_drafter import BlockDrafter
from hybridge.runtime.drafters.draft_model import DraftModel
from hybridge.runtime.drafters.prompt_lookup import PromptLookup
from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.sessions.session import Session

DraftOption = Annotated[Path | None, typer.Option("--draft", help="Draft with this model, an artifact too.")]
LookupOption = Annotated[bool, typer.Option("--prompt-lookup", help="Draft from what the text has already (the default).")]
OwnDrafterOption = Annotated[
    bool, typer.Option("--drafter", "--mtp", help="Draft with the artifact's own drafter, if it was exported with one.")
]
PlainOption = Annotated[bool, typer.Option("--no-speculation", help="Decode plainly, without a drafter.")]
NewTokensOption = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Stop after this many tokens.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="0 is greedy.")]
TopKOption = Annotated[int, typer.Option("--top-k", help="Draw from the k best tokens only; 0 for all.")]
TopPOption = Annotated[float, typer.Option("--top-p", help="Draw from the fewest tokens that have this probability together.")]
MinPOption = Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the best one's probability.")]
PenaltyOption = Annotated[float, typer.Option("--repetition-penalty", help="Above 1: tokens that were there become rarer.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Of the sampling; drawn if left out.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="To compute on; one for each fast core if left out.")
]
CacheBytesOption = Annotated[
    int,
    typer.Option("--cache-bytes", min=0, help="Memory for checkpoints of what was read, to which going back is instant."),
]
StopOption = Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be given several times.")]

PLAIN_STEPS = 16


@dataclass(frozen=True)
class Model:
    """An opened artifact, ready to generate text."""

    artifact: Artifact
    session: Session
    tokenizer: Tokenizer
    drafter: Drafter | None


def open_model(folder: Path, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None) -> Model:
    """Open an artifact and its drafter. Raises UsageError for two drafters at once, and what opening them raises."""
    return next(open_models(folder, 1, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads))


def open_models(
    folder: Path, sessions: int, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None
) -> Iterator[Model]:
    """Open an artifact once and yield so many sessions over it, each with a drafter; see ``open_model``."""
    if sum((draft is not None, lookup, own, plain)) > 1:
        raise UsageError("--draft, --prompt-lookup, --drafter and --no-speculation exclude each other; give one of them.")
    opened = open_artifact(folder)
    if opened.tokenizer is None:
        raise UsageError(f"{folder} has no tokenizer.json, so text cannot be turned into tokens; use Session from Python.")
    tokenizer = tokenizer_of(opened)
    if threads is not None:
        set_threads(threads)
    for _ in range(sessions):
        session = Session.of(opened)
        yield Model(opened, session, tokenizer, _drafter(opened, session, draft, own, plain))


def _drafter(opened: Artifact, session: Session, draft: Path | None, own: bool, plain: bool) -> Drafter | None:
    if draft is not None:
        return DraftModel.load(draft, opened, session)
    if own:
        return BlockDrafter(session)
    # An artifact that verifies one token at a time has no use for a drafter; only who asks for one is told.
    return None if plain or session.verify_len < 2 else PromptLookup()


def plain_seconds(session: Session) -> float | None:
    """Measure the seconds of a plain decode, by decoding a few more tokens; None without room for any.

    Changes the session's text, so it comes last.
    """
    stats = GenerationStats()
    steps = min(PLAIN_STEPS, session.room - 1)
    if steps < 2:
        return None
    list(session.generate([0], max_new_tokens=steps, stats=stats))
    return stats.new_seconds / (stats.new_tokens - 1) if stats.new_tokens > 1 else None


def speed_up(stats: GenerationStats, plain: float | None) -> float | None:
    """Return how many times faster than plain decoding a generation was, by the seconds of a plain token."""
    return plain * stats.tokens_per_second if plain is not None and stats.new_tokens > 1 else None


def stats_table(stats: GenerationStats, plain: float | None) -> Table:
    """Return a table of counts, times and speed of a generation."""
    grid = table("Generation", "", "")
    grid.add_row("prompt", f"{stats.prompt_tokens} tokens in {stats.prefill_seconds:.3f} s")
    grid.add_row("new", f"{stats.new_tokens} tokens, {stats.tokens_per_second:.0f} tokens/s")
    grid.add_row("draft tokens", f"{stats.proposed}, accepted {stats.accepted} ({stats.acceptance_rate:.0%})")
    grid.add_row("mean accepted length", f"{stats.mean_accepted_length:.2f} tokens a block")
    grid.add_row("calls", f"{stats.verifies} verifies, {stats.decodes} decodes, {stats.rollbacks} rollbacks")
    for phase in ("draft", "verify", "commit", "decode"):
        seconds = getattr(stats, f"{phase}_seconds")
        grid.add_row(phase, f"{seconds:.3f} s, {seconds / stats.new_seconds if stats.new_seconds else 0:.0%}")
    faster = speed_up(stats, plain)
    if faster is not None and plain is not None:
        grid.add_row(
            "speed-up over plain decoding",
            f"{faster:.2f}× ({1 / plain:.0f} tokens/s, measured on up to {PLAIN_STEPS} more tokens)",
        )
    return grid
