"""A drafter inside the artifact: it proposes a whole block in one call from the target's hidden states.

``hybridge export --mtp`` makes one of the multi-token-prediction weights that Qwen3.5-type checkpoints carry.
"""

from __future__ import annotations

from hybridge.cache.errors import DraftError
from hybridge.runtime.generation.drafter import Context
from hybridge.runtime.generation.sampling import Proposal
from hybridge.runtime.sessions.session import Session


class BlockDrafter:
    """Runs the ``draft`` method of the target's own artifact, whose state rolls back with the target's."""

    needs_hidden, is_free = True, False

    def __init__(self, target: Session) -> None:
        """Raises DraftError where the target's artifact has no drafter."""
        if not target.manifest.options.mtp:
            raise DraftError("this artifact has no drafter of its own; export a checkpoint that has mtp.* weights with --mtp.")
        self.target = target

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose as many tokens as the artifact's draft length; none if its context is full or nothing new was committed."""
        hidden = context.pop_hidden()
        if not len(hidden):
            return Proposal([])
        # Each hidden state goes with the token after it; the text's last token is not committed and has none yet.
        return Proposal(self.target.draft(hidden, context.tokens[-len(hidden) :])[:limit])
