"""Draft by prompt lookup: propose what followed the last time the text ended like this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybridge.runtime.generation.drafter import Context
from hybridge.runtime.generation.sampling import Proposal

LONGEST_COMPARED = 64
"""Tokens that are compared to tell how long a match is; longer ones are as good as certain."""

FORGET = 0.95


@dataclass(frozen=True)
class Match:
    """An earlier place in the text that looks like its end: tokens that came next there, and how many before are the same."""

    tokens: list[int]
    length: int


class Trust:
    """The share of draft tokens after matches of about one length that were right; the last twenty or so count."""

    def __init__(self, at_first: float) -> None:
        self._right, self._judged = 2 * at_first, 2.0

    @property
    def chance(self) -> float:
        return self._right / self._judged

    def judge(self, right: bool) -> None:
        self._right, self._judged = FORGET * self._right + right, FORGET * self._judged + 1


class PromptLookup:
    """Prompt-lookup decoding: n-grams over prompt and output, longest match and latest place first.

    Keeps an index that grows with the text, so that a proposal costs the same for a long context as for a short one. Learns
    from what came how far to trust a match by its length, and gives that chance with each proposal.

    Source: Saxena, "Prompt Lookup Decoding" (2023); also ``PromptLookupCandidateGenerator`` in transformers.
    """

    needs_hidden, is_free = False, True

    def __init__(self, sizes: Sequence[int] = (8, 7, 6, 5, 4, 3)) -> None:
        """sizes: tokens of a match that are looked up, the longest first."""
        self.sizes = sizes
        self._context: Context | None = None
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._trust: dict[int, Trust] = {}
        self._proposed: tuple[int, Match] | None = None

    def propose(self, context: Context, limit: int) -> Proposal:
        """Propose what followed the best match; nothing without one."""
        match = self.find(context, limit)
        self._learn()
        self._proposed = (len(self._text), match) if match is not None else None
        return Proposal([]) if match is None else Proposal(match.tokens, chance=self._trust_in(match.length).chance)

    def find(self, context: Context, limit: int) -> Match | None:
        """Return what followed the latest earlier occurrence of the longest known ending of the text.

        Where the text ends before ``limit`` tokens, it repeats itself and so does the proposal.
        """
        self._follow(context)
        text, shortest = self._text, self.sizes[-1]
        known = self._after.get(tuple(text[-shortest:])) if shortest < len(text) else None
        if known is None:
            return None
        self._index_longer(known)
        for size in self.sizes:
            place = self._after.get(tuple(text[-size:])) if size < len(text) else None
            if place is not None:
                found = text[place : place + limit]
                while len(found) < limit:
                    found += found[: limit - len(found)]
                return Match(found, self._match_length(place, size))
        return None

    def _match_length(self, place: int, known: int) -> int:
        text, end, length = self._text, len(self._text), known
        while length < min(place, LONGEST_COMPARED) and text[place - 1 - length] == text[end - 1 - length]:
            length += 1
        return length

    def _trust_in(self, length: int) -> Trust:
        """Matches of about the same length, by powers of two, are trusted alike."""
        size = length.bit_length()
        return self._trust.setdefault(size, Trust(at_first=1 - 0.5 ** (size - 1)))

    def _learn(self) -> None:
        """Compare the last proposal with what came."""
        if self._proposed is None:
            return
        at, match = self._proposed
        for draft, token in zip(match.tokens, self._text[at:], strict=False):
            self._trust_in(match.length).judge(draft == token)
            if draft != token:
                break

    def _follow(self, context: Context) -> None:
        """Index every n-gram that is followed by something; the ending itself is not, yet.

        Most n-grams of a text that does not repeat itself never come again. So longer ones are indexed once the shortest at
        their end does, which is soon enough to find them.
        """
        tokens, known, shortest = context.tokens, len(self._text), self.sizes[-1]
        if context is not self._context and tokens[:known] != self._text:
            self._text, self._after, self._proposed, known = [], {}, None, 0
        self._context = context
        text, after = self._text, self._after
        text.extend(tokens[known:])
        for end in range(max(known, shortest), len(text)):
            ending = tuple(text[end - shortest : end])
            if (before := after.get(ending)) is not None:
                self._index_longer(before)
            after[ending] = end

    def _index_longer(self, end: int) -> None:
        """Index the n-grams before ``end`` but the shortest."""
        for size in self.sizes[:-1]:
            if size <= end:
                self._after[tuple(self._text[end - size : end])] = end
