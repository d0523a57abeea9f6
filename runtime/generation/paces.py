"""The pace of each drafter, for as long as the drafter lives."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.generation.pace import Pace


class Paces:
    """Keeps what was measured with a drafter and not the drafter; by identity, because a drafter need not be hashable."""

    def __init__(self, lengths: Sequence[int]) -> None:
        """lengths: of the verify methods, ascending."""
        self._lengths = lengths
        self._known: dict[int, tuple[weakref.ref[Drafter], Pace]] = {}

    def of(self, drafter: Drafter) -> Pace:
        """The pace of ``drafter``; a new one each time where the drafter's class allows no weak references to it."""
        known = self._known.get(id(drafter))
        if known is not None and known[0]() is drafter:
            return known[1]
        pace = Pace(self._lengths)
        self._remember(drafter, pace)
        return pace

    def _remember(self, drafter: Drafter, pace: Pace) -> None:
        known, key = self._known, id(drafter)

        def forget(gone: weakref.ref[Drafter]) -> None:
            if key in known and known[key][0] is gone:
                del known[key]

        try:
            known[key] = (weakref.ref(drafter, forget), pace)
        except TypeError:
            known.pop(key, None)
