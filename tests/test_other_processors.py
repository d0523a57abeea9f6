"""The kernels' code for ARM64 and for x86-64 without AVX-512 or any vectors, run for real: emulated where it has to be."""

from __future__ import annotations

import platform

import pytest
import torch

import hybridge.runtime.kernels.activation  # noqa: F401  registers the operator
from hybridge.export.layers.packed_layers import PackedWeight
from hybridge.runtime.kernels.linear import packed_linear
from tests.helpers.cross_compiled import CALLED, CrossCompiled, arm, cross_compile, emulator, has_zig, sources, x86
from tests.helpers.once import once

IS_X86 = platform.machine() == "x86_64"
needs_arm = pytest.mark.skipif(not (has_zig() and emulator()), reason="needs the ziglang wheel and Debian's qemu-user-static")
needs_x86 = pytest.mark.skipif(not IS_X86, reason="for x86-64")

# Every kernel compiles for one ARM64 and one x86-64 processor; the others get those that are called below.
TARGETS = {
    "arm64-dotprod": arm("generic+v8_2a+dotprod+fullfp16", "max", sources()),
    "arm64-baseline": arm("generic", "cortex-a53", sources(*CALLED)),
    "x86-64-avx2": x86("haswell", sources(*CALLED)),
    "x86-64-baseline": x86("x86-64", sources()),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("arm64-dotprod", marks=needs_arm),
        pytest.param("arm64-baseline", marks=needs_arm),
        pytest.param("x86-64-avx2", marks=needs_x86),
        pytest.param("x86-64-baseline", marks=needs_x86),
    ],
)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CrossCompiled:
    target = TARGETS[request.param]
    once(tmp_path_factory, request.param, lambda _: cross_compile(target))
    return CrossCompiled(cross_compile(target), target.runner)


@pytest.mark.parametrize(("bits", "integer"), [(4, True), (8, True), (4, False), (8, False), (32, False)])
def test_packed_linear(kernels: CrossCompiled, bits: int, integer: bool) -> None:
    torch.manual_seed(0)
    weight, x, bias = PackedWeight(torch.randn(37, 48), bits, 16), torch.randn(1, 13, 48), torch.randn(37)
    out = torch.full((1, 13, 37), float("nan"))
    results = kernels(
        "packed_linear.out",
        x,
        weight.packed.data,
        weight.scales if weight.scales is None else weight.scales.data,
        bias,
        37,
        integer,
        out,
    )
    want = packed_linear(x, weight.packed, weight.scales, bias, 37, integer)
    torch.testing.assert_close(results[-1], want, rtol=1e-5, atol=1e-5)


def test_linear(kernels: CrossCompiled) -> None:
    x, weight, out = torch.randn(1, 5, 37), torch.randn(19, 37), torch.full((1, 5, 19), float("nan"))
    torch.testing.assert_close(kernels("linear.out", x, weight, None, out)[-1], x @ weight.T, rtol=1e-5, atol=1e-5)


def test_packed_embedding(kernels: CrossCompiled) -> None:
    table, tokens, out = torch.randn(35, 24), torch.tensor([[0, 34, 16]]), torch.full((1, 3, 24), float("nan"))
    packed = PackedWeight(table, 32, 8).packed.data
    assert kernels("packed_embedding.out", tokens, packed, None, 35, 24, out)[-1].equal(table[tokens])


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "tanh", "softplus"])
def test_activations(kernels: CrossCompiled, name: str) -> None:
    x, out = torch.randn(1, 3, 37) * 4, torch.full((1, 3, 37), float("nan"))
    want = torch.ops.hybridge.activation(x, name)
    torch.testing.assert_close(kernels("activation.out", x, name, out)[-1], want, rtol=1e-5, atol=1e-6)


def test_permute(kernels: CrossCompiled) -> None:
    x, out = torch.randn(3, 5, 2, 17), torch.full((5, 3, 17, 2), float("nan"))
    assert kernels("permute.out", x, [1, 0, 3, 2], out)[-1].equal(x.permute(1, 0, 3, 2))
