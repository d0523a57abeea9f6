"""Guess by looking back: what followed the last time the text ended like this?"""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """Prompt-lookup decoding: n-grams over prompt and output, longest match and latest place first.

    Keeps an index that grows with the text, so that a proposal costs the same for a long context as for a short one. One
    drafter follows one text; a text that does not continue the last one starts the index anew.

    Source: Saxena, "Prompt Lookup Decoding" (2023); also ``PromptLookupCandidateGenerator`` in transformers.
    """

    def __init__(self, longest: int = 8, shortest: int = 3) -> None:
        """longest and shortest: tokens of a match that are tried."""
        self.sizes = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def propose(self, tokens: Sequence[int], limit: int) -> list[int]:
        """What followed the latest earlier occurrence of the longest known ending of ``tokens``."""
        self._follow(tokens)
        for size in self.sizes:
            place = self._after.get(tuple(self._text[-size:])) if size < len(self._text) else None
            if place is not None:
                return self._text[place : place + limit]
        return []

    def _follow(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that is followed by something; the ending itself is not, yet."""
        known = len(self._text)
        if known > len(tokens) or self._text != list(tokens[:known]):
            self._text, self._after, known = [], {}, 0
        self._text.extend(tokens[known:])
        for end in range(max(known, 1), len(self._text)):
            for size in self.sizes:
                if size <= end:
                    self._after[tuple(self._text[end - size : end])] = end
