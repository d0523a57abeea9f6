"""Good calls of each kernel, as a good program makes them; ``kernels.py`` then spoils them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from recurrences import Recurrence
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from campaigns.fuzz.kernel_arguments import (
    ACTIVATIONS,
    BLOCK,
    LANES,
    Argument,
    Array,
    Call,
    Maybe,
    MaybeReal,
    Rng,
    Several,
    call,
    floats,
    halves,
    maybe,
    number,
    out,
    size,
    truths,
    whole,
)  # fmt: skip
from hybridge.export.pinned.torch_export import Operator, declared


@call("activation")
def _activation(rng: Rng) -> Call:
    shape = 1, size(rng), size(rng, 40)
    return [floats(rng, *shape), str(rng.choice(ACTIVATIONS)), out(*shape)]


@call("gated")
def _gated(rng: Rng) -> Call:
    shape = 1, size(rng), size(rng, 40)
    return [floats(rng, *shape), floats(rng, *shape), str(rng.choice(ACTIVATIONS)), out(*shape)]


@call("attention")
def _attention(rng: Rng) -> Call:
    return _attends(rng, int(rng.integers(3)))


def _attends(rng: Rng, kind: int) -> Call:
    T, G, D, V = size(rng), size(rng, 3), size(rng, 20), size(rng, 20)
    H = G * size(rng, 3)
    ring = window = 0
    if kind == 0:  # rows up to a token's own
        R = T + size(rng, 200)
        start, mask = int(rng.integers(0, R - T + 1)), Maybe(None)
    elif kind == 1:  # rows of a mask
        R = size(rng, 200)
        start, mask = int(rng.integers(0, 9)), Maybe(truths(rng, T, R))
    else:  # a ring
        window = size(rng, 100)
        ring = window + T - 1 + int(rng.integers(0, 4))
        R = ring + (T if rng.random() < 0.5 else 0)
        start, mask = int(rng.integers(0, 3 * ring)), Maybe(None)
    numbers = halves if rng.random() < 0.3 else floats
    keys, values, sinks = numbers(rng, 1, R, G, D), numbers(rng, 1, R, G, V), maybe(rng, floats(rng, H))
    softcap, chunked = float(rng.choice([0.0, 5.0])), int(rng.integers(2))
    rest: Call = [mask, sinks, D**-0.5, softcap, ring, window, chunked, out(1, T, H, V)]
    return [floats(rng, 1, T, H, D), keys, values, number(start), *rest]


@call("biased_attention")
def _biased_attention(rng: Rng) -> Call:
    query, keys, values, start, _, sinks, scale, _, *sees, result = _attends(rng, int(rng.choice([0, 2])))
    assert isinstance(query, Array)
    T, H = query.numbers.shape[1:3]
    if rng.random() < 0.5:
        sinks = maybe(rng, floats(rng, 1, H, T))
    return [query, keys, values, start, floats(rng, 1, T, H, size(rng, 30)), sinks, scale, *sees, result]


@dataclass(frozen=True)
class _Rows:
    rng: Rng
    N: int
    G: int
    D: int
    V: int
    arrays: Call = field(init=False)

    def __post_init__(self) -> None:
        scales = [Array(self.rng.random((1, self.N, self.G, BLOCK)).astype(np.float32)) for _ in range(2)]
        columns = -(-self.D // 4) * 4, -(-self.V // LANES) * LANES
        bytes_ = [whole(self.rng, -127, 127, 1, self.N, self.G, each, BLOCK, dtype=np.int8) for each in columns]
        object.__setattr__(self, "arrays", [bytes_[0], scales[0], bytes_[1], scales[1]])


def _rows(rng: Rng) -> tuple[_Rows, int, int]:
    """Rows, tokens and the first token's row."""
    rows = _Rows(rng, size(rng, 3), size(rng, 3), size(rng, 40), size(rng, 40))
    T = size(rng)
    return rows, T, int(rng.integers(0, rows.N * BLOCK - T + 1))


@call("quantized_attention")
def _quantized_attention(rng: Rng) -> Call:
    rows, T, start = _rows(rng)
    H = rows.G * size(rng, 3)
    options: Call = [maybe(rng, floats(rng, H)), rows.V, rows.D**-0.5, float(rng.choice([0.0, 5.0]))]
    return [floats(rng, 1, T, H, rows.D), *rows.arrays, number(start), *options, out(1, T, H, rows.V)]


@call("write_quantized_rows")
def _write_quantized_rows(rng: Rng) -> Call:
    rows, T, start = _rows(rng)
    new: Call = [floats(rng, 1, T, rows.G, rows.D), floats(rng, 1, T, rows.G, rows.V)]
    return [*new, *rows.arrays, number(start), out(1)]


@call("write_rows")
def _write_rows(rng: Rng) -> Call:
    T, row = size(rng), (size(rng), size(rng))
    R, numbers = T + size(rng), halves if rng.random() < 0.5 else floats
    return [floats(rng, 1, T, *row), numbers(rng, 1, R, *row), number(int(rng.integers(0, R - T + 1))), out(1)]


@call("write_window")
def _write_window(rng: Rng) -> Call:
    T, R, row = size(rng), size(rng), (size(rng), size(rng))
    places = number(int(rng.integers(0, 99))), number(int(rng.integers(0, T + 1)))
    return [floats(rng, 1, T, *row), floats(rng, 1, R, *row), *places, out(1)]


@call("linear")
def _linear(rng: Rng) -> Call:
    T, N, K = size(rng), size(rng, 20), size(rng, 40)
    return [floats(rng, 1, T, K), floats(rng, N, K), maybe(rng, floats(rng, N)), out(1, T, N)]


def _blocks(rng: Rng, panels: int) -> tuple[int, Call, bool]:
    """K; a weight with its scales, minima, superscales and table, of which some are missing; whether it has whole numbers."""
    if rng.random() < 0.2:
        K = size(rng, 40)
        return K, [floats(rng, panels, K, LANES), Maybe(None), Maybe(None), Maybe(None), Maybe(None)], False
    bits, superblocks, shared = int(rng.choice([4, 5, 6, 8])), size(rng, 3), size(rng, 3)
    group, groups = {5: 32, 6: 16}.get(bits, 8) * size(rng, 2), superblocks * shared
    K = groups * group
    width, last = {4: (8, 64), 5: (32, 320), 6: (16, 192), 8: (4, 64)}[bits]
    low, high, dtype = (-127, 127, np.int8) if bits == 8 else (0, 255, np.uint8)
    packed = whole(rng, low, high, panels, K // width, last, dtype=dtype)
    form = rng.choice(["halves", "bytes", "exponents"] if bits == 4 else ["halves", "bytes"])
    minima, table = bool(bits < 8 and form != "exponents" and rng.random() < 0.5), Maybe(None)
    if form == "exponents" or (bits == 4 and not minima and rng.random() < 0.5):
        table = Maybe(whole(rng, -127, 127, 16, dtype=np.int8))
    each = [_factors(rng, str(form), panels, groups) for _ in range(1 + minima)]
    supers = Maybe(_factors(rng, "halves", panels, superblocks * (1 + minima)) if form == "bytes" else None)
    return K, [packed, Maybe(each[0]), Maybe(each[1] if minima else None), supers, table], True


def _factors(rng: Rng, form: str, panels: int, groups: int) -> Array:
    if form == "halves":
        return Array(rng.random((panels, groups, LANES)).astype(np.float16))
    low, high, dtype = (-128, 127, np.int8) if form == "bytes" else (100, 140, np.uint8)
    return whole(rng, low, high, panels, groups, LANES, dtype=dtype)


@call("block_linear")
def _block_linear(rng: Rng) -> Call:
    T, N = size(rng, 30), size(rng, 40)
    K, weight, whole_numbers = _blocks(rng, -(-N // LANES))
    integer = int(whole_numbers and rng.random() < 0.5)
    return [floats(rng, 1, T, K), *weight, maybe(rng, floats(rng, N)), N, integer, out(1, T, N)]


@call("block_linears")
def _block_linears(rng: Rng) -> Call:
    T, rows, seed = size(rng, 30), [size(rng, 40) for _ in range(size(rng, 3))], int(rng.integers(2**31))
    blocks = [_blocks(np.random.default_rng(seed), -(-N // LANES)) for N in rows]  # of one seed, so of as many columns
    K, _, whole_numbers = blocks[0]
    weights: list[Array | Maybe] = []
    for N, (_, weight, _) in zip(rows, blocks, strict=True):
        parts = [*weight, maybe(rng, floats(rng, N))]
        weights += [each if isinstance(each, Maybe) else Maybe(each) for each in parts if isinstance(each, Array | Maybe)]
    integer = int(whole_numbers and rng.random() < 0.5)
    return [floats(rng, 1, T, K), Several(weights), rows, integer, Several([out(1, T, N) for N in rows])]


@call("panel_linear")
def _panel_linear(rng: Rng) -> Call:
    T, N = size(rng, 30), size(rng, 60)
    every = -(-N // LANES)
    K, weight, whole_numbers = _blocks(rng, every)
    integer = int(whole_numbers and rng.random() < 0.5)
    chosen = np.sort(rng.choice(every, int(rng.integers(1, every + 1)), replace=False)).astype(np.int64)
    outputs = len(chosen) * LANES - (-N % LANES if chosen[-1] == every - 1 else int(rng.integers(0, LANES)))
    rest: Call = [maybe(rng, floats(rng, N)), Array(chosen), N, outputs, integer, out(1, T, outputs)]
    return [floats(rng, 1, T, K), *weight, *rest]


@call("block_embedding")
def _block_embedding(rng: Rng) -> Call:
    T, N = size(rng), size(rng, 40)
    K, weight, _ = _blocks(rng, -(-N // LANES))
    return [whole(rng, 0, N - 1, 1, T), *weight, N, K, out(1, T, K)]


@call("block_experts")
def _block_experts(rng: Rng) -> Call:
    M, E, N = size(rng), size(rng), size(rng, 40)
    K, weight, whole_numbers = _blocks(rng, E * -(-N // LANES))
    integer, chosen = int(whole_numbers and rng.random() < 0.5), whole(rng, 0, E - 1, M)
    return [floats(rng, M, K), chosen, *weight, maybe(rng, floats(rng, E, N)), N, integer, out(M, N)]


@call("rms_norm")
def _rms_norm(rng: Rng) -> Call:
    shape = 1, size(rng), size(rng), size(rng, 80)
    weight = floats(rng, *shape[2 + int(rng.integers(2)) :])
    return [floats(rng, *shape), maybe(rng, weight), 1e-6, out(*shape)]


@call("layer_norm")
def _layer_norm(rng: Rng) -> Call:
    shape = 1, size(rng), size(rng, 80)
    return [floats(rng, *shape), maybe(rng, floats(rng, shape[-1])), maybe(rng, floats(rng, shape[-1])), 1e-6, out(*shape)]


@call("draw")
def _draw(rng: Rng) -> Call:
    N, C = size(rng), size(rng, 3000)
    temperature = np.array([rng.choice([0.0, 0.5, 2.0])], np.float32)
    noise = rng.integers(0, 2**32, (1, N))
    ids = maybe(rng, Array(rng.integers(0, 2**31, (1, int(rng.choice([1, N])), C))))
    return [floats(rng, 1, N, C), Array(noise), Array(temperature), ids, Array(np.zeros((1, N), np.int64))]


@call("top_chance")
def _top_chance(rng: Rng) -> Call:
    N, C = size(rng), size(rng, 200)
    return [floats(rng, 1, N, C), out(1, N)]


@call("best_candidates")
def _best_candidates(rng: Rng) -> Call:
    N, C = size(rng), size(rng, 200)
    kept = int(rng.integers(1, C + 1))
    return [floats(rng, 1, N, C), kept, Array(np.zeros((1, N, kept), np.int64))]


@call("permute")
def _permute(rng: Rng) -> Call:
    shape = [size(rng) for _ in range(rng.integers(1, 6))]
    dims = [int(each) for each in rng.permutation(len(shape))]
    turned = np.zeros([shape[dim] for dim in dims], np.float32)
    return [floats(rng, *shape), [dim - len(shape) if rng.random() < 0.2 else dim for dim in dims], Array(turned)]


@call("rotary")
def _rotary(rng: Rng) -> Call:
    B, T, H, R = size(rng, 3), size(rng), size(rng), 2 * size(rng, 8)
    D, angles = R + int(rng.integers(0, 9)), (int(rng.choice([1, B])), T, R)
    return [floats(rng, B, T, H, D), floats(rng, *angles), floats(rng, *angles), int(rng.integers(2)), out(B, T, H, D)]


@call("where")
def _where(rng: Rng) -> Call:
    shape = [size(rng) for _ in range(rng.integers(0, 5))]

    def part() -> list[int]:
        return [1 if rng.random() < 0.3 else each for each in shape][int(rng.integers(0, len(shape) + 1)) :]

    return [truths(rng, *part()), floats(rng, *part()), floats(rng, *part()), out(*shape)]


@call("keep_state")
def _keep_state(rng: Rng) -> Call:
    state, slots = (1, size(rng), size(rng)), size(rng)
    return [floats(rng, *state), floats(rng, 1, slots, *state), number(int(rng.integers(slots))), truths(rng, 1), out(1)]


@call("bring_back")
def _bring_back(rng: Rng) -> Call:
    state, slots, *rest = _keep_state(rng)
    return [slots, state, *rest]


@call("clear")
def _clear(rng: Rng) -> Call:
    return [floats(rng, 1, size(rng), size(rng)), truths(rng, 1), out(1)]


class Calls(TorchDispatchMode):
    """Keeps what our operators are called with, and computes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Operator, tuple[Any, ...], Tensor]] = []

    def __torch_dispatch__(self, func: Operator, types: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.namespace != "hybridge":
            return func(*args, **(kwargs or {}))
        shapes = (each.to("meta") if isinstance(each, Tensor) else each for each in args)
        self.kept.append((func, args, func(*shapes)))
        return torch.empty(0)


def good(kind: type[Recurrence], operation: int, rng: Rng) -> Call:
    """Return a call of the kind's block (0), verify (1) or commit (2)."""
    torch.manual_seed(int(rng.integers(2**31)))
    layer, tokens = kind.random(lambda most: size(rng, most)), size(rng)
    layer.state = torch.randn(size(rng, 2), *layer.state.shape[1:])
    inputs, count = layer.inputs(tokens, tokens), torch.tensor([int(rng.integers(0, tokens + 1))])
    room = tokens + int(rng.integers(0, 3))
    staged = {name: torch.randn(each.shape) for name, each in layer.staged(room).items()}
    with Calls() as calls:
        if operation == 0:
            layer.extend(*inputs, count, state=layer.state)
        elif operation == 1:
            layer.verify(*inputs, state=layer.state, **staged)
        else:
            layer.commit(count, state=layer.state, **staged)
    ((operator, arguments, out),) = calls.kept
    types = [str(each.type) for each in declared(operator).arguments]
    given = [_argument(rng, *each) for each in zip(types, arguments, strict=True)]
    return [*given, Array(np.zeros(out.shape, np.float32 if out.is_floating_point() else np.int64))]


def _argument(rng: Rng, kind: str, value: Any) -> Argument:
    """Return an operator's argument, which may as well be missing if it is optional."""
    given: Any = Array(value.numpy()) if isinstance(value, Tensor) else int(value) if isinstance(value, bool) else value
    if not kind.startswith("Optional"):
        return given  # type: ignore[no-any-return]
    kept = given if rng.random() < 0.7 else None
    return MaybeReal(kept) if "float" in kind else Maybe(kept)


for each in Recurrence.__subclasses__():
    for operation, name in enumerate(each.operators):
        call(name)(partial(good, each, operation))
