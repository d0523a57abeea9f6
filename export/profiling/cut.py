"""A method cut into parts: a plan for each, and a profile of what was measured."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hybridge.export.profiling.instructions import Instruction, read_instructions, with_only
from hybridge.export.profiling.parts import POSITIONS, WHOLE, bytes_moved, part_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Instructions that belong together: how many, their time, the bytes that they move, and their operators with counts."""

    name: str
    calls: int
    milliseconds: float
    bytes: int
    operators: dict[str, int]

    def share_of_limit(self, bandwidth: float) -> float:
        """Return how near it is to reading bytes at ``bandwidth`` bytes per second: 1 is the limit, above it caches help."""
        return self.bytes / bandwidth / (self.milliseconds / 1e3) if self.milliseconds > 0 else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """A method at a context length: its time as a whole, its parts, and the machine's read bandwidth in bytes per second."""

    method: str
    context: int
    milliseconds: float
    parts: list[Part]
    bandwidth: float

    @property
    def sum(self) -> float:
        """Return the milliseconds of all parts together, to be compared with the whole."""
        return sum(part.milliseconds for part in self.parts)

    @property
    def bytes(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for ``--json``."""
        shares = [{"share_of_limit": part.share_of_limit(self.bandwidth)} for part in self.parts]
        parts = [dataclasses.asdict(part) | share for part, share in zip(self.parts, shares, strict=True)]
        return dataclasses.asdict(self) | {"sum": self.sum, "parts": parts}


class Cut:
    """A method's plan cut into the parts ``names``, the whole and the bookkeeping first; ``plans`` has one for each.

    A part's plan has its instructions over the same memory and weights, and before them the bookkeeping that they need.
    """

    def __init__(self, method: str, plan: Any, vocab_size: int) -> None:
        self._name = method
        self._instructions = read_instructions(plan)
        self._parts = part_names(self._instructions, vocab_size)
        self.names = [WHOLE, POSITIONS, *(name for name in dict.fromkeys(self._parts) if name != POSITIONS)]
        self.plans = [self._plan(plan, name) for name in self.names]

    def method(self, part: str) -> str:
        """Return the name of a part's method."""
        return f"{self._name}: {part}"

    def profile(self, seconds: Mapping[str, float], context: int, bandwidth: float) -> Profile:
        """Return what was measured by name; bookkeeping is in every part's time but counted once."""
        own = {name: max(0.0, seconds[name] - seconds[POSITIONS]) for name in self.names} | {POSITIONS: seconds[POSITIONS]}
        parts = [self._part(name, own[name], context) for name in self.names if name != WHOLE]
        return Profile(
            method=self._name,
            context=context,
            milliseconds=seconds[WHOLE] * 1e3,
            parts=sorted(parts, key=lambda part: -part.milliseconds),
            bandwidth=bandwidth,
        )

    def _part(self, name: str, seconds: float, context: int) -> Part:
        members = self._members(name)
        return Part(
            name=name,
            calls=len(members),
            milliseconds=seconds * 1e3,
            bytes=sum(bytes_moved(each, context) for each in members),
            operators=dict(Counter(f"{each.name} {list(each.shape)}" for each in members)),
        )

    def _members(self, *parts: str) -> list[Instruction]:
        named = zip(self._instructions, self._parts, strict=True)
        return [each for each, name in named if name in parts or WHOLE in parts]

    def _plan(self, plan: Any, part: str) -> Any:
        return with_only(plan, [each.source for each in self._members(part, POSITIONS)], self.method(part))
