"""A session of the native core for checks that drive Python's sessions too: their drafters and statistics go with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.core import Model, Propose, Session
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import GREEDY
from hybridge.runtime.core.token_ids import Tokens
from hybridge.runtime.generation.drafter import Context, Drafter
from hybridge.runtime.generation.sampling import Sampler
from hybridge.runtime.generation.stats import GenerationStats

NativeDrafter = Literal["lookup", "own"] | Model
"""The core's own drafters: prompt lookup, the one inside the artifact, and a draft model."""


class NativeSession(Session):
    """A core session that generates as Python's ``Session`` does, all tokens before the first is given."""

    @classmethod
    def load(cls, artifact: str | Path | Artifact) -> NativeSession:
        """Open an artifact for one session. Raises what ``open_artifact`` and ``Model`` raise."""
        return cls(Model(artifact if isinstance(artifact, Artifact) else open_artifact(artifact)))

    def generate(  # type: ignore[override]  # an iterator, as Python's sessions give
        self,
        tokens: Tokens,
        *,
        max_new_tokens: int = 64,
        drafter: Drafter | NativeDrafter | None = None,
        block_length: int | None = None,
        sampling: Sampling = GREEDY,
        stats: GenerationStats | None = None,
        **options: Any,
    ) -> Iterator[int]:
        """Continue ``tokens``; the loop runs in the core, and asks a drafter of Python's for its tokens."""
        chosen = drafter if drafter is None or isinstance(drafter, (str, Model)) else _asked(drafter)
        done = super().generate(
            tokens, max_new_tokens=max_new_tokens, drafter=chosen, block_length=block_length, sampling=sampling, **options
        )
        if stats is not None:
            counts = vars(done).copy()
            stats.new_tokens = len(counts.pop("tokens"))
            vars(stats).update(counts)
        return iter(done.tokens)


def _asked(drafter: Drafter) -> Propose:
    """Return a function of the core's for a drafter that looks at tokens alone."""
    context = Context([], Sampler(Sampling()))

    def propose(text: Sequence[int], limit: int) -> Sequence[int]:
        context.tokens = list(text)
        return drafter.propose(context, limit).tokens

    return propose
