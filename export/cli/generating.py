"""An opened artifact with its tokenizer, a session and a drafter, and the table of what a generation took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.common import table
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.core.drafters import BlockDrafter, Drafter, DraftModel, PromptLookup
from hybridge.runtime.core.library import set_threads
from hybridge.runtime.core.model import Model as Program
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats

PLAIN_STEPS, LEAST_PLAIN_STEPS = 16, 8
"""Tokens that are decoded to measure a plain decode, and the fewest that say anything."""
LEAST_TOKENS = 32
"""New tokens of a generation from which on its speed is compared: in a shorter one a single slow call decides."""


@dataclass(frozen=True)
class Model:
    """An opened artifact, ready to generate text."""

    artifact: Artifact
    session: Session
    tokenizer: Tokenizer
    drafter: Drafter | None


def open_model(folder: Path, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None) -> Model:
    """Open an artifact and its drafter.

    Raises UsageError for two drafters at once and without a tokenizer, DraftError for one that does not fit, and ArtifactError.
    """
    return open_models(folder, 1, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)[0]


def open_models(
    folder: Path, sessions: int, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None
) -> list[Model]:
    """Open an artifact once for so many sessions, each with a drafter; see ``open_model``."""
    if sum((draft is not None, lookup, own, plain)) > 1:
        raise UsageError("--draft, --prompt-lookup, --drafter and --no-speculation exclude each other; give one of them.")
    opened = open_artifact(folder)
    if opened.tokenizer is None:
        raise UsageError(f"{folder} has no tokenizer.json, so text cannot be turned into tokens; use Session from Python.")
    tokenizer = tokenizer_of(opened)
    if threads is not None:
        set_threads(threads)
    shared = Program.open(opened)
    drafter = _drafter(opened, shared, draft, own, plain)
    # A program of onnxruntime has one state.
    programs = [shared, *(shared if opened.manifest.onnx is None else Program.open(opened) for _ in range(sessions - 1))]
    return [Model(opened, Session(program), tokenizer, drafter) for program in programs]


def _drafter(opened: Artifact, program: Program, draft: Path | None, own: bool, plain: bool) -> Drafter | None:
    if draft is not None:
        return DraftModel.load(draft, opened, program)
    if own:
        return BlockDrafter(program)
    # An artifact that verifies one token at a time has no use for a drafter; only who asks for one is told.
    return None if plain or program.verify_len < 2 else PromptLookup()


def plain_seconds(model: Model) -> float | None:
    """Measure the seconds of a plain decode, by decoding a few more tokens; None without room for any.

    Changes the session's text, so it comes last.
    """
    stats = GenerationStats()
    steps = min(PLAIN_STEPS, model.session.room - 1)
    if steps < LEAST_PLAIN_STEPS:
        return None
    for _ in model.session.generate([0], max_new_tokens=steps, stats=stats):
        pass
    return stats.new_seconds / (stats.new_tokens - 1) if stats.new_tokens > 1 else None


def speed_up(stats: GenerationStats, plain: float | None) -> float | None:
    """Return how many times faster than plain decoding a generation was, by the seconds of a plain token.

    None where that would be noise: nothing was verified, or there are too few tokens.
    """
    if plain is None or not stats.verifies or stats.new_tokens < LEAST_TOKENS:
        return None
    return plain * stats.tokens_per_second


def stats_table(stats: GenerationStats, plain: float | None) -> Table:
    """Return a table of counts, times and speed of a generation."""
    grid = table("Generation", "", "")
    for name, value in stats_rows(stats, plain):
        grid.add_row(name, value)
    return grid


def stats_rows(stats: GenerationStats, plain: float | None) -> Iterator[tuple[str, str]]:
    """Yield the names and values of that table."""
    yield "prompt", f"{stats.prompt_tokens} tokens in {stats.prefill_seconds:.3f} s"
    yield "new", f"{stats.new_tokens} tokens, {stats.tokens_per_second:.0f} tokens/s"
    yield "draft tokens", f"{stats.proposed}, accepted {stats.accepted} ({stats.acceptance_rate:.0%})"
    yield "mean accepted length", f"{stats.mean_accepted_length:.2f} tokens a block"
    yield "calls", f"{stats.verifies} verifies, {stats.decodes} decodes, {stats.rollbacks} rollbacks"
    for phase in ("draft", "verify", "commit", "decode"):
        seconds = getattr(stats, f"{phase}_seconds")
        yield phase, f"{seconds:.3f} s, {seconds / stats.new_seconds if stats.new_seconds else 0:.0%}"
    faster = speed_up(stats, plain)
    if faster is not None and plain is not None:
        tokens_per_second = f"{1 / plain:.0f} tokens/s, measured on up to {PLAIN_STEPS} more tokens"
        yield "speed-up over plain decoding", f"{faster:.2f}× ({tokens_per_second})"
