"""Guess by looking back: what followed the last time the text ended like this?"""

from __future__ import annotations

from hybridge.runtime.drafter import Context
from hybridge.runtime.sampling import Proposal


class PromptLookup:
    """Prompt-lookup decoding: n-grams over prompt and output, longest match and latest place first.

    Keeps an index that grows with the text, so that a proposal costs the same for a long context as for a short one.

    Source: Saxena, "Prompt Lookup Decoding" (2023); also ``PromptLookupCandidateGenerator`` in transformers.
    """

    needs_hidden = False

    def __init__(self, longest: int = 8, shortest: int = 3) -> None:
        """longest and shortest: tokens of a match that are tried."""
        self.sizes = range(longest, shortest - 1, -1)
        self._context: Context | None = None
        self._indexed: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def propose(self, context: Context, limit: int) -> Proposal:
        """What followed the latest earlier occurrence of the longest known ending of the text.

        Where the text ends before ``limit`` tokens, it repeats itself and so does the guess.
        """
        self._follow(context)
        text = self._indexed
        for size in self.sizes:
            place = self._after.get(tuple(text[-size:])) if size < len(text) else None
            if place is not None:
                found = text[place : place + limit]
                while len(found) < limit:
                    found += found[: limit - len(found)]
                return Proposal(found)
        return Proposal([])

    def _follow(self, context: Context) -> None:
        """Index every n-gram that is followed by something; the ending itself is not, yet."""
        tokens, known = context.tokens, len(self._indexed)
        if context is not self._context and tokens[:known] != self._indexed:
            self._indexed, self._after, known = [], {}, 0
        self._context = context
        text = self._indexed
        text.extend(tokens[known:])
        for end in range(max(known, 1), len(text)):
            for size in self.sizes:
                if size <= end:
                    self._after[tuple(text[end - size : end])] = end
