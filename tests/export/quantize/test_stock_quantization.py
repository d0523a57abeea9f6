"""Fewer bits for the stock runtime: the numbers that XNNPACK and ExecuTorch's embeddings compute with, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny import tiny_config, tiny_model
from torch import Tensor, nn

from hybridge.errors import UsageError
from hybridge.export.quantize.quantize import check_quantization, quantize
from hybridge.export.quantize.rounding import round_to_nearest
from hybridge.export.quantize.stock import StockEmbedding, StockLinear, StockWeight
from hybridge.export.weights import Grid
from hybridge.export.write.manifest import parameter_count, weight_bytes
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.pinned import operator_libraries

EIGHT_BITS = {"quantize": "8da4w"}
FOUR_BITS = EIGHT_BITS | {"embedding_quantize": "4w"}
WIDE = {"hidden_size": 64, "intermediate_size": 96}


def test_a_linear_layer_is_the_product_of_rounded_numbers() -> None:
    weight, bias, x = torch.randn(35, 96), torch.randn(35), torch.randn(2, 5, 96)
    stock = rounded(weight, 4)
    table = numbers(stock)
    assert torch.equal(stock.scales, stock.scales.bfloat16().float())
    torch.testing.assert_close(table, weight, rtol=0, atol=float(stock.scales.max()) * (0.5 + 8 * 2**-8))  # bfloat16 scales
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    step = (high - low) / 255
    out = StockLinear(stock, bias)(x)
    bound = step / 2 * table.abs().sum(1) * 1.01 + 1e-4  # half a step for every column
    assert ((out - F.linear(x, table, bias)).abs() <= bound).all()
    assert not torch.allclose(out, F.linear(x, table, bias), atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_an_embedding_finds_rows(bits: int) -> None:
    stock = rounded(torch.randn(35, 96), bits)
    table = numbers(stock)
    tokens = torch.tensor([[0, 34, 16]])
    torch.testing.assert_close(StockEmbedding(stock, 2.0)(tokens), table[tokens] * 2)


def test_a_tied_head_has_the_numbers_of_its_embedding() -> None:
    model = tied()
    quantize(model, ExportOptions(kernels="llm", **FOUR_BITS))
    head: Any = model.get_output_embeddings()
    everything = torch.arange(model.config.vocab_size)
    torch.testing.assert_close(model.get_input_embeddings()(everything), numbers(head))


def test_a_tied_head_stays_stored_once_where_its_embedding_has_32_bits() -> None:
    model = tied()
    quantize(model, ExportOptions(kernels="llm", **EIGHT_BITS))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    left = {name for name, module in model.named_modules() if type(module) is nn.Linear}
    assert {name.rpartition(".")[2] for name in left} == {"in_proj_a", "in_proj_b", "lm_head"}


def test_weights_count_as_a_program_has_them() -> None:
    layer = StockLinear(rounded(torch.randn(64, 96), 4), torch.randn(64))
    assert weight_bytes(layer) == 64 * 96 // 2 + 64 * 3 * 2 + 64 * 4
    assert parameter_count(layer) == 64 * 96 + 64


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"quantize": "8w"}, "--quantize 8w needs --kernels hybridge, not llm: XNNPACK multiplies 4-bit weights"),
        ({"quantize": "4w"}, "--quantize 4w needs --kernels hybridge"),
        (EIGHT_BITS | {"backend": "portable"}, "--quantize 8da4w needs --backend xnnpack or --kernels hybridge"),
        ({"embedding_quantize": "8w", "kernels": "aten"}, "--embedding-quantize 8w needs --kernels hybridge or llm"),
        (EIGHT_BITS | {"group_size": 24}, "--group-size 24 is not a multiple of 32"),
        ({"kv_cache": "int8"}, "--kv-cache int8 needs --kernels hybridge, not llm"),
    ],
)
def test_what_the_stock_runtime_cannot_run_is_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        check_quantization(ExportOptions(**({"kernels": "llm"} | chosen)))


@pytest.mark.parametrize(
    ("family", "sizes", "chosen", "message"),
    [
        ("qwen3_moe", {}, EIGHT_BITS, "quantizing a model with experts needs --kernels hybridge"),
        ("qwen3", WIDE, EIGHT_BITS | {"group_size": 128}, "groups of 128 do not divide; use --group-size 64"),
        ("qwen3", {"hidden_size": 48}, EIGHT_BITS, "groups of 32 do not divide; these kernels cannot have this model"),
        ("qwen3", WIDE | {"tie_word_embeddings": True}, {"embedding_quantize": "8w"}, "output layer is tied to its embedding"),
    ],
)
def test_models_that_it_cannot_run_are_refused(
    family: str, sizes: dict[str, Any], chosen: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        quantize(tiny_model(tiny_config(family, **sizes)), ExportOptions(**({"kernels": "llm"} | chosen)))


def test_a_program_needs_the_libraries_of_its_operators() -> None:
    def libraries(*operators: str) -> list[str]:
        namespaces = {name.partition("::")[0] for name in operators}
        return [path.name.partition(".")[0] for path in operator_libraries(namespaces)]

    assert libraries("aten::add.out", "hybridge::linear.out") == []
    both = "quantized_decomposed::embedding_4bit.out", "llama::update_cache.out"
    assert libraries(*both) == ["libcustom_ops_aot_lib", "libquantized_ops_aot_lib"]


def numbers(rounded: StockWeight | StockLinear) -> Tensor:
    """The weight [N, K] that whole numbers in groups of 32 and their scales stand for."""
    return (rounded.quanta.unflatten(1, (-1, 32)) * rounded.scales.unsqueeze(-1)).flatten(1)


def rounded(weight: Tensor, bits: int) -> StockWeight:
    return StockWeight(round_to_nearest("", weight, Grid(bits=bits, group=32, scale=torch.bfloat16)))


def tied() -> Any:
    model = tiny_model(tiny_config("qwen3_5_text", **WIDE, tie_word_embeddings=True))
    model.tie_weights()
    return model
