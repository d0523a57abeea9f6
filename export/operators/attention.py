"""Define operators of attention over cached rows, of writing rows, of slots, and of choosing draft tokens.

Axes: T tokens, R rows of a buffer, H query heads, G key/value heads, D head dim, V value dim; one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import CoreKernels, Scoring, Visible
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.cache.operations.ring import Ring
from hybridge.export.operators.define import define


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
    ring: int = 0,
    window: int = 0,
    chunked: bool = False,
) -> Tensor:
    """Attend with query [1, T, H, D] over keys [1, R, G, D] and values [1, R, G, V], both float32 or float16; [1, T, H, V].

    mask, bool [T, R], says which rows a token sees; without it these are the rows up to ``start`` (int64 [1]) + t, or the
    ``Ring``'s where ``ring``, its size, is not 0. softcap 0 is none; sinks [H].
    """
    scoring = Scoring(scale=scale, softcap=softcap or None, sinks=sinks)
    return _attend(query, keys, values, start, mask, scoring, ring, window, chunked)


def biased_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    bias: Tensor,
    sinks: Tensor | None,
    scale: float,
    ring: int = 0,
    window: int = 0,
    chunked: bool = False,
) -> Tensor:
    """Attend likewise with ``Scoring.bias`` [1, T, H, E + 1] by distance; sinks may be [1, H, T], too."""
    scoring = Scoring(scale=scale, sinks=sinks, bias=bias)
    return _attend(query, keys, values, start, None, scoring, ring, window, chunked)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    mask: Tensor | None,
    scoring: Scoring,
    ring: int,
    window: int,
    chunked: bool,
) -> Tensor:
    block = Block(start=start, count=start, length=query.shape[1])
    visible = None if mask is None else Visible(held=torch.arange(keys.shape[1]), mask=mask)
    if ring:
        rows = Ring(size=ring, window=window, chunked=chunked)
        held = rows.held(block, keys.shape[1])
        visible = Visible(held=held, mask=rows.mask(block, held))
    return CoreKernels().attend(query, keys, values, block, scoring, visible)


def quantized_attention(
    query: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    values: Tensor,
    value_scales: Tensor,
    start: Tensor,
    sinks: Tensor | None,
    value_dim: int,
    scale: float,
    softcap: float,
) -> Tensor:
    """Attend likewise over int8 rows (``QuantizedRows``); token t sees the rows up to ``start`` + t."""
    rows = QuantizedRows(keys=keys, key_scales=key_scales, values=values, value_scales=value_scales)
    return attention(query, *rows.dense(query.shape[-1], value_dim), start, None, sinks, scale, softcap)


def write_rows(rows: Tensor, buffer: Tensor, start: Tensor) -> Tensor:
    """Put rows [1, T, ...] into buffer [1, R, ...] in place, from row ``start`` (int64 [1]) on. Returns nothing of use.

    A float16 buffer rounds float32 rows; otherwise both have one dtype.
    """
    buffer.index_copy_(1, start + torch.arange(rows.shape[1]), rows.to(buffer.dtype))
    return rows.new_empty(1)


def write_window(rows: Tensor, buffer: Tensor, start: Tensor, count: Tensor) -> Tensor:
    """Put the first ``count`` (int64 [1]) of rows [1, T, ...] into a ring [1, R, ...] in place, position p at p mod R."""
    CoreKernels().write_window(buffer, rows, Block(start=start, count=count, length=rows.shape[1]))
    return rows.new_empty(1)


def write_quantized_rows(
    key: Tensor, value: Tensor, keys: Tensor, key_scales: Tensor, values: Tensor, value_scales: Tensor, start: Tensor
) -> Tensor:
    """Put key [1, T, G, D] and value [1, T, G, V] into int8 rows (``QuantizedRows``) in place, from row ``start`` on."""
    QuantizedRows(keys=keys, key_scales=key_scales, values=values, value_scales=value_scales).write(key, value, start)
    return key.new_empty(1)


define(
    "attention",
    "Tensor query, Tensor keys, Tensor values, Tensor start, Tensor? mask, Tensor? sinks, float scale, float softcap, "
    "int ring, int window, bool chunked",
    attention,
    lambda query, keys, values, *_: query.new_empty(*query.shape[:3], values.shape[3]),
)
define(
    "biased_attention",
    "Tensor query, Tensor keys, Tensor values, Tensor start, Tensor bias, Tensor? sinks, float scale, int ring, int window, "
    "bool chunked",
    biased_attention,
    lambda query, keys, values, *_: query.new_empty(*query.shape[:3], values.shape[3]),
)

define(
    "quantized_attention",
    "Tensor query, Tensor keys, Tensor key_scales, Tensor values, Tensor value_scales, Tensor start, Tensor? sinks, "
    "int value_dim, float scale, float softcap",
    quantized_attention,
    lambda query, *others: query.new_empty(*query.shape[:3], others[-3]),
)
define(
    "write_window",
    "Tensor rows, Tensor(a!) buffer, Tensor start, Tensor count",
    write_window,
    lambda rows, *_: rows.new_empty(1),
)
define("write_rows", "Tensor rows, Tensor(a!) buffer, Tensor start", write_rows, lambda rows, *_: rows.new_empty(1))
define(
    "write_quantized_rows",
    "Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) key_scales, Tensor(c!) values, Tensor(d!) value_scales, "
    "Tensor start",
    write_quantized_rows,
    lambda key, *_: key.new_empty(1),
)


# Move and choose numbers: copies to and from snapshot slots, permuted tensors, a choice by condition, draft tokens
# by score. ``slot`` is int64 [1] and ``when`` bool [1]. Operators that write in place return nothing of use.


def keep_state(state: Tensor, slots: Tensor, slot: Tensor, when: Tensor) -> Tensor:
    """Copy state [...] into slots [1, N, ...] at ``slot`` where ``when`` holds."""
    if bool(when):
        slots[0, int(slot)] = state.view(slots.shape[2:])
    return state.new_empty(1)


def bring_back(slots: Tensor, state: Tensor, slot: Tensor, when: Tensor) -> Tensor:
    """Copy what slots [1, N, ...] hold at ``slot`` into state [...] where ``when`` holds."""
    if bool(when):
        state.copy_(slots[0, int(slot)].view(state.shape))
    return state.new_empty(1)


def clear(state: Tensor, when: Tensor) -> Tensor:
    """Fill state with zeros where ``when`` holds."""
    if bool(when):
        state.zero_()
    return torch.empty(1)


define(
    "keep_state", "Tensor state, Tensor(a!) slots, Tensor slot, Tensor when", keep_state, lambda state, *_: state.new_empty(1)
)
define(
    "bring_back", "Tensor slots, Tensor(a!) state, Tensor slot, Tensor when", bring_back, lambda slots, *_: slots.new_empty(1)
)
define("clear", "Tensor(a!) state, Tensor when", clear, lambda state, when: torch.empty(1))


def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x of any dtype as ``x.permute(dims)``, contiguous."""
    return x.permute(tuple(dims)).contiguous()


define("permute", "Tensor x, int[] dims", permute, lambda x, dims: x.new_empty([x.shape[dim] for dim in dims]))


define(
    "where",
    "Tensor condition, Tensor x, Tensor other",
    torch.where,
    lambda condition, x, other: x.new_empty(torch.broadcast_shapes(condition.shape, x.shape, other.shape)),
)
# Axes of scores: N rows, C scores in each. ``Kernels`` describes these three.
define(
    "draw",
    "Tensor scores, Tensor noise, Tensor temperature, Tensor? ids",
    CoreKernels().draw,
    lambda scores, *_: scores.new_empty(*scores.shape[:2], dtype=torch.long),
)
define("top_chance", "Tensor scores", CoreKernels().top_probability, lambda scores: scores.new_empty(*scores.shape[:2]))
define(
    "best_candidates",
    "Tensor scores, int count",
    CoreKernels().best_candidates,
    lambda scores, count: scores.new_empty(*scores.shape[:2], count, dtype=torch.long),
)
