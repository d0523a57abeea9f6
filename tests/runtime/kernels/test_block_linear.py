"""Weights in blocks: the layout and its factors, and the kernels against their twin for every kind, on odd sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_program import KernelProgram, both
from packed_weights import HALVES, KINDS, block_weight, packed_blocks
from torch import Tensor

import hybridge.export.operators.linear  # noqa: F401  registers the operator
from hybridge.export.operators.linear import pack, unpack, weights
from hybridge.export.weights import PackedEmbedding, PackedExperts, PackedLinear, PackedWeight
from hybridge.runtime.binding.library import set_threads

EVERY = [*KINDS, *HALVES]
FEW = ("Q4_1", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4", *HALVES)
"""One for each layout of numbers and factors."""
LAYOUTS = [each if each in FEW else pytest.param(each, marks=pytest.mark.thorough) for each in EVERY]


def columns_of(name: str, most: int = 320) -> int:
    """Rows of a few superblocks, groups or numbers."""
    return most // KINDS[name].columns * KINDS[name].columns or KINDS[name].columns if name in KINDS else 37


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_panels_hold_the_numbers(name: str, rows: int) -> None:
    weight = block_weight(name, rows, columns_of(name))
    packed = PackedWeight.of(weight)
    assert unpack(packed.packed, rows).equal(weight.quanta)
    assert weights(packed.packed, packed.factors, rows).equal(weight.numbers())


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "MXFP4", "Q4_1"])
def test_numbers_are_what_the_blocks_say(name: str) -> None:
    """One number after the other, by the formulas of panels.h."""
    weight, kind = block_weight(name, 3, KINDS[name].columns * 2), KINDS[name]
    scales, minima, superscales, table = weight.factors
    found = weight.numbers()
    for row in range(3):
        for k in range(found.shape[1]):
            g, u = k // kind.group, int(weight.quanta[row, k]) + (1 << (kind.bits - 1))
            assert scales is not None
            scale = 2.0 ** (int(scales[row, g]) - 128) if kind.exponents else float(scales[row, g])
            low = 0.0 if minima is None else float(minima[row, g])
            if superscales is not None:
                s = g // kind.groups * (1 if minima is None else 2)
                scale *= float(superscales[row, s])
                low *= float(superscales[row, s + 1]) if minima is not None else 0.0
            whole = u if minima is not None else u - (1 << (kind.bits - 1))
            want = (float(table[u]) if table is not None else whole) * scale + low
            assert abs(float(found[row, k]) - want) <= 1e-6 * abs(want) + 1e-7


@pytest.mark.slow
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_kernel_is_its_twin(name: str, integer: bool) -> None:
    """One to 17 tokens meet every size of tile."""
    if integer and name in HALVES:
        return
    torch.manual_seed(1)
    layers, inputs = [], []
    for rows, tokens in ((37, 1), (131, 17), (16, 6)):
        weight, bias = packed_blocks(name, rows, columns_of(name)), torch.randn(rows) if tokens > 1 else None
        layers.append(PackedLinear(weight, bias, integer=integer))
        inputs.append(torch.randn(1, tokens, columns_of(name)))
    inputs[-1].sign_()[:, :2] = torch.tensor([[1.0], [-1.0]])  # the largest numbers, of one sign and of both
    for got, want in both(layers, inputs):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_some_outputs_are_those_of_the_whole_layer(name: str, integer: bool) -> None:
    """Bit for bit, with and without the last panel, which is half full."""
    if integer and name in HALVES:
        return
    torch.manual_seed(3)
    layers, inputs, chosen = [], [], []
    for rows, tokens, panels in ((131, 1, [0, 3, 8]), (131, 6, [1, 2, 7]), (37, 17, [2]), (96, 3, [0, 5])):
        layer = PackedLinear(packed_blocks(name, rows, columns_of(name)), torch.randn(rows), integer=integer)
        ids = torch.cat([torch.arange(16 * panel, min(rows, 16 * panel + 16)) for panel in panels])
        x, few = torch.randn(1, tokens, columns_of(name)), layer.some_outputs(ids)
        assert few.packed is layer.packed
        want = layer(x)[..., ids]
        torch.testing.assert_close(few(x), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
        layers += [layer, few]
        inputs += [x, x.clone()]
        chosen.append(ids)
    outputs = [got for got, _ in both(layers, inputs)]
    for ids, whole, some in zip(chosen * 2, outputs[::2], outputs[1::2], strict=True):
        assert some.equal(whole[..., ids])


@pytest.mark.slow
@pytest.mark.parametrize("integer", [True, False])
def test_layers_over_one_input_are_those_alone(integer: bool) -> None:
    """Bit for bit, whether they meet the same rounded input or each another, on one thread and on two."""
    torch.manual_seed(4)
    kinds = {"Q4_K": 37, "Q6_K": 16, "Q4_1": 1100, "Q4_0": 48, "Q8_0": 131, "Q5_K": 20}
    layers = [PackedLinear(packed_blocks(each, rows, 256), torch.randn(rows), integer=integer) for each, rows in kinds.items()]
    layers.append(PackedLinear(packed_blocks("Q4_K", 300, 256), None, integer=integer))
    weights = [part for each in layers for part in (each.packed, *each.factors, each.bias)]
    rows = [each.out_features for each in layers]
    for tokens in (1, 9):
        x = torch.randn(1, tokens, 256)

        def joined(x: Tensor) -> list[Tensor]:
            return [*torch.ops.hybridge.block_linears(x, weights, rows, integer)]

        together, alone = KernelProgram(joined, [x]), KernelProgram(lambda x: [each(x) for each in layers], [x])
        for threads in (1, 2):
            set_threads(threads)
            for one, other in zip(together(x), alone(x), strict=True):
                assert one.equal(other)


WRONG_PANELS = {
    "a panel that there is not": ([0, 3], 32),
    "a panel below the first": ([-1, 1], 32),
    "a panel twice": ([1, 1], 32),
    "panels out of order": ([1, 0], 32),
    "more outputs than the last panel has": ([0, 2], 22),
    "more outputs than panels": ([0, 1], 33),
    "fewer outputs than panels": ([0, 1], 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG_PANELS)
def test_panels_that_a_weight_has_not_are_refused(what: str) -> None:
    panels, outputs = WRONG_PANELS[what]
    weight, x = packed_blocks("Q4_1", 37, columns_of("Q4_1")), torch.randn(1, 2, columns_of("Q4_1"))
    layer = PackedLinear(weight, None, integer=True)

    def call(x: Tensor, panels: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.panel_linear(x, layer.packed, *layer.factors, None, panels, 37, outputs, True)
        return out

    program = KernelProgram(call, [x, torch.tensor([0, 1])])
    with pytest.raises(RuntimeError):
        program(x, torch.tensor(panels))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_embedding_kernel_finds_rows(name: str) -> None:
    weight, tokens = packed_blocks(name, 35, columns_of(name)), torch.tensor([[0, 34, 16, 15]])
    layer = PackedEmbedding(weight, 2.0)
    program = KernelProgram(layer, [tokens])
    torch.testing.assert_close(program(tokens)[0], weights(weight.packed, weight.factors, 35)[tokens] * 2, rtol=1e-6, atol=1e-6)
    with pytest.raises(RuntimeError):
        program(torch.tensor([[0, 34, 35, 0]]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Q4_1", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_experts_have_blocks_too(name: str) -> None:
    torch.manual_seed(2)
    columns, rows, count = columns_of(name), 17, 5
    stack = packed_blocks(name, count * 32, columns)
    chosen = torch.tensor([4, 0, 4, 2, 0, 4, 4])
    layer, x = PackedExperts(stack, rows, torch.randn(count, rows), integer=True), torch.randn(len(chosen), columns)
    want = layer(x, chosen)
    got = KernelProgram(layer, [x, chosen])(x, chosen)[0]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("name", ["Q4_1", "Q5_K", "Q6_K", "IQ4_NL"])
def test_nan_stays_nan(name: str, integer: bool) -> None:
    """A refused call says so with NaN."""
    x = torch.randn(1, 2, columns_of(name))
    x[0, 1, 5] = float("nan")
    out = KernelProgram(PackedLinear(packed_blocks(name, 17, x.shape[2]), None, integer=integer), [x])(x)[0]
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()


def parts(name: str) -> dict[str, Tensor | None]:
    weight = packed_blocks(name, 20, columns_of(name))
    return {"packed": weight.packed.data} | weight.factors._asdict()


def shorter(part: Tensor) -> Tensor:
    """One less of each of the middle dimension, which stands for columns or groups."""
    return part[:, :-1].contiguous()


WRONG: dict[str, tuple[str, Any]] = {
    "numbers of too few columns": ("packed", shorter),
    "a panel too few": ("packed", lambda part: part[:1].contiguous()),
    "numbers of another type": ("packed", lambda part: part.view(torch.int8)),
    "scales of too few groups": ("scales", shorter),
    "scales of too few panels": ("scales", lambda part: part[:1].contiguous()),
    "scales in float32": ("scales", lambda part: part.float()),
    "minima of too few groups": ("minima", shorter),
    "minima in float32": ("minima", lambda part: part.float()),
    "superscales of too few superblocks": ("superscales", shorter),
    "superscales in float32": ("superscales", lambda part: part.float()),
    "no superscales": ("superscales", lambda part: None),
    "a table beside minima": ("table", lambda part: torch.zeros(16, dtype=torch.int8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_together_is_refused(what: str) -> None:
    name, change = WRONG[what]
    given = parts("Q4_K")
    given[name] = change(given[name])
    x, present = torch.randn(1, 2, columns_of("Q4_K")), [key for key in given if given[key] is not None]

    def call(x: Tensor, *rest: Tensor) -> Tensor:
        every = dict.fromkeys(given) | dict(zip(present, rest, strict=True))
        out: Tensor = torch.ops.hybridge.block_linear(x, *every.values(), None, 20, True)
        return out

    inputs = [x, *(given[key] for key in present)]
    program = KernelProgram(call, inputs)  # which knows shapes alone: the twin would refuse it itself
    with pytest.raises(RuntimeError):
        program(*inputs)


@pytest.mark.slow
def test_a_table_of_another_size_is_refused() -> None:
    given = parts("IQ4_NL")
    x = torch.randn(1, 2, columns_of("IQ4_NL"))
    packed, scales = given["packed"], given["scales"]
    assert packed is not None
    assert scales is not None

    def call(x: Tensor, table: Tensor) -> Tensor:
        out: Tensor = torch.ops.hybridge.block_linear(x, packed, scales, None, None, table, None, 20, True)
        return out

    with pytest.raises(RuntimeError):
        KernelProgram(call, [x, torch.zeros(15, dtype=torch.int8)])(x, torch.zeros(15, dtype=torch.int8))


def test_factors_go_through_panels_and_back() -> None:
    factors = block_weight("Q4_K", 37, 512).factors
    back = factors.in_panels().in_rows(37)
    assert all(a is None or a.equal(b) for a, b in zip(factors, back, strict=True))


def test_bits_that_there_are_not_are_no_layout() -> None:
    assert pack(torch.zeros(16, 32, dtype=torch.int8), 5).shape == (1, 1, 320)
    assert pack(torch.zeros(16, 32, dtype=torch.int8), 6).shape == (1, 2, 192)
