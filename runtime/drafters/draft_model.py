"""A smaller model as drafter: a second artifact over the same vocabulary, with a state of its own that is rolled back too."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hybridge.cache.errors import DraftError
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.tokenizer import check_draft_tokenizer
from hybridge.runtime.backends.one_thread import best
from hybridge.runtime.generation.drafter import Context
from hybridge.runtime.generation.noise import Stream
from hybridge.runtime.generation.sampling import Proposal
from hybridge.runtime.sessions.session import Session

SLOT = 0
"""The draft's snapshot slot: its state at the end of the text, before it proposes."""


class DraftModel:
    """Proposes the draft model's own continuation, one token after the other.

    Its session runs ahead of the text as it proposes; the next proposal goes back to the end of what was right by the draft's
    own snapshot, so that hybrid drafts work as well as attention-only ones. Where the text has run away from it, while nothing
    was proposed or beyond its own context, it starts anew with the text's last tokens.

    Without a seed it draws by the target's own settings and says with which probability, which accepts most. Where the
    target's sampling has a seed it proposes its best tokens: the text then depends on the seed alone (``Sampler``).
    """

    needs_hidden, is_free = False, False

    def __init__(self, session: Session, target: Session) -> None:
        """session: the draft's, which nothing else may use. Raises DraftError where it does not fit ``target``."""
        check_draft(session, target)
        self.session = session
        self.reach = min(session.prefill_chunk, session.max_seq_len // 2)
        self._context: Context | None = None
        self._start = 0  # the text's position that the draft's own text starts at
        self._kept = 0  # tokens that the slot keeps
        self._ahead: list[int] = []  # draft tokens that the session committed beyond them
        self._logits: Tensor

    @classmethod
    def load(cls, folder: str | Path, target: Artifact, session: Session) -> DraftModel:
        """Open the draft's artifact for ``session``, which runs ``target``.

        Raises ArtifactError where it is not an intact artifact, DraftError where its vocabulary is not the target's.
        """
        draft = open_artifact(folder)
        check_draft_tokenizer(draft, target)
        return cls(Session.of(draft), session)

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose ``limit`` tokens, fewer only if the draft's whole context is smaller."""
        limit = min(limit, self.session.max_seq_len - self.reach)
        logits = self._follow(context, limit)
        sampled = not context.sampler.greedy and context.sampler.sampling.seed is None
        proposed: list[int] = []
        probabilities: list[Tensor] = []
        while True:
            text = context.tokens + proposed if sampled else []
            if sampled:
                probabilities.append(context.sampler.distribution(logits, text))
            proposed.append(context.sampler.draw(logits, text, Stream.DRAFT) if sampled else best(logits[None])[0])
            if len(proposed) == limit:
                return Proposal(proposed, probabilities if sampled else None)
            logits = self.session.decode(proposed[-1])
            self._ahead.append(proposed[-1])

    def _follow(self, context: Context, limit: int) -> Tensor:
        """Bring the draft's state to the end of the text and keep it; returns the logits there."""
        tokens = context.tokens
        if context is not self._context and not self._continues(tokens):
            self._restart(0)
        self._context = context
        self._roll_back(tokens)
        missing = len(tokens) - self._position
        if missing + limit > self.session.room or (self._kept and missing > self.reach):
            self._restart(max(0, len(tokens) - self.reach))
        if len(tokens) > self._position:
            self._logits = self.session.prefill(tokens[self._position :])
        self._kept, self._ahead = self.session.snapshot(SLOT), []
        return self._logits

    @property
    def _position(self) -> int:
        """Return where in the text the draft's state is."""
        return self._start + self.session.length

    def _continues(self, tokens: list[int]) -> bool:
        """Return whether another context's text goes on from what the slot keeps."""
        return tokens[self._start : self._start + self._kept] == self.session.tokens[: self._kept]

    def _roll_back(self, tokens: list[int]) -> None:
        """Keep draft tokens that turned out right, unless the text has not come so far."""
        came = tokens[self._start + self._kept :]
        if self._ahead and (len(came) <= len(self._ahead) or came[: len(self._ahead)] != self._ahead):
            self.session.restore(SLOT)

    def _restart(self, start: int) -> None:
        self.session.reset()
        self._start, self._kept, self._ahead = start, 0, []


def check_draft(draft: Session, target: Session) -> None:
    """Raises DraftError where ``draft`` does not fit ``target``."""
    if draft.vocab_size != target.vocab_size:
        raise DraftError(
            f"the draft model has {draft.vocab_size} tokens and the target {target.vocab_size}; "
            "use a draft model that was trained with the target's tokenizer."
        )
    if not draft.snapshot_slots:
        raise DraftError("the draft model's artifact has no snapshot slots to go back by; export it with --snapshot-slots 1.")
