"""Fields of a drafter's config.json, each checked as it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError
from hybridge.runtime.artifacts.options import LIMITS

MOST = 1 << 24
MOST_LISTED = 1024
MOST_LAYERS = 64
"""Decoder layers of a drafter: published ones have one to eight."""
LONGEST_BLOCK = LIMITS["verify_len"][1]
"""Draft tokens and the one before them that any program verifies at once."""


class Fields:
    """The fields of the config.json in ``path`` by name. Each reader raises CheckpointError, saying what should be there."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values

    def get(self, name: str) -> Any:
        """Return a field as it is, None where it is left out."""
        return self.values.get(name)

    def count(self, name: str, default: int | None = None, *, lowest: int = 1, most: int = MOST) -> int:
        """Return a whole number of ``lowest`` to ``most``."""
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) is not int or not lowest <= value <= most:
            raise self.wrong(name, f"a whole number of {lowest} to {most}")
        return value

    def counts(self, name: str) -> list[int]:
        """Return a list of whole numbers from 0 on, at least one."""
        values = self.values.get(name)
        if not isinstance(values, list) or not 1 <= len(values) <= MOST_LISTED:
            raise self.wrong(name, "a list of whole numbers")
        if not all(type(each) is int and 0 <= each < MOST for each in values):
            raise self.wrong(name, "a list of whole numbers")
        return list(values)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)

    def truth(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of names; an empty one where it is left out."""
        values = self.values.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or len(values) > MOST_LISTED or not all(isinstance(each, str) for each in values):
            raise self.wrong(name, "a list of names")
        return list(values)

    def rope(self) -> Mapping[str, Any]:
        """Return the rotary embedding as transformers' ``rope_parameters``, from these or from the two older fields."""
        given = self.get("rope_parameters") or self.get("rope_scaling") or {}
        if not isinstance(given, Mapping):
            raise self.wrong("rope_parameters", "an object")
        return {"rope_type": given.get("type", "default"), "rope_theta": self.number("rope_theta", 10_000.0), **given}

    def wrong(self, name: str, wanted: str) -> CheckpointError:
        """Return the error that the field ``name`` is not what it should be."""
        shown = repr(self.values.get(name)) if name in self.values else "left out"
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        return CheckpointError(
            f"{self.path}: {name} is {shown}, but should be {wanted}. Take the config.json that came with it."
        )
