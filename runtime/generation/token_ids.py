"""Token ids as callers give them: whole numbers, and nothing that would have to be rounded to one."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from hybridge.cache.errors import TokenError

Tokens = Sequence[int] | Tensor


def token_ids(tokens: Tokens) -> list[int]:
    """Return the ids of a sequence, or of a tensor [n] of a whole type. Raises TokenError for anything else."""
    if isinstance(tokens, Tensor):
        if tokens.dim() != 1:
            raise TokenError(f"tokens are a tensor of shape {list(tokens.shape)}; give one of shape [n].")
        tokens = tokens.tolist()
    if not isinstance(tokens, Iterable):
        raise TokenError(f"tokens are {_shown(tokens)}; give a list of token ids.")
    return [token_id(token) for token in tokens]


def token_id(token: Any) -> int:
    """Return a whole number as int, numpy's and torch's too. Raises TokenError for a float, a truth, a text, a list."""
    try:
        if not isinstance(token, bool) and not (isinstance(token, Tensor) and token.dim()):
            return operator.index(token)
    except TypeError:
        pass
    raise TokenError(f"{_shown(token)} is no token id; give whole numbers.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
