"""The arguments of kernels: random good ones, and each changed as no good program would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Several:
    """A list of tensors; of those that may be missing, all are ``Maybe``."""

    values: list[Array | Maybe]


Argument = Array | Maybe | MaybeReal | Several | int | float | str | list[int]
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
    """Return normal numbers."""
    return Array(rng.standard_normal(shape).astype(np.float32))


def halves(rng: Rng, *shape: int) -> Array:
    """Return the same, float16."""
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
    """Return the value or none."""
    return Maybe(value if rng.random() < 0.7 else None)


def out(*shape: int) -> Array:
    """Return a float32 output."""
    return Array(np.zeros(shape, np.float32))


DTYPES = {np.uint8: 0, np.int8: 1, np.int32: 3, np.int64: 4, np.float16: 5, np.float32: 6, np.float64: 7, np.bool_: 11}
INTEGERS = [-17, -2, -1, 0, 1, 2, 7, 15, 16, 17, 64, 2**31 - 1, 2**31, -(2**32), 2**32, 2**60, -(2**62), 2**62]
INTEGERS += [-(2**63), 2**63 - 1]
REALS = [float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 1e-40, 1e30, 3e38, 1e300]
NAMES = ["", "nothing", "silu ", "Silu", "gelu_", "\0", "s" * 5000]


def hostile(rng: Rng, argument: Argument, position: int, tensors: int) -> Argument:
    """Return the argument changed; ``tensors`` of the call lie before it."""
    match argument:
        case Array():
            change = TENSORS[int(rng.integers(len(TENSORS)))]
            return _shared(rng, argument, tensors) if change is None else change(rng, argument)
        case Maybe(value=None):
            return Maybe(floats(rng, *[size(rng) for _ in range(rng.integers(0, 4))]))
        case MaybeReal():
            return MaybeReal(float(rng.choice(REALS)))
        case Maybe(value=value):
            return Maybe(None) if rng.random() < 0.2 else Maybe(_as_array(hostile(rng, value, position, tensors)))
        case Several(values=values):
            at = int(rng.integers(len(values)))
            changed = hostile(rng, values[at], position, 0)
            assert isinstance(changed, Array | Maybe)
            fewer = values[:at] + values[at + 1 :]
            return Several(fewer if rng.random() < 0.2 else [*values[:at], changed, *values[at + 1 :]])
        case str():
            return str(rng.choice(NAMES))
        case float():
            return float(rng.choice(REALS))
        case int():
            return argument + int(rng.choice([-1, 1])) if rng.random() < 0.3 else int(rng.choice(INTEGERS))
        case list():
            return _other_list(rng, argument)


def _as_array(argument: Argument) -> Array:
    assert isinstance(argument, Array)
    return argument


def _other_list(rng: Rng, numbers: list[int]) -> list[int]:
    at = int(rng.integers(len(numbers)))
    changes = [
        [*numbers, int(rng.choice(INTEGERS))],
        numbers[:at] + numbers[at + 1 :],
        [*numbers[:at], int(rng.choice(INTEGERS)), *numbers[at + 1 :]],
        [*numbers[:at], numbers[0], *numbers[at + 1 :]],
        numbers * 20,
        [],
    ]
    return changes[int(rng.integers(len(changes)))]


def _resized(rng: Rng, array: Array, shape: tuple[int, ...]) -> Array:
    """Return the same numbers over again in another shape."""
    return replace(array, numbers=np.resize(array.numbers, shape))


def _other_size(rng: Rng, array: Array) -> Array:
    shape = list(array.numbers.shape)
    if not shape:
        return _resized(rng, array, (size(rng),))
    at = int(rng.integers(len(shape)))
    shape[at] = int(
        rng.choice([0, 1, 2, max(0, shape[at] - 1), shape[at] + 1, shape[at] + 16, 2 * shape[at], 3 * shape[at] + 1])
    )
    return _resized(rng, array, tuple(shape))


def _huge_size(rng: Rng, array: Array) -> Array:
    """Sizes that no memory holds, beside one of 0; ExecuTorch itself refuses those whose product is past 64 bits."""
    shape = [*array.numbers.shape, 1, 1][: max(2, array.numbers.ndim)]
    zero, large, other = (int(each) % len(shape) for each in rng.integers(len(shape)) + np.arange(3))
    shape[other], shape[large], shape[zero] = 2**16, 2**31 - 1, 0
    return replace(array, numbers=np.empty(shape, array.numbers.dtype))


def _other_rank(rng: Rng, array: Array) -> Array:
    shape = list(array.numbers.shape)
    at = int(rng.integers(len(shape) + 1))
    ranks = [[*shape[:at], 1, *shape[at:]], shape[1:], shape[:-1], [array.numbers.size], [], [*shape, 2], [1] * 12, shape[::-1]]
    return _resized(rng, array, tuple(ranks[int(rng.integers(len(ranks)))]))


def _other_dtype(rng: Rng, array: Array) -> Array:
    with np.errstate(all="ignore"):
        return replace(array, numbers=array.numbers.astype(list(DTYPES)[int(rng.integers(len(DTYPES)))]))


def _other_order(rng: Rng, array: Array) -> Array:
    return replace(array, order=tuple(int(each) for each in rng.permutation(array.numbers.ndim)))


def _other_numbers(rng: Rng, array: Array) -> Array:
    """Put in numbers that kernels must carry or refuse: NaN, infinities, positions outside, bytes that are no bool."""
    numbers = array.numbers.copy()
    flat = numbers.reshape(-1)
    if flat.size:
        at = rng.integers(flat.size, size=max(1, flat.size // 8) if rng.random() < 0.5 else 1)
        if numbers.dtype.kind == "f":
            with np.errstate(over="ignore"):
                flat[at] = rng.choice(REALS, len(at)).astype(numbers.dtype)
        elif numbers.dtype == np.bool_:
            flat.view(np.uint8)[at] = rng.integers(0, 256, len(at))
        else:
            flat[at] = np.array([INTEGERS[i] for i in rng.integers(len(INTEGERS), size=len(at))]).astype(numbers.dtype)
    return replace(array, numbers=numbers)


def _shared(rng: Rng, array: Array, tensors: int) -> Array:
    """In the memory of a tensor before it, as far as that is large enough (``kernels.py`` sees to that)."""
    return replace(array, shares=int(rng.integers(tensors))) if tensors else array


Change = Callable[[Rng, Array], Array]
TENSORS: list[Change | None] = [
    *(_other_size, _other_rank, _huge_size, _other_dtype, _other_order, _other_numbers),
    *(_other_size, _other_numbers),  # twice as often as the others
    None,  # memory that is shared
]
