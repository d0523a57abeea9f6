"""Linear layers over panels: layout, kernels against their reference, and what a model's quantization refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_program import KernelProgram, both
from packed_weights import packed_weight
from tiny import tiny_config, tiny_model
from torch import Tensor, nn

from hybridge.errors import UsageError
from hybridge.export.operators.linear import pack, unpack, weights
from hybridge.export.quantize.quantize import check_quantization, pack_weights
from hybridge.export.weights import PackedEmbedding, PackedLinear
from hybridge.runtime.artifact.options import ExportOptions

SIZES = [(1, 8, 8), (17, 24, 8), (40, 64, 32), (131, 136, 8)]


@pytest.mark.slow
@given(st.sampled_from([4, 8]), st.integers(1, 40), st.integers(1, 5))
def test_unpack_undoes_pack(bits: int, rows: int, blocks: int) -> None:
    high = 1 << (bits - 1)
    quanta = torch.randint(-high, high, (rows, 8 * blocks), dtype=torch.int8)
    assert unpack(pack(quanta, bits), rows).equal(quanta)


@pytest.mark.parametrize(("bits", "step"), [(4, 1 / 7.5), (8, 1 / 127)])
def test_a_packed_weight_is_off_by_half_a_step_at_most(bits: int, step: float) -> None:
    weight = torch.randn(37, 64)
    packed = packed_weight(weight, bits, 16)
    error = (weights(packed.packed, packed.factors, 37) - weight).abs().unflatten(1, (4, 16)).amax(-1)
    largest = weight.abs().unflatten(1, (4, 16)).amax(-1)
    # The largest positive value lies half a step beyond the largest whole number, and float16 rounds the step.
    assert bool((error <= largest * (step * 0.5 + 2.0**-10)).all())


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "integer"), [(4, True), (8, True), (4, False), (8, False), (32, False)])
def test_kernel_is_its_reference(bits: int, integer: bool) -> None:
    torch.manual_seed(bits)
    layers, inputs = [], []
    for (rows, columns, group), tokens in zip(SIZES, (1, 5, 17, 13), strict=True):
        bias = torch.randn(rows) if tokens % 2 else None
        layers.append(PackedLinear(packed_weight(torch.randn(rows, columns), bits, group), bias, integer=integer))
        inputs.append(torch.randn(1, tokens, columns))
    for got, want in both(layers, inputs):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "integer"), [(4, True), (8, False), (32, False)])
@pytest.mark.parametrize("column", [3, 23], ids=["in lanes", "after them"])
def test_nan_stays_nan(bits: int, integer: bool, column: int) -> None:
    """A refused call says so with NaN."""
    x = torch.randn(1, 2, 24)
    x[0, 1, column] = float("nan")
    layer = PackedLinear(packed_weight(torch.randn(17, 24), bits, 24), None, integer=integer)
    for out in (KernelProgram(layer, [x])(x)[0], layer(x)):
        assert out[0, 1].isnan().all()
        assert not out[0, 0].isnan().any()


def test_rounded_activations_are_within_half_a_step() -> None:
    x = torch.randn(1, 3, 64) * torch.logspace(-3, 3, 64)
    weight = packed_weight(torch.eye(64), 8, 32)
    exact, out = (PackedLinear(weight, None, integer=integer)(x) for integer in (False, True))
    step = x.unflatten(-1, (2, 32)).abs().amax(-1, keepdim=True) / 127
    error = (out - exact).abs().unflatten(-1, (2, 32))
    assert bool((error <= step * 0.51).all())


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [4, 8])
def test_float_kernel_over_rows(tokens: int) -> None:
    linear, x = nn.Linear(37, 19).requires_grad_(False), torch.randn(1, tokens, 37)
    out = _float_kernel(linear, x)
    torch.testing.assert_close(out, linear(x), rtol=1e-5, atol=1e-5)
    assert torch.equal(out[:, -1:], _float_kernel(linear, x[:, -1:]))  # whatever is beside a token


def _float_kernel(linear: nn.Linear, x: Tensor) -> Tensor:
    return KernelProgram(lambda x, w, b: torch.ops.hybridge.linear(x, w, b), [x], w=linear.weight, b=linear.bias)(x)[0]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8, 32])
def test_embedding_kernel_finds_rows(bits: int) -> None:
    weight = packed_weight(torch.randn(35, 24), bits, 8)
    tokens = torch.tensor([[0, 34, 16, 15]])
    table = weights(weight.packed, weight.factors, 35)
    out = KernelProgram(PackedEmbedding(weight, 2.0), [tokens])(tokens)[0]
    torch.testing.assert_close(out, table[tokens] * 2)


@pytest.mark.slow
def test_a_token_out_of_range_is_refused() -> None:
    program = KernelProgram(PackedEmbedding(packed_weight(torch.randn(35, 24), 4, 8), 1.0), [torch.tensor([[0]])])
    with pytest.raises(RuntimeError):
        program(torch.tensor([[35]]))


def test_a_tied_head_shares_the_packed_embedding() -> None:
    model = tiny_model(tiny_config("qwen3_5_text", tie_word_embeddings=True))
    model.tie_weights()
    pack_weights(model, options(quantize="8da4w", embedding_quantize="8w", group_size=8))
    head: Any = model.get_output_embeddings()
    assert head.packed is model.get_input_embeddings().packed
    assert not any(type(module) is nn.Linear and module.out_features > 8 for module in model.modules())


def test_a_model_that_asks_for_its_embeddings_device_runs() -> None:
    model = tiny_model(tiny_config("llama4_text", 1))
    tokens = torch.arange(5)[None]
    want = model(tokens, use_cache=False).logits
    pack_weights(model, options())
    torch.testing.assert_close(model(tokens, use_cache=False).logits, want)


def test_scaled_embeddings_keep_their_factor() -> None:
    model = tiny_model(tiny_config("gemma3_text"))
    tokens = torch.arange(5)[None]
    want = model.get_input_embeddings()(tokens)
    pack_weights(model, options(embedding_quantize="8w", group_size=8))
    torch.testing.assert_close(model.get_input_embeddings()(tokens), want, rtol=0.02, atol=0.02)


def test_groups_that_do_not_divide_are_refused_with_a_size_that_does() -> None:
    with pytest.raises(UsageError, match=r"groups of 64 do not divide; use --group-size"):
        pack_weights(tiny_model(tiny_config("qwen3")), options(quantize="4w", group_size=64))


def test_kernels_that_cannot_run_a_quantization_are_refused() -> None:
    with pytest.raises(UsageError, match="not a multiple of 8"):
        check_quantization(options(quantize="8da4w", group_size=12))


def options(**choices: Any) -> ExportOptions:
    return ExportOptions(kernels="hybridge", **choices)
