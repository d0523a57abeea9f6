"""Token ids as callers give them: whole numbers, and nothing that would have to be rounded to one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

from hybridge.cache.errors import TokenError

Tokens = Iterable[SupportsIndex]
"""A sequence, or an array or tensor [n] of a whole type."""


def token_ids(tokens: Tokens) -> list[int]:
    """Return the ids of a sequence, or of an array or tensor [n] of a whole type. Raises TokenError for anything else."""
    dimensions: int = getattr(tokens, "ndim", 1)
    if dimensions != 1:
        raise TokenError(f"tokens are of shape {list(getattr(tokens, 'shape', ()))}; give them in one of shape [n].")
    tokens = getattr(tokens, "tolist", lambda: tokens)()
    if not isinstance(tokens, Iterable):
        raise TokenError(f"tokens are {_shown(tokens)}; give a list of token ids.")
    return [token_id(token) for token in tokens]


def token_id(token: Any) -> int:
    """Return a whole number as int, numpy's and torch's too. Raises TokenError for a float, a truth, a text, a list."""
    try:
        if not isinstance(token, bool) and not getattr(token, "ndim", 0):
            return operator.index(token)
    except TypeError:
        pass
    raise TokenError(f"{_shown(token)} is no token id; give whole numbers.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
