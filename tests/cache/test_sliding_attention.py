"""The ring against plain windowed attention over the whole history, far past the window and over every wrap."""

import random

import pytest
import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.cache.operations.kernels import CoreKernels, Kernels, Scoring
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.kernel_sets.llm import LlmKernels

KERNELS: dict[str, type[Kernels]] = {"core": CoreKernels, "llm": LlmKernels, "hybridge": HybridgeKernels}
HEADS, KV_HEADS, DIM = 4, 2, 16
SCALE = 0.3
WINDOW, CHUNK, VERIFY = 5, 17, 5
MAX_SEQ_LEN = 20 * WINDOW
SHAPES = [(1, False), (WINDOW, False), (WINDOW, True), (23, False), (23, True)]
"""window, chunked: 23 is a ring longer than a chunk of 17 tokens, the others are shorter ones."""


def naive(query: Tensor, keys: Tensor, values: Tensor, start: int, window: int, chunked: bool) -> Tensor:
    """Attention of query [1, T, H, D] from position ``start`` on over all keys and values [1, N, G, D] so far; [1, T, H, D]."""
    out = []
    for at in range(start, start + query.shape[1]):
        first = at // window * window if chunked else max(0, at - window + 1)
        key, value = (x[0, first : at + 1].repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (keys, values))
        weights = (torch.einsum("hd,nhd->hn", query[0, at - start], key) * SCALE).softmax(-1)
        out.append(torch.einsum("hn,nhd->hd", weights, value))
    return torch.stack(out)[None]


class Run:
    """One layer in a cache, and the history of what was committed."""

    def __init__(self, window: int, chunked: bool, kernels: str, max_seq_len: int = MAX_SEQ_LEN) -> None:
        sizes = CacheSizes(max_seq_len=max_seq_len, prefill_chunk=CHUNK, verify_len=VERIFY, snapshot_slots=2)
        shape = {"kv_heads": KV_HEADS, "head_dim": DIM}
        self.layer = SlidingAttentionLayer(sizes, KERNELS[kernels](), window=window, chunked=chunked, **shape)
        self.cache = HybridCache([self.layer], sizes)
        for buffer in self.cache.buffers():
            buffer.fill_(float("nan") if buffer.is_floating_point() else -(2**40))
        self.cache.reset()
        self.window, self.chunked = window, chunked
        self.history = torch.zeros(2, 1, 0, KV_HEADS, DIM)
        self.staged = self.history
        self.generator = torch.Generator().manual_seed(window)

    @property
    def length(self) -> int:
        return self.history.shape[2]

    def attend(self, block: Block, real: int) -> Tensor:
        """Run a block; what its ``real`` first tokens see must be what they see of the whole history. Returns their k and v."""
        query = torch.randn(1, block.length, HEADS, DIM, generator=self.generator)
        new = torch.randn(2, 1, block.length, KV_HEADS, DIM, generator=self.generator)
        got = self.layer.attend(query, new[0], new[1], block, Scoring(scale=SCALE))
        self.cache.close(block)
        new, start = new[:, :, :real], self.length
        keys, values = torch.cat([self.history, new], dim=2)
        want = naive(query[:, :real], keys, values, start, self.window, self.chunked)
        torch.testing.assert_close(got[:, :real], want, rtol=1e-5, atol=1e-5)
        return new

    def extend(self, tokens: int, count: int) -> None:
        new = self.attend(self.cache.extend(tokens, torch.tensor([count])), count)
        self.history = torch.cat([self.history, new], dim=2)

    def verify(self) -> None:
        self.staged = self.attend(self.cache.speculate(VERIFY), VERIFY)

    def commit(self, count: int) -> None:
        self.history = torch.cat([self.history, self.staged[:, :, :count]], dim=2)
        assert self.cache.commit(torch.tensor([count])).tolist() == [self.length]

    def bits(self) -> dict[str, Tensor]:
        return {name: buffer.contiguous().view(torch.uint8).clone() for name, buffer in self.cache.named_buffers()}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("window", "chunked"), SHAPES)
@torch.no_grad()
def test_any_program_sees_the_whole_window(window: int, chunked: bool, kernels: str) -> None:
    """Chunks longer than the ring, padded ones, single tokens, and tentative blocks of which any part is rejected."""
    end = 11 * max(window, WINDOW)
    run, choose = Run(window, chunked, kernels, max_seq_len=end + CHUNK), random.Random(window)
    while run.length < end:
        operation = choose.choice(["chunk", "decode", "decode", "verify", "verify twice"])
        if operation == "chunk":
            run.extend(CHUNK, choose.randint(1, CHUNK))
        elif operation == "decode":
            run.extend(1, 1)
        else:
            run.verify()
            if operation == "verify twice":
                run.verify()
            run.commit(choose.randint(0, VERIFY))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("accepted", [0, 1, VERIFY])
@torch.no_grad()
def test_a_rejected_block_is_never_seen_again(accepted: int, chunked: bool, kernels: str) -> None:
    """From every slot of the ring, so that the block wraps at each of its tokens."""
    ring = WINDOW + VERIFY
    for start in range(2 * ring, 3 * ring):
        run = Run(WINDOW, chunked, kernels)
        while run.length < start:
            run.extend(CHUNK, min(CHUNK, start - run.length))
        run.verify()
        run.commit(accepted)
        run.extend(1, 1)
        run.extend(CHUNK, CHUNK)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("chunked", [False, True])
@torch.no_grad()
def test_a_slot_brings_the_window_back(chunked: bool, kernels: str) -> None:
    """However far the ring has gone since: what it overwrote is in the slot."""
    run = Run(WINDOW, chunked, kernels)
    run.extend(CHUNK, CHUNK)
    run.extend(CHUNK, 9)
    kept, slot = run.history, torch.tensor([1])
    assert run.cache.write_slot(slot).tolist() == [run.length]
    for ahead in (1, CHUNK, 3 * CHUNK):
        for _ in range(ahead // CHUNK or 1):
            run.extend(CHUNK, min(ahead, CHUNK))
        run.verify()
        run.history = kept
        assert run.cache.read_slot(slot).tolist() == [run.length]
        run.extend(1, 1)
        run.verify()
        run.commit(2)
        run.history = kept
        run.cache.read_slot(slot)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("tokens", [1, CHUNK])
@torch.no_grad()
def test_a_refused_block_changes_no_bit(tokens: int, kernels: str) -> None:
    run = Run(WINDOW, False, kernels, max_seq_len=20)
    run.extend(CHUNK, CHUNK)
    run.extend(CHUNK, 3)
    before = run.bits()
    block = run.cache.extend(tokens, torch.tensor([1]))
    new = torch.full((2, 1, tokens, KV_HEADS, DIM), float("nan"))
    run.layer.attend(torch.randn(1, tokens, HEADS, DIM), new[0], new[1], block, Scoring(scale=SCALE))
    run.cache.close(block)
    assert all(torch.equal(buffer, before[name]) for name, buffer in run.bits().items())


@torch.no_grad()
def test_memory_does_not_grow() -> None:
    """Not with the text, and not with the text that there is room for."""
    run = Run(WINDOW, False, "core")
    addresses = [buffer.data_ptr() for buffer in run.cache.buffers()]
    while run.length <= MAX_SEQ_LEN - CHUNK:
        run.extend(CHUNK, CHUNK)
    assert addresses == [buffer.data_ptr() for buffer in run.cache.buffers()]
    assert run.cache.state_bytes() == Run(WINDOW, False, "core", max_seq_len=1 << 20).cache.state_bytes()
