import pytest
import torch
from tiny import tiny_config

from hybridge.cache import HybridCache
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.errors import CheckpointError
from hybridge.cache.layers.short_conv import DelayLayer, delay_naive
from hybridge.cache.operations.kernels import CoreKernels


def layer() -> DelayLayer:
    """A layer in the middle of a text."""
    made = DelayLayer(CacheSizes(max_seq_len=32, verify_len=7), CoreKernels(), channels=5)
    made.recurrent_state.copy_(torch.randn(1, 5))
    return made


def block(tokens: int, count: int, *, tentative: bool = False) -> Block:
    return Block(start=torch.tensor([3]), count=torch.tensor([count]), length=tokens, tentative=tentative)


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_a_block_and_a_commit_are_the_naive_delay(count: int) -> None:
    torch.manual_seed(count)
    extended, verified, x = layer(), layer(), torch.randn(1, 7, 5)
    verified.load_state_dict(extended.state_dict())
    last = extended.recurrent_state.clone()
    out, kept = delay_naive(x, last)[0], delay_naive(x[:, :count], last)[1] if count else last
    assert torch.equal(extended.mix(x, block=block(7, count)), out)
    assert torch.equal(extended.recurrent_state, kept)
    assert torch.equal(verified.mix(x, block=block(7, 7, tentative=True)), out)
    assert torch.equal(verified.recurrent_state, last)
    verified.commit(torch.tensor([count]))
    assert torch.equal(verified.recurrent_state, kept)


def test_inputs_of_a_refused_block_are_not_looked_at() -> None:
    delay = layer()
    before = delay.recurrent_state.clone()
    delay.mix(torch.full((1, 4, 5), float("nan")), block=block(4, 0))
    assert torch.equal(delay.recurrent_state, before)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"attention_bias": True}, "attention_bias = true, which hybridge does not support for .zaya., expected false"),
        ({"cca_time0": 1, "cca_time1": 1}, "kernel of 1, expected 2 or more"),
        ({"num_key_value_heads": 1, "head_dim": 15}, "1 heads of 15, expected an even number"),
    ],
)
def test_zaya_refuses_what_it_has_no_state_for(option: dict[str, int], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        HybridCache.from_config(tiny_config("zaya", **option), max_seq_len=32)
