"""Drafters: the core's own, and the protocol of those that are written in Python.

A drafter proposes draft tokens. A rejected one costs time and never changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from hybridge.arguments import checked
from hybridge.errors import DraftError
from hybridge.runtime.artifact.folder import Artifact, open_artifact
from hybridge.runtime.artifact.model_info import ModelInfo
from hybridge.runtime.binding.interface import DrafterKind
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.tokenizer import check_draft_tokenizer

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class Context:
    """A drafter's view of a generation; tokens only ever grow while it lasts.

    tokens: the session's whole text, prompt and output; the last one is not committed yet. sampling: how the target draws.
    """

    tokens: list[int]
    sampling: Sampling
    _hidden: list[NDArray[np.float32]] = field(default_factory=list)

    def add_hidden(self, hidden: NDArray[np.float32]) -> None:
        """Add tapped hidden states [n, F] of tokens that were just committed."""
        self._hidden.append(hidden.copy())

    def pop_hidden(self) -> NDArray[np.float32]:
        """Return and forget the hidden states [n, F] of the last n committed tokens, n since the last call."""
        import numpy as np

        hidden, self._hidden = self._hidden, []
        return np.concatenate(hidden) if hidden else np.empty((0, 0), np.float32)


@dataclass(frozen=True)
class Proposal:
    """Draft tokens.

    confidence is the drafter's own estimate that a token is right if those before it are, and confidences are one for each
    token. They decide how many are verified.
    """

    tokens: Sequence[int]
    confidence: float | None = None
    confidences: Sequence[float] | None = None


@runtime_checkable
class DraftTarget(Protocol):
    """The model that a drafter drafts for: a ``Session`` or its ``Model``."""

    @property
    def manifest(self) -> ModelInfo: ...
    @property
    def vocab_size(self) -> int: ...


@runtime_checkable
class Proposer(Protocol):
    """A drafter in Python. It may serve one generation after the other."""

    @property
    def needs_hidden(self) -> bool:
        """Return whether the context should collect the target's tapped hidden states."""

    @property
    def is_cheap(self) -> bool:
        """Return whether a proposal takes next to no time: the drafter is then asked every round, and gives a confidence."""

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose at most ``limit`` ≥ 1 tokens that may follow ``context.tokens``; none if it has no idea."""


class PromptLookup:
    """Prompt-lookup decoding: n-grams over prompt and output, longest match and latest place first.

    Each session learns by itself how far to trust a match by its length, and keeps that from one generation to the next.
    Source: Saxena, "Prompt Lookup Decoding" (2023).
    """

    kind: ClassVar = DrafterKind.PROMPT_LOOKUP
    needs_hidden: ClassVar = False


class OwnDrafter:
    """The drafter inside the target's artifact (``--drafter``, ``--mtp``), which proposes a block from its hidden states.

    It draws at the target's temperature by the target's noise, and says how likely each token is to be right: as likely as
    such tokens were so far.
    """

    kind: ClassVar = DrafterKind.OWN
    needs_hidden: ClassVar = True
    own_reads: ClassVar = True

    @checked
    def __init__(self, target: DraftTarget) -> None:
        """Draft for ``target``, a session or model of the artifact. Raises DraftError if it has no drafter."""
        if target.manifest.drafter is None:
            raise DraftError(
                "this artifact has no drafter of its own; export it with --drafter FOLDER, or with --mtp a checkpoint that has "
                "mtp.* weights."
            )


class DraftModel:
    """A smaller model, a second artifact over the same vocabulary, that proposes its own continuation.

    It draws as the target does, by the same settings and the same noise. Each session of a target keeps a session of its own
    over it.
    """

    kind: ClassVar = DrafterKind.MODEL
    needs_hidden: ClassVar = False

    @checked
    def __init__(self, model: Model, target: DraftTarget) -> None:
        """Draft with ``model``. Raises DraftError if it does not fit ``target``."""
        check_draft(model, target)
        self.model = model

    @classmethod
    @checked
    def load(cls, folder: str | Path, artifact: Artifact, target: DraftTarget) -> DraftModel:
        """Open the draft's artifact for ``target``, a session or model of ``artifact``.

        Raises ArtifactError if it is not an intact artifact, DraftError if its vocabulary is not the target's.
        """
        draft = open_artifact(folder)
        check_draft_tokenizer(draft, artifact)
        return cls(Model.open(draft), target)


class AutoDrafter:
    """Prompt lookup, the artifact's own drafter if it has one, and one more: each round asks the one that promises most.

    What each is worth is measured as the text comes, and where none pays, the target decodes plainly.
    """

    kind: ClassVar = DrafterKind.AUTO

    @checked
    def __init__(self, target: DraftTarget, beside: DraftModel | Proposer | None = None) -> None:
        """Draft for ``target``, a session or model of the artifact. beside: a draft model or a drafter in Python, too."""
        self.beside = beside
        self.needs_hidden = target.manifest.drafter is not None
        self.own_reads = self.needs_hidden and (beside is None or not beside.needs_hidden)


Drafter = PromptLookup | OwnDrafter | DraftModel | AutoDrafter | Proposer


def check_draft(draft: Model, target: DraftTarget) -> None:
    """Raise DraftError if ``draft`` does not fit ``target``."""
    if draft.vocab_size != target.vocab_size:
        raise DraftError(
            f"the draft model has {draft.vocab_size} tokens and the target {target.vocab_size}; "
            "use a draft model that was trained with the target's tokenizer."
        )
    if not draft.snapshot_slots:
        raise DraftError("the draft model's artifact has no snapshot slots to go back by; export it with --snapshot-slots 1.")
