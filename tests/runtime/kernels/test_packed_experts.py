"""Experts over packed weights: the kernel against its reference, and whole models against transformers' own experts."""

from __future__ import annotations

import copy

import pytest
import torch
from kernel_program import KernelProgram, both
from packed_weights import packed_weight
from tiny import tiny_config, tiny_model
from zoo import by_kind

from hybridge.export.quantize.quantize import pack_weights
from hybridge.export.weights import PackedExperts
from hybridge.runtime.artifact.options import ExportOptions

CHOICES = [3], [4, 0, 4, 2, 0, 4, 4], [1] * 13 + [5] * 5
"""One row; some experts, some of them twice; more rows than a tile."""


def experts(bits: int, rows: int, columns: int, *, integer: bool, bias: bool) -> PackedExperts:
    torch.manual_seed(bits)
    weight = torch.nn.functional.pad(torch.randn(6, rows, columns), (0, 0, 0, -rows % 16)).flatten(0, 1)
    return PackedExperts(packed_weight(weight, bits, 8), rows, torch.randn(6, rows) if bias else None, integer=integer)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "integer"), [(4, True), (8, True), (4, False), (8, False), (32, False)])
def test_kernel_is_its_reference(bits: int, integer: bool) -> None:
    layers, inputs, choices = [], [], []
    for rows, columns in ((17, 24), (131, 136)):
        layers += [experts(bits, rows, columns, integer=integer, bias=rows == 17)] * len(CHOICES)
        choices += [torch.tensor(each) for each in CHOICES]
        inputs += [torch.randn(len(each), columns) for each in CHOICES]
    for got, want in both(layers, inputs, choices):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("expert", [-1, 6])
def test_an_expert_that_there_is_not_is_refused(expert: int) -> None:
    layer, x, chosen = experts(32, 17, 24, integer=False, bias=False), torch.randn(2, 24), torch.tensor([0, 5])
    program = KernelProgram(layer, [x, chosen])
    assert program(x, chosen)[0].isfinite().all()
    with pytest.raises(RuntimeError, match="execute"):
        program(x, torch.tensor([0, expert]))


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss", "jamba", "nemotron_h", "lfm2_moe"])
def test_experts_are_packed(model_type: str) -> None:
    model = tiny_model(tiny_config(model_type))
    pack_weights(model, ExportOptions(kernels="hybridge"))
    assert any(isinstance(module, PackedExperts) for module in model.modules())


@pytest.mark.parametrize("model_type", by_kind())
def test_a_packed_model_is_the_same_in_eager_code(model_type: str) -> None:
    """What an artifact is validated against: some of transformers' code reads weights instead of calling layers."""
    model = tiny_model(tiny_config(model_type))
    packed = copy.deepcopy(model)
    pack_weights(packed, ExportOptions(kernels="hybridge"))
    tokens = torch.tensor([[5, 7, 1, 9, 3]])
    with torch.no_grad():
        want, got = (each(input_ids=tokens, use_cache=False).logits for each in (model, packed))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
