"""Recurrent kernels against their references, which are the naive recurrences: outputs, state in place and what is staged."""

from collections.abc import Callable

import pytest
import torch
from kernel_program import KernelProgram, Twins, close, one
from recurrences import CASES, Recurrence, ShortConv
from torch import Tensor

from hybridge.cache.operations.kernels import CoreKernels
from hybridge.cache.recurrences import recurrence as cache
from hybridge.cache.recurrences.short_conv import short_conv_naive
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.runtime.binding.library import set_threads


def made(case: str, seed: int) -> Recurrence:
    torch.manual_seed(seed)
    set_threads(2 if case.endswith("threads") else 1)
    return CASES[case]()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [*(pytest.param(count, marks=pytest.mark.thorough) for count in (1, 5)), 17])
def test_a_block_is_the_reference_up_to_its_count(tokens: int, case: str) -> None:
    recurrence = made(case, tokens)
    twins = Twins(recurrence.extend, (*recurrence.inputs(tokens, tokens), one(1)), state=recurrence.state)
    for count in {0, 1, tokens // 2, tokens - 1, tokens}:
        before = twins.state["state"].clone()
        out, state = twins(*recurrence.inputs(tokens, count), one(count))
        assert not out[:, count:].any()
        assert count or torch.equal(state, before)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [5, pytest.param(17, marks=pytest.mark.thorough)])
def test_a_verify_leaves_the_state_and_a_commit_changes_it(tokens: int, case: str) -> None:
    recurrence = made(case, tokens)
    inputs, staged = recurrence.inputs(tokens, tokens), recurrence.staged(tokens + tokens % 2)
    _, state, *kept = Twins(recurrence.verify, inputs, state=recurrence.state, **staged)(*inputs)
    assert torch.equal(state, recurrence.state)
    commit = Twins(recurrence.commit, (one(1),), state=recurrence.state, **dict(zip(staged, kept, strict=True)))
    for count in {0, 1, tokens // 2, tokens}:
        before = commit.state["state"].clone()
        _, committed, *_ = commit(one(count))
        assert count or torch.equal(committed, before)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_verify_and_commit_are_a_block(count: int, case: str) -> None:
    recurrence = made(case, count)
    inputs, staged, extended = recurrence.inputs(5, 5), recurrence.staged(6), recurrence.state.clone()
    verified = recurrence.verify(*inputs, state=recurrence.state, **staged)
    recurrence.commit(one(count), state=recurrence.state, **staged)
    out = recurrence.extend(*inputs, one(count), state=extended)
    close(verified[:, :count], out[:, :count])
    close(recurrence.state, extended)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_token_has_the_same_bits_however_it_is_read(case: str) -> None:
    """Decodes are blocks of any lengths, and verifies of which a part is committed: outputs and state, bit for bit."""
    recurrence, tokens = made(case, 7), 29
    inputs = recurrence.inputs(tokens, tokens)

    def extend(*given: Tensor, state: Tensor) -> list[Tensor]:
        return [recurrence.extend(*given, state=state), state.clone()]

    def verify(*given: Tensor, state: Tensor, **staged: Tensor) -> list[Tensor]:
        *rows, count = given
        out = recurrence.verify(*rows, state=state, **staged)
        recurrence.commit(count, state=state, **staged)
        return [out, state.clone()]

    def read(way: Callable[..., list[Tensor]], most: int, **staged: Tensor) -> list[Tensor]:
        program, outs, at = None, [], 0
        while at < tokens:
            count = min(tokens - at, int(torch.randint(1, most + 1, ())))
            block = [torch.randn(1, most, *x.shape[2:]) for x in inputs]
            for to, x in zip(block, inputs, strict=True):
                to[:, :count] = x[:, at : at + count]
            program = program or KernelProgram(way, [*block, one(count)], state=recurrence.state, **staged)
            out, state = program(*block, one(count))
            outs.append(out[:, :count])
            at += count
        return [torch.cat(outs, 1), state]

    out, state = read(extend, 1)
    for got, after in (read(extend, 11), read(verify, 6, **recurrence.staged(7))):
        assert got.equal(out)
        assert after.equal(state)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_the_reference_of_a_convolution_is_the_definition(count: int) -> None:
    conv = ShortConv(5, 3, 2, biased=True, activation="")
    (x,), window = conv.inputs(9, count), conv.state.transpose(1, 2).clone()
    out = conv.extend(x, one(count), state=conv.state)
    taps, bias = conv.weights
    want, kept = short_conv_naive(x[:, :count, 2:7].transpose(1, 2), taps.T, bias, window)
    close(out[:, :count].transpose(1, 2), want)
    assert torch.equal(conv.state.transpose(1, 2), kept)


def test_every_recurrence_has_our_operators() -> None:
    """A kernel set without them would run core operators instead, and give the same numbers."""
    kinds = [each for each in cache.Recurrence.__subclasses__() if each.__module__.startswith("hybridge.cache.")]
    assert len(kinds) >= 6
    assert {each.__name__: type(HybridgeKernels().recurrence(each)).__name__ for each in kinds} == {
        each.__name__: f"Hybridge{each.__name__}" for each in kinds
    }
    assert all(type(CoreKernels().recurrence(each)) is each for each in kinds)
