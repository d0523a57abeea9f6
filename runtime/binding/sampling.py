"""Options of sampling, and token ids as callers give them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from ctypes import Array, c_int64
from dataclasses import dataclass
from numbers import Real
from typing import Any, SupportsIndex

from hybridge.errors import TokenError, UsageError

SMALLEST, LARGEST = 1e-6, 1e6
"""Least and largest temperature above 0, and penalty."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 leave the distribution as it is.

    Applied in transformers' order: penalty, temperature, top-k, top-p, min-p. Without a seed one is drawn.
    Raises UsageError for values that make no distribution.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            _check(isinstance(value, Real) and not isinstance(value, bool), f"{name} is {value!r}, but must be a number.")
        # Beyond these, what a logit is divided by makes it infinite, or all tokens alike.
        _check(
            self.temperature == 0 or SMALLEST <= self.temperature <= LARGEST,
            f"temperature is {self.temperature}, but must be 0 (greedy) or lie between {SMALLEST} and {LARGEST:.0f}.",
        )
        _check(type(self.top_k) is int and self.top_k >= 0, f"top_k is {self.top_k!r}, but must be 0 (all tokens) or more.")
        _check(0 < self.top_p <= 1, f"top_p is {self.top_p}, but must be above 0 and at most 1.")
        _check(0 <= self.min_p <= 1, f"min_p is {self.min_p}, but must lie between 0 and 1.")
        _check(
            SMALLEST <= self.repetition_penalty <= LARGEST,
            f"repetition_penalty is {self.repetition_penalty}, but must lie between {SMALLEST} and {LARGEST:.0f}.",
        )
        _check(self.seed is None or type(self.seed) is int, f"seed is {self.seed!r}, but must be a whole number.")


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise UsageError(message)


# Token ids as callers give them.


Tokens = Iterable[SupportsIndex]
"""A sequence, or an array or tensor [n] of a whole type."""


def token_ids(tokens: Tokens) -> list[int]:
    """Return the ids of a sequence, or of an array or tensor [n] of a whole type. Raises TokenError for anything else."""
    dimensions: int = getattr(tokens, "ndim", 1)
    if dimensions != 1:
        raise TokenError(f"tokens are of shape {list(getattr(tokens, 'shape', ()))}; give them in one of shape [n].")
    given: object = getattr(tokens, "tolist", lambda: tokens)()
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise TokenError(f"tokens are {_shown(given)}; give a list of token ids.")
    return [token_id(token) for token in given]


def core_ids(tokens: Tokens) -> Array[c_int64]:
    """Return token ids as the core takes them, one of more than 64 bits as one outside any vocabulary. Raises TokenError."""
    ids = token_ids(tokens)
    return (c_int64 * len(ids))(*(token if -(2**63) <= token < 2**63 else -1 for token in ids))


def token_id(token: Any) -> int:
    """Return a whole number as int, numpy's and torch's too. Raises TokenError for a float, a truth, a text, a list."""
    try:
        if not isinstance(token, bool) and not getattr(token, "ndim", 0):
            return operator.index(token)
    except TypeError:
        pass
    raise TokenError(f"{_shown(token)} is no token id; give whole numbers.")


def core_number(number: object) -> int:
    """Return a number as the core takes it; -1, which it refuses, for what is no whole number of 64 bits."""
    return number if type(number) is int and -(2**63) <= number < 2**63 else -1


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
