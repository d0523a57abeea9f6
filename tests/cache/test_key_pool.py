"""Pools of index keys against the definition: all pools made anew from all keys."""

import pytest
import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.indexed_attention import KeyPoolLayer
from hybridge.cache.operations.kernels import CoreKernels

DIM, HEADS, LENGTH = 6, 5, 40


def selected_naive(pool: int, choices: int, query: Tensor, weight: Tensor, key: Tensor, gate: Tensor, bias: Tensor) -> Tensor:
    """What each of T tokens sees of them, bool [T, T]; query [T, H, D], weight [T, H], key and gate [T, D]."""
    T = len(key)
    places = [slice(first, first + pool) for first in range(0, T - pool + 1, pool)]
    keys = [((gate[p] + bias).softmax(0) * key[p]).sum(0) for p in places]
    sees = torch.zeros(T, T, dtype=torch.bool)
    for t in range(T):
        complete = (t + 1) // pool
        scores = [float((weight[t] * (query[t] @ k).relu()).sum()) for k in keys[:complete]]
        for best in sorted(range(complete), key=lambda n: -scores[n])[:choices]:
            sees[t, places[best]] = True
        sees[t, complete * pool : t + 1] = True
    return sees


def new_block(start: int, tokens: int, count: int, tentative: bool = False) -> Block:
    return Block(start=torch.tensor([start]), count=torch.tensor([count]), length=tokens, tentative=tentative)


@pytest.mark.parametrize("pool", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_of_any_kind_select_as_one_pass_over_everything(pool: int, seed: int) -> None:
    torch.manual_seed(seed)
    layer = KeyPoolLayer(
        CacheSizes(max_seq_len=LENGTH, prefill_chunk=17, verify_len=5), CoreKernels(), head_dim=DIM, pool=pool, choices=2
    )
    layer.keys.fill_(float("nan"))
    query, weight = torch.randn(LENGTH, HEADS, DIM), torch.randn(LENGTH, HEADS)
    key, gate, bias = torch.randn(LENGTH, DIM), torch.randn(LENGTH, DIM), torch.randn(pool, DIM)
    want = selected_naive(pool, 2, query, weight, key, gate, bias)

    def run(start: int, block: Block, real: int) -> None:
        def rows(x: Tensor) -> Tensor:
            padding = torch.full((block.length - real, *x.shape[1:]), 7.0)
            return torch.cat([x[start : start + real], padding]).unsqueeze(0)

        layer.pool_keys(rows(key), rows(gate), bias, block)
        got = layer.select(rows(query), rows(weight), 1.0, block).mask
        assert torch.equal(got[:real, :LENGTH], want[start : start + real])
        assert not got[:real, LENGTH:].any()

    length = 0
    while length < LENGTH:
        left = LENGTH - length
        tokens = [1, 5, 17][int(torch.randint(3, ()))]
        real = min(left, int(torch.randint(1, tokens + 1, ())))
        if tokens == 5 and left >= 5:
            run(length, new_block(length, 5, 5, tentative=True), 5)
            layer.commit(torch.tensor([real]))
        else:
            run(length, new_block(length, tokens, real), real)
        length += real


def test_a_block_that_does_not_fit_changes_nothing() -> None:
    sizes = CacheSizes(max_seq_len=LENGTH, prefill_chunk=17, verify_len=5)
    layer = KeyPoolLayer(sizes, CoreKernels(), head_dim=DIM, pool=3, choices=2)
    for buffer in layer.buffers():
        buffer.normal_()
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    broken = torch.full((1, 17, DIM), float("nan"))
    layer.pool_keys(broken, broken, torch.zeros(3, DIM), new_block(LENGTH, 17, 0))
    assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())
