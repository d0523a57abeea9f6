"""The kernels in every instruction set, of x86-64 and ARM64, run for real: emulated where this processor is another.

test_lesser_instruction_sets.py has what this processor can run by itself.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import recurrences
import torch
from cross_compiled import CrossCompiled, Target, arm, cross_compile, emulator, has_zig, x86
from packed_weights import HALVES, KINDS, packed_blocks, packed_weight
from recurrences import CASES
from torch import Tensor

import hybridge.export.operators.attention
import hybridge.export.operators.elementwise  # noqa: F401  registers the operators
from hybridge.cache.operations.quantized_rows import QuantizedRows
from hybridge.export.operators.linear import weights
from hybridge.export.weights import PackedLinear, PackedWeight

pytestmark = pytest.mark.thorough

IS_X86 = platform.machine() == "x86_64"
needs_arm = pytest.mark.skipif(not (has_zig() and emulator("aarch64")), reason="needs ARM64: apt-get install qemu-user-static")
needs_x86 = pytest.mark.skipif(not IS_X86, reason="for x86-64")
needs_qemu = pytest.mark.skipif(not (IS_X86 and emulator("x86_64")), reason="needs qemu: apt-get install qemu-user-static")

# Which processor is emulated, none for this one, and the instruction set that is asked for, none for the best.
X86 = [pytest.param((x86, None, name), marks=needs_x86, id=name) for name in ("plain", "avx2", "avxvnni", "avx512vnni")]
ARM = [
    pytest.param((arm, cpu, name), marks=needs_arm, id=f"{cpu}-{name or 'chosen'}")
    for cpu, name in (("cortex-a53", ""), ("neoverse-n1", ""), ("max", ""), ("max", "dotprod"))
]
# What an older processor runs: an instruction that it lacks, in whatever the linker kept of several copies, would end it.
OLDER_X86 = [pytest.param((x86, cpu, ""), marks=needs_qemu, id=cpu) for cpu in ("Nehalem", "Haswell")]


def program(make: object, cpu: str | None, name: str) -> CrossCompiled:
    assert callable(make)
    target: Target = make()
    runner = [emulator(target.machine) or "", "-cpu", cpu] if cpu else []
    return CrossCompiled(cross_compile(target), runner, name)


@pytest.fixture(scope="module", params=[*X86, *ARM, *OLDER_X86])
def kernels(request: pytest.FixtureRequest) -> CrossCompiled:
    made = program(*request.param)
    chosen, _, there = made.chosen().partition(" of ")
    if request.param[2] and chosen == "(null)":
        pytest.skip(f"this processor has {there}")
    return made


TOKENS = 33  # attention has them side by side


def same_in_blocks(read: Callable[[int, int], Tensor], whole: Tensor) -> None:
    """Read tokens at..end, alone and in blocks of up to 31: they have the bits that they have among all."""
    for at, count in (
        (0, 1),
        (17, 1),
        (32, 1),
        (3, 2),
        (1, 3),
        (5, 4),
        (2, 5),
        (9, 6),
        (0, 7),
        (1, 8),
        (4, 9),
        (1, 12),
        (2, 31),
    ):
        assert read(at, at + count).equal(whole[:, at : at + count]), (at, count)


def product(kernels: CrossCompiled, weight: PackedWeight, x: Tensor, bias: Tensor | None, rows: int, integer: bool) -> Tensor:
    out = torch.full((1, x.shape[1], rows), float("nan"))
    return kernels("block_linear.out", x, *parts(weight), bias, rows, integer, out)[-1]


@pytest.mark.parametrize(("bits", "integer"), [(4, True), (8, True), (4, False), (8, False), (32, False)])
def test_packed_linear(kernels: CrossCompiled, bits: int, integer: bool) -> None:
    torch.manual_seed(0)
    weight, x, bias = packed_weight(torch.randn(37, 48), bits, 16), torch.randn(1, 13, 48), torch.randn(37)
    out = product(kernels, weight, x, bias, 37, integer)
    want = PackedLinear(weight, bias, integer=integer)(x)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)


def parts(weight: PackedWeight) -> list[Tensor | None]:
    """Return the tensors that operators take of a weight."""
    return [None if part is None else part.data for part in (weight.packed, *weight.factors)]


@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("name", [*KINDS, *HALVES])
def test_blocks(kernels: CrossCompiled, name: str, integer: bool) -> None:
    """Blocks meet every size of tile, rows of a half panel its end; none changes a token's bits."""
    if integer and name in HALVES:
        return
    torch.manual_seed(0)
    columns = 2 * KINDS[name].columns if name in KINDS else 37
    weight = packed_blocks(name, 23, columns)
    x = torch.randn(1, TOKENS, columns)
    want = PackedLinear(weight, None, integer=integer)(x)
    first = product(kernels, weight, x, None, 23, integer)
    torch.testing.assert_close(first, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))
    same_in_blocks(lambda at, end: product(kernels, weight, x[:, at:end].contiguous(), None, 23, integer), first)


@pytest.mark.parametrize("name", [*KINDS, *HALVES])
def test_some_outputs_of_blocks(kernels: CrossCompiled, name: str) -> None:
    columns = 2 * KINDS[name].columns if name in KINDS else 37
    layer = PackedLinear(packed_blocks(name, 39, columns), torch.randn(39), integer=name not in HALVES)
    x, ids = torch.randn(1, 5, columns), torch.tensor([*range(16), *range(32, 39)])
    given = [None if part is None else part.data for part in (layer.packed, *layer.factors, layer.bias)]
    out, panels = torch.full((1, 5, len(ids)), float("nan")), torch.tensor([0, 2])
    got = kernels("panel_linear.out", x, *given, panels, 39, len(ids), layer.integer, out)[-1]
    want = layer(x)[..., ids]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("name", [*KINDS, *HALVES])
def test_rows_of_blocks(kernels: CrossCompiled, name: str) -> None:
    columns = 2 * KINDS[name].columns if name in KINDS else 37
    weight, tokens, out = (
        packed_blocks(name, 23, columns),
        torch.tensor([[0, 22, 16]]),
        torch.full((1, 3, columns), float("nan")),
    )
    want = weights(weight.packed, weight.factors, 23)[tokens]
    torch.testing.assert_close(
        kernels("block_embedding.out", tokens, *parts(weight), 23, columns, out)[-1], want, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "group"), [(72, 72), (48, 24), (16, 8)])
def test_whole_numbers_are_exact(kernels: CrossCompiled, bits: int, columns: int, group: int) -> None:
    """One to 17 tokens meet every size of tile, the groups every tail; some sums are the largest that there can be."""
    torch.manual_seed(bits)
    x, weight = whole_numbers(17, columns, group), packed_weight(torch.randn(19, columns), bits, group)
    assert weight.factors.scales is not None
    weight.factors.scales.data.fill_(0.5)
    weight.packed.data[0, :, :16] = 0xFF if bits == 4 else -127  # the first four rows
    want = PackedLinear(weight, None, integer=True)(x)
    for tokens in range(1, 18):
        out = product(kernels, weight, x[:, :tokens].contiguous(), None, 19, True)
        assert out.equal(want[:, :tokens]), tokens


def whole_numbers(tokens: int, columns: int, group: int) -> Tensor:
    """Tokens that rounding leaves as they are: -127 to 127, with 127 in each group; of every third all are the largest."""
    x = torch.randint(-127, 128, (1, tokens, columns)).float()
    x[..., ::group] = 127
    x[:, ::3] = torch.tensor(127.0).copysign(x[:, ::3, :1] - 254 * (torch.arange(tokens)[::3, None] % 2))
    return x


class Emulated:
    """Our operators by the kernels of a processor; what they write in place is written."""

    def __init__(self, kernels: CrossCompiled) -> None:
        self.kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        def call(*given: Any) -> Tensor:
            like = getattr(torch.ops.hybridge, name)(*(x.to("meta") if isinstance(x, Tensor) else x for x in given))
            *found, answer = self.kernels(f"{name}.out", *given, torch.full(like.shape, -1, dtype=like.dtype))
            for x, after in zip((x for x in given if isinstance(x, Tensor)), found, strict=True):
                x.copy_(after)
            return answer

        return call


@pytest.mark.parametrize("case", CASES)
def test_a_recurrence_has_the_same_bits_in_any_block(
    kernels: CrossCompiled, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    recurrence = CASES[case]()
    inputs = recurrence.inputs(TOKENS, TOKENS)
    monkeypatch.setattr(recurrences, "ops", Emulated(kernels))

    def read(*blocks: int, verified: bool = False) -> tuple[Tensor, Tensor]:
        state, outs, at = recurrence.state.clone(), [], 0
        for block in blocks:
            rows, count = [x[:, at : at + block].contiguous() for x in inputs], torch.tensor([block])
            if verified:
                staged = recurrence.staged(block)
                outs.append(recurrence.verify(*rows, state=state, **staged))
                recurrence.commit(count, state=state, **staged)
            else:
                outs.append(recurrence.extend(*rows, count, state=state))
            at += block
        return torch.cat(outs, 1), state

    out, state = read(*[1] * 5, TOKENS - 5)
    for got, after in (read(TOKENS), read(2, 31), read(3, 8, 5, TOKENS - 16, verified=True)):
        assert got.equal(out)
        assert after.equal(state)


def attending(kind: str, ops: Emulated) -> Callable[[int, int], Tensor]:
    """Return what attends with tokens at..end of a text's last ones over the keys of 600."""
    D, V, G = {"odd": (43, 77, 2), "latent": (192, 128, 1)}.get(kind, (64, 64, 2))
    query, keys, values = torch.randn(1, TOKENS, 6, D), torch.randn(1, 600, G, D), torch.randn(1, 600, G, V)
    bias, sinks = torch.randn(1, TOKENS, 6, 101), torch.randn(1, 6, TOKENS)
    rows = QuantizedRows(
        keys=torch.zeros(1, 10, G, D + -D % 4, 64, dtype=torch.int8),
        key_scales=torch.zeros(1, 10, G, 64),
        values=torch.zeros(1, 10, G, V + -V % 16, 64, dtype=torch.int8),
        value_scales=torch.zeros(1, 10, G, 64),
    )
    if kind == "int8":
        rows.write(keys, values, torch.tensor([0]))
    if kind == "float16":
        keys, values = keys.half(), values.half()
    if kind == "ring":  # 90 positions are seen, and a block is in it
        ring = torch.arange(600 - 90 - TOKENS, 600)
        keys, values = (torch.empty(1, len(ring), G, D).index_copy_(1, ring % len(ring), x[:, ring]) for x in (keys, values))

    def attend(at: int, end: int) -> Tensor:
        x, start = query[:, at:end].contiguous(), torch.tensor([600 - TOKENS + at])
        if kind == "int8":
            return ops.quantized_attention(x, *vars(rows).values(), start, None, V, 0.125, 0.0)
        if kind == "bias":
            given = bias[:, at:end].contiguous(), sinks[..., at:end].contiguous()
            return ops.biased_attention(x, keys, values, start, *given, 0.125, 0, 0, False)
        sees = (90 + TOKENS, 90, False) if kind == "ring" else (0, 0, False)
        return ops.attention(x, keys, values, start, None, None, 0.125, 3.0 if kind == "odd" else 0.0, *sees)

    return attend


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "odd", "latent", "ring", "bias"])
def test_attention_has_the_same_bits_in_any_block(kernels: CrossCompiled, kind: str) -> None:
    torch.manual_seed(0)
    attend = attending(kind, Emulated(kernels))
    same_in_blocks(attend, attend(0, TOKENS))


@pytest.mark.parametrize("name", ["linear", "matmul", "rms_norm", "activation"])
def test_other_layers_have_the_same_bits_in_any_block(kernels: CrossCompiled, name: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, TOKENS, 301), torch.randn(37, 301)
    others = {"linear": (weight, None), "matmul": (weight.T.contiguous(),), "rms_norm": (None, 1e-6), "activation": ("silu",)}
    layer = getattr(Emulated(kernels), name)
    rows = x if name != "matmul" else x[0]

    def read(at: int, end: int) -> Tensor:
        out: Tensor = layer(rows.narrow(-2, at, end - at).contiguous(), *others[name])
        return out.view(1, end - at, -1)

    same_in_blocks(read, read(0, TOKENS))


def test_linear(kernels: CrossCompiled) -> None:
    x, weight, out = torch.randn(1, 5, 37), torch.randn(19, 37), torch.full((1, 5, 19), float("nan"))
    torch.testing.assert_close(kernels("linear.out", x, weight, None, out)[-1], x @ weight.T, rtol=1e-5, atol=1e-5)


def test_packed_embedding(kernels: CrossCompiled) -> None:
    table, tokens, out = torch.randn(35, 24), torch.tensor([[0, 34, 16]]), torch.full((1, 3, 24), float("nan"))
    weight = packed_weight(table, 32, 8)
    assert kernels("block_embedding.out", tokens, *parts(weight), 35, 24, out)[-1].equal(table[tokens])


@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "gelu", "tanh", "softplus"])
def test_activations(kernels: CrossCompiled, name: str) -> None:
    x, out = torch.randn(1, 3, 37) * 4, torch.full((1, 3, 37), float("nan"))
    want = torch.ops.hybridge.activation(x, name)
    torch.testing.assert_close(kernels("activation.out", x, name, out)[-1], want, rtol=1e-5, atol=1e-6)


def test_permute(kernels: CrossCompiled) -> None:
    x, out = torch.randn(3, 5, 2, 17), torch.full((5, 3, 17, 2), float("nan"))
    assert kernels("permute.out", x, [1, 0, 3, 2], out)[-1].equal(x.permute(1, 0, 3, 2))


@pytest.mark.parametrize(
    ("make", "cpu", "want"),
    [
        pytest.param(arm, "cortex-a53", "plain of plain", marks=needs_arm),
        pytest.param(arm, "neoverse-n1", "dotprod of plain dotprod", marks=needs_arm),
        pytest.param(arm, "max", "i8mm of plain dotprod i8mm", marks=needs_arm),
        pytest.param(x86, "Nehalem", "plain of plain", marks=needs_qemu),
        pytest.param(x86, "Haswell", "avx2 of plain avx2", marks=needs_qemu),
    ],
)
def test_the_best_that_a_processor_has_is_chosen(make: object, cpu: str, want: str) -> None:
    assert program(make, cpu, "").chosen() == want


@needs_arm
def test_what_a_processor_lacks_is_refused() -> None:
    kernels = program(arm, "neoverse-n1", "i8mm")
    assert kernels.chosen() == "(null) of plain dotprod"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        kernels("permute.out", torch.randn(2, 3), [1, 0], torch.empty(3, 2))
    assert b"HYBRIDGE_ISA is i8mm, but this processor has plain dotprod" in failed.value.stderr
