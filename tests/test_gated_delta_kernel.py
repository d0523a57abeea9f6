"""The gated delta rule's kernel against its reference, which is the naive rule: outputs, state and what is staged."""

from typing import Any

import pytest
import torch
from kernel_twins import Twins, one
from torch import Tensor

import hybridge.runtime.kernels.gated_delta_rule  # noqa: F401  registers the operators
from hybridge.runtime.program import set_threads

ops = torch.ops.hybridge

SIZES = [  # key heads, heads, K, V, by channel, floor, strength, threads
    (2, 4, 24, 40, False, None, 1.0, 1),
    (3, 3, 20, 19, True, None, 2.0, 1),
    (2, 2, 24, 24, True, -5.0, 1.0, 1),
    (2, 6, 128, 136, False, None, 1.0, 2),
]


class Rule:
    """Random inputs of one layer; gates are such that decays go down to about 1e-3."""

    def __init__(self, sizes: tuple[Any, ...]) -> None:
        self.key_heads, self.heads, self.K, self.V, self.by_channel, floor, strength, threads = sizes
        set_threads(threads)
        self.options = self.key_heads, floor, strength
        decays = self.heads * self.K if self.by_channel else self.heads
        self.weights = torch.rand(self.heads) * 2 + 0.1, torch.randn(decays)
        self.state = torch.randn(1, self.heads, self.K, self.V)

    def inputs(self, tokens: int, real: int) -> tuple[Tensor, ...]:
        rows = 2 * self.key_heads * self.K + self.heads * self.V
        made = tuple(torch.randn(1, tokens, width) for width in (rows, len(self.weights[1]), self.heads))
        for each in made:
            each[:, real:] = float("nan")
        return made

    def staged(self, length: int) -> dict[str, Tensor]:
        decay = (self.heads, self.K) if self.by_channel else (self.heads,)
        shapes = {"key": (self.key_heads, self.K), "error": (self.heads, self.V), "log_decay": decay, "beta": (self.heads,)}
        return {f"staged_{name}": torch.full((1, length, *shape), float("nan")) for name, shape in shapes.items()}

    def extend(self, mixed: Tensor, decay: Tensor, beta: Tensor, count: Tensor, *, state: Tensor) -> Tensor:
        return ops.gated_delta_rule(mixed, decay, beta, *self.weights, state, count, *self.options)

    def verify(self, mixed: Tensor, decay: Tensor, beta: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.gated_delta_rule_verify(mixed, decay, beta, *self.weights, state, *staged.values(), *self.options)

    def commit(self, count: Tensor, *, state: Tensor, **staged: Tensor) -> Tensor:
        return ops.gated_delta_rule_commit(state, *staged.values(), count)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_a_block_is_the_naive_rule_up_to_its_count(tokens: int, sizes: tuple[Any, ...]) -> None:
    torch.manual_seed(tokens)
    rule = Rule(sizes)
    twins = Twins(rule.extend, (*rule.inputs(tokens, tokens), one(1)), state=rule.state)
    for count in {0, 1, tokens // 2, tokens - 1, tokens}:
        before = twins.state["state"].clone()
        out, state = twins(*rule.inputs(tokens, count), one(count))
        assert not out[:, count:].any()
        assert count or torch.equal(state, before)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_a_verify_leaves_the_state_and_a_commit_changes_it(tokens: int, sizes: tuple[Any, ...]) -> None:
    torch.manual_seed(tokens)
    rule, length = Rule(sizes), tokens + tokens % 2
    inputs, staged = rule.inputs(tokens, tokens), rule.staged(length)
    _, state, *kept = Twins(rule.verify, inputs, state=rule.state, **staged)(*inputs)
    assert torch.equal(state, rule.state)
    commit = Twins(rule.commit, (one(1),), state=rule.state, **dict(zip(staged, kept, strict=True)))
    for count in {0, 1, tokens // 2, tokens}:
        before = commit.state["state"].clone()
        _, committed, *_ = commit(one(count))
        assert count or torch.equal(committed, before)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_verify_and_commit_are_a_block(count: int, sizes: tuple[Any, ...]) -> None:
    torch.manual_seed(count)
    rule = Rule(sizes)
    inputs, staged, extended = rule.inputs(5, 5), rule.staged(6), rule.state.clone()
    verified = rule.verify(*inputs, state=rule.state, **staged)
    rule.commit(one(count), state=rule.state, **staged)
    out = rule.extend(*inputs, one(count), state=extended)
    torch.testing.assert_close(verified[:, :count], out[:, :count], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(rule.state, extended, rtol=1e-5, atol=2e-6)
