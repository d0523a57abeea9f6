"""A model with its drafter, over the native core: without PyTorch, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from hybridge.cache.errors import DraftError
from hybridge.export.cli.text_model import check_one_drafter, open_for_text
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import check_draft_tokenizer
from hybridge.runtime.core.generation import DrafterChoice
from hybridge.runtime.core.interface import COUNTS, SECONDS
from hybridge.runtime.core.library import set_threads
from hybridge.runtime.core.model import Model
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.generation.stats import GenerationStats

if TYPE_CHECKING:
    from hybridge.runtime.generation.constraint import Constraint


@dataclass(frozen=True)
class CoreModel:
    """An opened artifact in the native core, ready to generate text."""

    artifact: Artifact
    session: Session
    tokenizer: Tokenizer
    drafter: DrafterChoice

    def generate(
        self, ids: Sequence[int], most: int, take: Callable[[int], bool], stats: GenerationStats, *,
        sampling: Sampling, constraint: Constraint | None = None, plain: bool = False,
    ) -> None:  # fmt: skip
        """Generate as ``TextModel`` says."""
        assert constraint is None, "the core has masks, not constraints"
        drafter = None if plain else self.drafter
        done = self.session.generate(
            ids, max_new_tokens=most, drafter=drafter, sampling=sampling, on_token=lambda token: not take(token)
        )
        stats.prompt_tokens += len(ids)
        stats.new_tokens += len(done.tokens)
        for name in (*COUNTS[1:], *SECONDS):
            setattr(stats, name, getattr(stats, name) + getattr(done, name))


def open_core_model(
    folder: Path, *, draft: Path | None, lookup: bool, own: bool, plain: bool, threads: int | None
) -> CoreModel | None:
    """Open an artifact and its drafter, or return None for one that only the engine in Python runs without PyTorch's libraries.

    Raises UsageError for two drafters at once, DraftError for one that does not fit, and ArtifactError.
    """
    check_one_drafter(draft=draft, lookup=lookup, own=own, plain=plain)
    opened, tokenizer = open_for_text(folder)
    small = open_artifact(draft) if draft is not None else None
    if not all(_is_for_core(each) for each in (opened, small) if each is not None):
        return None
    if threads is not None:
        set_threads(threads)
    session = Session(Model(opened))
    if small is not None:
        check_draft_tokenizer(small, opened)
        return CoreModel(opened, session, tokenizer, Model(small))
    if own and not session.model.draft_len:
        raise DraftError("this artifact has no drafter of its own; export it with --drafter or --mtp.")
    # An artifact that verifies one token at a time has no use for a drafter; only who asks for one is told.
    lookup = not plain and session.verify_len > 1
    return CoreModel(opened, session, tokenizer, "own" if own else "lookup" if lookup else None)


def _is_for_core(artifact: Artifact) -> bool:
    return artifact.manifest.onnx is None and artifact.manifest.needs_kernels
