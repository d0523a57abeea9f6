"""What a command needs of a model that generates text, whichever engine runs it, and the table of what a generation took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.table import Table
from tokenizers import Tokenizer

from hybridge.cache.errors import UsageError
from hybridge.export.cli.common import table
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import tokenizer_of
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.generation.stats import GenerationStats

if TYPE_CHECKING:  # which needs PyTorch
    from hybridge.runtime.generation.constraint import Constraint

PLAIN_STEPS, LEAST_PLAIN_STEPS = 16, 8
"""Tokens that are decoded to measure a plain decode, and the fewest that say anything."""
LEAST_TOKENS = 32
"""New tokens of a generation from which on its speed is compared: in a shorter one a single slow call decides."""


class TextSession(Protocol):
    """The part of a session that this needs."""

    @property
    def room(self) -> int: ...


class TextModel(Protocol):
    """An opened artifact with its tokenizer and a session, ready to generate text."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def session(self) -> TextSession: ...

    def generate(
        self, ids: Sequence[int], most: int, take: Callable[[int], bool], stats: GenerationStats, *,
        sampling: Sampling, constraint: Constraint | None = None, plain: bool = False,
    ) -> None:  # fmt: skip
        """Continue ``ids`` by at most ``most`` tokens and count it in ``stats``.

        Args:
            take: called with each new token, an end of the text included; True makes it the last.
            constraint: decides what each token may be; only the engine in Python takes one.
            plain: leave the drafter out.

        Raises what a session's ``generate`` raises, and what ``take`` does.
        """


def check_one_drafter(*, draft: Path | None, lookup: bool, own: bool, plain: bool) -> None:
    """Raises UsageError for two drafters at once."""
    if sum((draft is not None, lookup, own, plain)) > 1:
        raise UsageError("--draft, --prompt-lookup, --drafter and --no-speculation exclude each other; give one of them.")


def open_for_text(folder: Path) -> tuple[Artifact, Tokenizer]:
    """Open an artifact and its tokenizer. Raises UsageError where it has none, and ArtifactError."""
    opened = open_artifact(folder)
    if opened.tokenizer is None:
        raise UsageError(f"{folder} has no tokenizer.json, so text cannot be turned into tokens; use Session from Python.")
    return opened, tokenizer_of(opened)


def plain_seconds(model: TextModel) -> float | None:
    """Measure the seconds of a plain decode, by decoding a few more tokens; None without room for any.

    Changes the session's text, so it comes last.
    """
    stats = GenerationStats()
    steps = min(PLAIN_STEPS, model.session.room - 1)
    if steps < LEAST_PLAIN_STEPS:
        return None
    model.generate([0], steps, lambda token: False, stats, sampling=Sampling(), plain=True)
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
