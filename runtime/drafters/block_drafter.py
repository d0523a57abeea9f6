"""A drafter inside the artifact: it proposes a whole block in one call from the target's hidden states.

``hybridge export --drafter`` makes one of a drafter's own checkpoint, ``--mtp`` of the multi-token-prediction weights that some
checkpoints carry.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.errors import DraftError
from hybridge.runtime.drafters.calibration import Calibration
from hybridge.runtime.generation.drafter import Context
from hybridge.runtime.generation.noise import Stream
from hybridge.runtime.generation.sampling import Proposal
from hybridge.runtime.sessions.draft_runner import Drafted, Draws
from hybridge.runtime.sessions.session import Session


class BlockDrafter:
    """Runs the ``draft`` methods of the target's own artifact, whose state rolls back with the target's.

    Without a seed, a drafter that can sample draws at the target's temperature and says from which distribution, which accepts
    most. Otherwise it proposes its best tokens, and how likely each is to be right: as likely as such tokens were so far.
    """

    needs_hidden, is_free = True, False

    def __init__(self, target: Session) -> None:
        """Raises DraftError where the target's artifact has no drafter."""
        description = target.manifest.drafter
        if description is None:
            raise DraftError(
                "this artifact has no drafter of its own; export it with --drafter FOLDER, or with --mtp a checkpoint that has "
                "mtp.* weights."
            )
        self.target, self.description = target, description
        self._calibration = Calibration()

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose up to ``limit`` tokens; none if the drafter's context is full or nothing new was committed."""
        hidden = context.pop_hidden()
        self._calibration.learn(context.tokens)
        if not len(hidden):
            return Proposal([])
        draws = self._draws(context, limit)
        # Each hidden state goes with the token after it; the text's last token is not committed and has none yet.
        drafted = self._known(self.target.draft(hidden, context.tokens[-len(hidden) :], limit=limit, draws=draws))
        if draws is not None and drafted.scores is not None and bool(drafted.scores.isfinite().all()):
            return Proposal(drafted.tokens, self._distributions(drafted, draws.temperature))
        chances = self._calibration.propose(len(context.tokens), drafted.tokens, drafted.chances)
        return Proposal(drafted.tokens, chances=chances)

    def _draws(self, context: Context, limit: int) -> Draws | None:
        """What the draft tokens are drawn by; nothing where they are the best ones."""
        sampling = context.sampler.sampling
        if not self.description.samples or context.sampler.greedy or sampling.seed is not None:
            return None
        start = len(context.tokens)
        return Draws([context.sampler.noise(start + i, Stream.DRAFT) for i in range(limit)], sampling.temperature)

    def _known(self, drafted: Drafted) -> Drafted:
        """What comes before the first token that the target does not have: a broken drafter must not break the target."""
        known = next((i for i, token in enumerate(drafted.tokens) if not 0 <= token < self.target.vocab_size), None)
        scores, candidates = drafted.scores, drafted.candidates
        if known is None:
            return drafted
        return Drafted(
            drafted.tokens[:known],
            drafted.chances[:known],
            None if scores is None else scores[:known],
            None if candidates is None else candidates[:known],
        )

    def _distributions(self, drafted: Drafted, temperature: float) -> list[Tensor]:
        """Return float64 [V] for each draft token: what it was drawn from."""
        assert drafted.scores is not None
        chances = (drafted.scores.double() / temperature).softmax(-1)
        if drafted.candidates is None:
            return list(chances)
        rows = torch.zeros(len(chances), self.target.vocab_size, dtype=torch.float64)
        return list(rows.scatter_add_(1, drafted.candidates.long().expand_as(chances), chances))
