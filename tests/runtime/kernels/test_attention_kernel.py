"""The attention kernels against plain operators: odd sizes, memory that nobody wrote to, one thread and two."""

from __future__ import annotations

import pytest
import torch
from kernel_program import KernelProgram
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.operations.quantized_rows import QuantizedRows, quantize_rows
from hybridge.cache.operations.ring import Ring
from hybridge.export.operators.attention import attention, biased_attention, quantized_attention
from hybridge.runtime.binding.library import set_threads

ops = torch.ops.hybridge
NAN = float("nan")

CASES = {
    "decode, one key/value head": {"T": 1, "H": 4, "G": 1, "D": 24, "V": 24, "R": 40, "start": 31},
    "verify of 5": {"T": 5, "H": 6, "G": 2, "D": 24, "V": 24, "R": 40, "start": 0},
    "chunk of 17, other value dim": {"T": 17, "H": 6, "G": 3, "D": 40, "V": 72, "R": 90, "start": 70},
    "many rows in parts": {"T": 3, "H": 2, "G": 1, "D": 16, "V": 16, "R": 2100, "start": 2090},
    "heads side by side, in parts": {"T": 1, "H": 10, "G": 5, "D": 24, "V": 40, "R": 1300, "start": 1291},
    "more queries than a unit takes": {"T": 9, "H": 8, "G": 1, "D": 16, "V": 33, "R": 130, "start": 121},
}


def of_both(program: KernelProgram, *inputs: Tensor) -> list[Tensor]:
    """Return what the program gives on one thread, and on two the same bits: a call writes what the one before it wrote."""
    set_threads(1)
    outputs = program(*inputs)
    set_threads(2)
    for other, output in zip(program(*inputs), outputs, strict=True):
        torch.testing.assert_close(other, output, rtol=0, atol=0, equal_nan=True)
    return outputs


def case(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, keys, values and start, with NaN in the rows that nothing was written to."""
    torch.manual_seed(0)
    c = CASES[name]
    query = torch.randn(1, c["T"], c["H"], c["D"])
    keys, values = torch.randn(1, c["R"], c["G"], c["D"]), torch.randn(1, c["R"], c["G"], c["V"])
    keys[:, c["start"] + c["T"] :], values[:, c["start"] + c["T"] :] = NAN, NAN
    return query, keys.to(dtype), values.to(dtype), torch.tensor([c["start"]])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("softcap", [pytest.param(0.0, marks=pytest.mark.thorough), 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_attention(name: str, softcap: float, dtype: torch.dtype) -> None:
    query, keys, values, start = case(name, dtype)
    sinks = torch.randn(query.shape[2]) if softcap else None
    run = KernelProgram(
        lambda q, s, keys, values, sinks=None: ops.attention(q, keys, values, s, None, sinks, 0.3, softcap, 0, 0, False),
        [query, start],
        keys=keys,
        values=values,
        **({} if sinks is None else {"sinks": sinks}),
    )
    want = attention(query, keys, values, start, None, sinks, 0.3, softcap)
    torch.testing.assert_close(of_both(run, query, start)[0], want, rtol=1e-5, atol=2e-6)


def blank(R: int, G: int, D: int, V: int) -> QuantizedRows:
    """Memory that nobody wrote to."""
    blocks = -(-R // 64)
    return QuantizedRows(
        keys=torch.full((1, blocks, G, D + -D % 4, 64), -128, dtype=torch.int8),
        key_scales=torch.full((1, blocks, G, 64), NAN),
        values=torch.full((1, blocks, G, V + -V % 16, 64), 127, dtype=torch.int8),
        value_scales=torch.full((1, blocks, G, 64), NAN),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("softcap", [pytest.param(0.0, marks=pytest.mark.thorough), 3.0])
def test_attention_over_int8(name: str, softcap: float) -> None:
    """Queries and weights keep 15 bits."""
    query, keys, values, start = case(name)
    V, written = values.shape[-1], int(start) + query.shape[1]
    rows = blank(*keys.shape[1:], V)
    rows.write(keys[:, :written], values[:, :written], torch.tensor([0]))
    sinks = torch.randn(query.shape[2]) if softcap else None
    run = KernelProgram(
        lambda q, s, k, ks, v, vs, sinks=None: ops.quantized_attention(q, k, ks, v, vs, s, sinks, V, 0.3, softcap),
        [query, start],
        k=rows.keys,
        ks=rows.key_scales,
        v=rows.values,
        vs=rows.value_scales,
        **({} if sinks is None else {"sinks": sinks}),
    )
    want = quantized_attention(query, *vars(rows).values(), start, sinks, V, 0.3, softcap)
    torch.testing.assert_close(of_both(run, query, start)[0], want, rtol=5e-4, atol=5e-4)


@pytest.mark.slow
def test_attention_sees_what_a_mask_says() -> None:
    """A ring, where which rows are visible follows no order; rows that no token sees hold NaN."""
    torch.manual_seed(0)
    query, keys, values = torch.randn(1, 5, 6, 24), torch.randn(1, 13, 2, 24), torch.randn(1, 13, 2, 24)
    mask = torch.rand(5, 13) < 0.4
    mask[:, 3], mask[:, 7], mask[:, [0, 12]] = True, False, False
    keys[:, ~mask.any(0)], values[:, ~mask.any(0)] = NAN, NAN
    start = torch.tensor([70])
    run = KernelProgram(
        lambda q, s, m, keys, values: ops.attention(q, keys, values, s, m, None, 0.3, 0.0, 0, 0, False),
        [query, start, mask],
        keys=keys,
        values=values,
    )
    want = attention(query, keys, values, start, mask, None, 0.3, 0.0)
    torch.testing.assert_close(of_both(run, query, start, mask)[0], want, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verify of 5", "many rows in parts", "heads side by side, in parts"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_nan_in_a_key_that_a_token_sees_makes_its_output_nan(name: str, dtype: torch.dtype) -> None:
    """Such a row weighed nothing, and the output was a number; in a verify, tokens before the row still have theirs."""
    query, keys, values, start = case(name, dtype)
    keys[:, start + query.shape[1] // 2, 0, 1] = NAN
    run = KernelProgram(
        lambda q, s, keys, values: ops.attention(q, keys, values, s, None, None, 0.3, 0.0, 0, 0, False),
        [query, start],
        keys=keys,
        values=values,
    )
    want, got = attention(query, keys, values, start, None, None, 0.3, 0.0), of_both(run, query, start)[0]
    assert bool(want.isnan().any())
    torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_what_is_not_finite_goes_through_int8_rows_as_nan(number: float, where: str) -> None:
    """A row with it has a scale of NaN, and bytes as any: they were converted from NaN, which is undefined."""
    query, keys, values, start = case("verify of 5")
    key, value = keys[:, :5].clone(), values[:, :5].clone()
    {"query": query, "key": key, "value": value}[where][0, 2, 1, 3] = number
    rows = blank(*keys.shape[1:], values.shape[-1])

    def write_and_read(query: Tensor, key: Tensor, value: Tensor, start: Tensor, **rows: Tensor) -> list[Tensor]:
        ops.write_quantized_rows(key, value, *rows.values(), start)
        out = ops.quantized_attention(query, *rows.values(), start, None, value.shape[-1], 0.3, 0.0)
        return [out, *(each.clone() for each in rows.values())]

    inputs = query, key, value, start
    got, *written = of_both(KernelProgram(write_and_read, inputs, **vars(rows)), *inputs)
    rows.write(key, value, start)
    for mine, reference in zip(written[1::2], (rows.key_scales, rows.value_scales), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=0, equal_nan=True)
    want = quantized_attention(query, *vars(rows).values(), start, None, value.shape[-1], 0.3, 0.0)
    spoilt = torch.zeros_like(got, dtype=torch.bool)
    spoilt[(0, 2, 1) if where == "query" else (0, slice(2, None), slice(3, None))] = True  # three heads share keys and values
    assert got.isnan().equal(spoilt)
    numbers = want.isfinite()  # plain operators spoil tokens before the row, too
    assert not bool((numbers & spoilt).any())
    torch.testing.assert_close(got[numbers], want[numbers], rtol=5e-4, atol=5e-4)


def test_rounding_to_int8_is_defined_for_every_number() -> None:
    """NaN and infinities make a scale of NaN; what is too small for the inverse of its scale is 0."""
    quanta, scales = quantize_rows(torch.tensor([[1.0, NAN], [float("inf"), 1.0], [1e-38, -1e-38], [0.0, 0.0], [2.0, -1.0]]))
    assert quanta.tolist() == [[0, 0], [0, 0], [0, 0], [0, 0], [127, -64]]
    assert scales.isnan().tolist() == [True, True, False, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [5, 16, 41])
def test_rows_are_written_in_place(dtype: torch.dtype, dim: int) -> None:
    """float16 rounds to the nearest, to the even one of two; what is too large becomes infinite, and NaN stays."""
    rows, buffer, start = torch.randn(1, 3, 2, dim), torch.zeros(1, 9, 2, dim, dtype=dtype), torch.tensor([4])
    rows.view(-1)[:8] = torch.tensor([2049.0, 2051.0, -65520.0, 65519.0, 1e30, NAN, 1e-7, 3e-8])

    def write(rows: Tensor, start: Tensor, buffer: Tensor) -> Tensor:
        ops.write_rows(rows, buffer, start)
        return buffer * 1

    (written,) = KernelProgram(write, [rows, start], buffer=buffer)(rows, start)
    torch.testing.assert_close(written[:, 4:7], rows.to(dtype), rtol=0, atol=0, equal_nan=True)
    assert bool((written[:, [0, 1, 2, 3, 7, 8]] == 0).all())


@pytest.mark.slow
@pytest.mark.parametrize(("T", "D", "V"), [(1, 24, 24), (9, 22, 33)])
def test_int8_rows_are_written_in_place(T: int, D: int, V: int) -> None:
    """Over the border of two blocks, and nowhere else."""
    key, value, start = torch.randn(1, T, 3, D), torch.randn(1, T, 3, V), torch.tensor([62])
    rows = blank(128, 3, D, V)

    def write(key: Tensor, value: Tensor, start: Tensor, k: Tensor, ks: Tensor, v: Tensor, vs: Tensor) -> list[Tensor]:
        ops.write_quantized_rows(key, value, k, ks, v, vs, start)
        return [each.clone() for each in (k, ks, v, vs)]

    state = dict(zip(["k", "ks", "v", "vs"], vars(rows).values(), strict=True))
    written = of_both(KernelProgram(write, [key, value, start], **state), key, value, start)
    got = QuantizedRows(**dict(zip(vars(rows), written, strict=True))).dense(D, V)
    rows.write(key, value, start)
    others = [row for row in range(128) if not 62 <= row < 62 + T]
    for mine, want, original in zip(got, rows.dense(D, V), (key, value), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(mine[:, 62 : 62 + T], original, rtol=0, atol=float(original.abs().max()) / 250)
        assert bool(mine[:, others].isnan().all())


@pytest.mark.slow
def test_a_block_behind_the_last_row_is_refused() -> None:
    query, keys, values, _ = case("verify of 5")
    run = KernelProgram(
        lambda q, s, keys, values: ops.attention(q, keys, values, s, None, None, 0.3, 0.0, 0, 0, False),
        [query, torch.tensor([0])],
        keys=keys,
        values=values,
    )
    with pytest.raises(RuntimeError):
        run(query, torch.tensor([36]))


@pytest.mark.slow
def test_a_window_without_a_ring_is_refused() -> None:
    """With a mask it made the first row a position, and a forged one overflowed what there is to do."""
    query, keys, values, start = case("verify of 5")
    mask = torch.ones(query.shape[1], keys.shape[1], dtype=torch.bool)
    run = KernelProgram(
        lambda q, s, m, keys, values: ops.attention(q, keys, values, s, m, None, 0.3, 0.0, 0, 1 << 60, False),
        [query, start, mask],
        keys=keys,
        values=values,
    )
    with pytest.raises(RuntimeError):
        run(query, torch.tensor([1 << 62]), mask)


WINDOWS = {
    "decode": {"T": 1, "window": 5, "ring": 10, "R": 10, "start": 33},
    "decode before the ring is full": {"T": 1, "window": 5, "ring": 10, "R": 10, "start": 2},
    "verify of 5, around the end": {"T": 5, "window": 5, "ring": 10, "R": 10, "start": 27},
    "verify of 5, all window": {"T": 5, "window": 150, "ring": 155, "R": 155, "start": 1000},
    "chunk of 17 beside the ring": {"T": 17, "window": 5, "ring": 10, "R": 27, "start": 33},
    "first chunk": {"T": 17, "window": 5, "ring": 10, "R": 27, "start": 0},
    "chunk of 17 within the window": {"T": 17, "window": 23, "ring": 28, "R": 45, "start": 70},
}


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_attention_around_a_ring(name: str, chunked: bool) -> None:
    """Rows that no token sees hold NaN."""
    torch.manual_seed(0)
    T, window, ring, R, at = WINDOWS[name].values()
    query, keys, values, start = (
        torch.randn(1, T, 6, 24),
        torch.randn(1, R, 2, 24),
        torch.randn(1, R, 2, 24),
        torch.tensor([at]),
    )
    rows, block = Ring(size=ring, window=window, chunked=chunked), Block(start=start, count=start, length=T)
    unseen = ~rows.mask(block, rows.held(block, R)).any(0)
    keys[:, unseen], values[:, unseen] = NAN, NAN
    sees = (ring, window, chunked)
    run = KernelProgram(
        lambda q, s, keys, values: ops.attention(q, keys, values, s, None, None, 0.3, 0.0, *sees),
        [query, start],
        keys=keys,
        values=values,
    )
    want = attention(query, keys, values, start, None, None, 0.3, 0.0, *sees)
    assert not want.isnan().any()
    torch.testing.assert_close(run(query, start)[0], want, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("T", "count", "start"), [(3, 3, 7), (3, 2, 29), (25, 25, 4), (25, 19, 0), (5, 0, 11)])
def test_a_ring_takes_what_is_real(T: int, count: int, start: int) -> None:
    rows, buffer = torch.full((1, T, 2, 5), NAN), torch.randn(1, 9, 2, 5)
    rows[:, :count] = torch.randn(1, count, 2, 5)

    def write(rows: Tensor, start: Tensor, count: Tensor, buffer: Tensor) -> Tensor:
        ops.write_window(rows, buffer, start, count)
        return buffer.clone()

    inputs = (rows, torch.tensor([start]), torch.tensor([count]))
    (written,) = KernelProgram(write, inputs, buffer=buffer)(*inputs)
    for t in range(count):
        buffer[:, (start + t) % 9] = rows[:, t]
    assert written.equal(buffer)


@pytest.mark.slow
@pytest.mark.parametrize(("extent", "sinks"), [(3, None), (40, (6,)), (3, (1, 6, 17))])
@pytest.mark.parametrize("name", ["decode", "verify of 5, around the end", "chunk of 17 within the window"])
def test_attention_with_a_bias_by_distance(name: str, sinks: tuple[int, ...] | None, extent: int) -> None:
    """Over a ring, and over its rows as if they were all there are."""
    torch.manual_seed(0)
    T, window, ring, R, at = WINDOWS[name].values()
    query, keys, values = torch.randn(1, T, 6, 24), torch.randn(1, R, 2, 24), torch.randn(1, R, 2, 24)
    bias = torch.randn(1, T, 6, extent + 1) * 3
    given = None if sinks is None else torch.randn(sinks)[..., : T if len(sinks) > 1 else None].contiguous()
    for start, sees in ((at, (ring, window, False)), (R - T, (0, 0, False))):
        inputs = query, keys, values, torch.tensor([start]), bias, *([] if given is None else [given])

        def attend(*inputs: Tensor, sees: tuple[int, int, bool] = sees) -> Tensor:
            sinks = inputs[5] if len(inputs) > 5 else None
            out: Tensor = ops.biased_attention(*inputs[:5], sinks, 0.3, *sees)
            return out

        want = biased_attention(*inputs[:5], given, 0.3, *sees)
        torch.testing.assert_close(KernelProgram(attend, inputs)(*inputs)[0], want, rtol=1e-5, atol=2e-6)


LAST, MANY = 690, 70
"""Tokens of a text, whose keys are in two parts, and those at its end that are read: together they lie side by side."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "ring", "bias"])
def test_an_output_has_the_same_bits_whatever_is_read_beside_it(kind: str) -> None:
    """One by one, in blocks of 2 and 5, and all together, on one thread and on two; odd sizes."""
    torch.manual_seed(0)
    D, V, ring, window = 43, 77, 571, 566
    query, keys, values = torch.randn(1, MANY, 6, D), torch.randn(1, LAST, 2, D), torch.randn(1, LAST, 2, V)
    if kind == "float16":
        keys, values = keys.half(), values.half()
    bias, sinks = torch.randn(1, MANY, 6, 101), torch.randn(1, 6, MANY)
    rows = blank(LAST, 2, D, V)
    rows.write(keys.float(), values.float(), torch.tensor([0]))

    def attend(query: Tensor, start: Tensor, *rows: Tensor) -> Tensor:
        out: Tensor
        if kind == "int8":
            out = ops.quantized_attention(query, *rows, start, None, V, 0.3, 3.0)
        elif kind == "bias":
            out = ops.biased_attention(query, *rows[:2], start, *rows[2:], 0.3, 0, 0, False)
        else:
            sees = (ring, window, False) if kind == "ring" else (0, 0, False)
            out = ops.attention(query, *rows, start, None, None, 0.3, 3.0, *sees)
        return out

    def held(first: int, end: int) -> list[Tensor]:
        """Return the rows that tokens first..end see; in a ring, or, for more than it spares, beside it."""
        if kind == "int8":
            return list(vars(rows).values())
        if kind != "ring":
            return [keys, values]
        beside = end - first if end - first > ring - window + 1 else 0
        written = range(max(0, (first if beside else end) - ring), first if beside else end)
        found = []
        for each in (keys, values):
            held = torch.full((1, ring + beside, *each.shape[2:]), NAN)
            held[:, [position % ring for position in written]] = each[:, list(written)]
            held[:, ring:] = each[:, end - beside : end]
            found.append(held)
        return found

    def read(size: int) -> Tensor:
        blocks = [(at, LAST - MANY + at) for at in range(0, MANY, size)]
        inputs = [[query[:, at : at + size], torch.tensor([first]), *held(first, first + size)] for at, first in blocks]
        if kind == "bias":
            for given, (at, _) in zip(inputs, blocks, strict=True):
                given += [bias[:, at : at + size], sinks[..., at : at + size].contiguous()]
        program = KernelProgram(attend, inputs[0])
        return torch.cat([program(*each)[0] for each in inputs], 1)

    set_threads(1)
    alone = read(1)
    assert alone.isfinite().all()
    for size in (2, 5, MANY):
        set_threads(2)
        assert read(size).equal(alone), size
