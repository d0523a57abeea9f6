"""Options of sampling, and token ids as callers give them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from ctypes import Array, c_int64
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, SupportsIndex, cast

from hybridge.errors import TokenError, UsageError


@dataclass(frozen=True)
class Range:
    """The numbers that an option may be: from least, or above it if that is left out, to most; and ``also`` (greedy)."""

    least: float
    most: float
    has_least: bool = True
    also: float | None = None

    def __contains__(self, number: float) -> bool:
        return number == self.also or (
            (self.least <= number if self.has_least else self.least < number) and number <= self.most
        )

    def __str__(self) -> str:
        lies = (
            f"lie between {self.least:g} and {self.most:g}"
            if self.has_least
            else f"be above {self.least:g} and at most {self.most:g}"
        )
        return lies if self.also is None else f"be {self.also:g} (greedy) or {lies}"


# Beyond 1e-6 and 1e6, what a logit is divided by makes it infinite, or all tokens alike.
RANGES = {
    "temperature": Range(1e-6, 1e6, also=0),
    "top_p": Range(0, 1, has_least=False),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(1e-6, 1e6),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "top_n_sigma": Range(0, 1e6),
    "dry_multiplier": Range(0, 100),
    "dry_base": Range(1, 100),
}
"""What numbers of a sampling may be."""
LEAST = {"top_k": 0, "repeat_last_n": -1, "dry_allowed_length": 0}
"""The least value of its whole numbers."""
BIASES = Range(-100, 100)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """temperature 0 is greedy; the default of each other option leaves the distribution as it is.

    Applied in this order, which is transformers' where it has them: logit_bias, penalties, temperature, top-n-sigma, top-k,
    top-p, min-p. Raises UsageError for values that make no distribution.

    Args:
        top_k: 0 for all tokens.
        repetition_penalty: logits of tokens of the text are divided by it, or multiplied below 0, as in transformers.
        presence_penalty: subtracted from the logits of tokens that the generation has written, as in OpenAI's API.
        frequency_penalty: the same for each time that it has written the token.
        repeat_last_n: latest tokens of the text that penalties see; -1 for all.
        top_n_sigma: standard deviations of the logits that a token may be below the best one; 0 for all tokens.
        dry_multiplier: DRY subtracts dry_multiplier * dry_base ** (n - dry_allowed_length) from the logit of a token that would
            continue a repetition of the text's last n tokens; 0 for none.
        dry_breakers: tokens across which no repetition goes; ``Tokenizer.dry_breakers`` has the usual ones.
        logit_bias: numbers that are added to the logits of tokens.
        seed: drawn if it is None.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_breakers: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, numbers in RANGES.items():
            _check_number(name, getattr(self, name), numbers)
        for name, least in LEAST.items():
            value = getattr(self, name)
            _check(
                type(value) is int and value >= least, f"{name} is {value!r}, but must be a whole number of at least {least}."
            )
        for token, bias in self.logit_bias.items():
            _check_number(f"logit_bias of token {token}", bias, BIASES)
        _check(self.seed is None or type(self.seed) is int, f"seed is {self.seed!r}, but must be a whole number.")

    def __str__(self) -> str:
        named = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name not in ("dry_breakers", "seed"))
        changed = [f"{name} {value}" for name, value in named if value != getattr(Sampling, name, {})]
        return ", ".join(changed if self.temperature else ["greedy", *changed])


def _check_number(name: str, value: object, numbers: Range) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    _check(is_number, f"{name} is {value!r}, but must be a number.")
    _check(cast("float", value) in numbers, f"{name} is {value}, but must {numbers}.")


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
