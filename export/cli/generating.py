"""A model with its drafter, over the engine in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from hybridge.export.cli.text_model import check_one_drafter, open_for_text
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.backends.threads import set_threads
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.drafters.block_drafter import BlockDrafter
from hybridge.runtime.drafters.draft_model import DraftModel
from hybridge.runtime.drafters.prompt_lookup import PromptLookup
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.sessions.session import Session


@dataclass(frozen=True)
class Model:
    """An opened artifact, ready to generate text."""

    artifact: Artifact
    session: Session
    tokenizer: Tokenizer
    drafter: Drafter | None

    def generate(
        self, ids: Sequence[int], most: int, take: Callable[[int], bool], stats: GenerationStats, *,
        sampling: Sampling, constraint: Constraint | None = None, plain: bool = False,
    ) -> None:  # fmt: skip
        """Generate as ``TextModel`` says."""
        drafter = None if plain else self.drafter
        tokens = self.session.generate(
            ids, max_new_tokens=most, drafter=drafter, sampling=sampling, constraint=constraint, stats=stats
        )
        with closing(tokens):  # type: ignore[type-var]  # a generator
            for token in tokens:
                if take(token):
                    return


def open_model(folder: Path, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None) -> Model:
    """Open an artifact and its drafter. Raises UsageError for two drafters at once, and what opening them raises."""
    return next(open_models(folder, 1, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads))


def open_models(
    folder: Path, sessions: int, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None
) -> Iterator[Model]:
    """Open an artifact once and yield so many sessions over it, each with a drafter; see ``open_model``."""
    check_one_drafter(draft=draft, lookup=lookup, own=own, plain=plain)
    opened, tokenizer = open_for_text(folder)
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
