"""The arguments of kernels, and random ones of a good program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rng = np.random.Generator
LANES, BLOCK = 16, 64
ACTIVATIONS = ("silu", "sigmoid", "gelu", "gelu_tanh", "relu", "tanh", "softplus")


@dataclass(frozen=True)
class Array:
    """A tensor: its numbers, the order of its dimensions in memory, and the tensor before it whose memory it shares."""

    numbers: NDArray[np.generic]
    order: tuple[int, ...] | None = None
    shares: int | None = None


@dataclass(frozen=True)
class Maybe:
    """A tensor that may be missing."""

    value: Array | None


@dataclass(frozen=True)
class MaybeReal:
    """A number that may be missing."""

    value: float | None


Argument = Array | Maybe | MaybeReal | int | float | str | list[int]
Call = list[Argument]
CALLS: dict[str, Callable[[Rng], Call]] = {}


def call(name: str) -> Callable[[Callable[[Rng], Call]], Callable[[Rng], Call]]:
    """Register what makes the calls of operator ``name``."""

    def register(make: Callable[[Rng], Call]) -> Callable[[Rng], Call]:
        CALLS[f"{name}.out"] = make
        return make

    return register


def size(rng: Rng, most: int = 6) -> int:
    """1..most, and now and then one that fills vectors and leaves some over."""
    return int(rng.integers(1, most + 1)) if rng.random() < 0.93 else int(rng.choice([15, 16, 17, 33]))


def floats(rng: Rng, *shape: int) -> Array:
    """Normal numbers."""
    return Array(rng.standard_normal(shape).astype(np.float32))


def halves(rng: Rng, *shape: int) -> Array:
    """The same, float16."""
    return Array(rng.standard_normal(shape).astype(np.float16))


def whole(rng: Rng, low: int, high: int, *shape: int, dtype: type = np.int64) -> Array:
    """Numbers of low..high."""
    return Array(rng.integers(low, high + 1, shape).astype(dtype))


def number(value: int) -> Array:
    """int64 [1]."""
    return Array(np.array([value]))


def truths(rng: Rng, *shape: int) -> Array:
    """Either."""
    return Array(rng.random(shape) < 0.7)


def maybe(rng: Rng, value: Array) -> Maybe:
    """The value or none."""
    return Maybe(value if rng.random() < 0.7 else None)


def out(*shape: int) -> Array:
    """A float32 output."""
    return Array(np.zeros(shape, np.float32))
