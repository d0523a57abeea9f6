"""Keep the state of a drafter inside the model: the number of tokens that it has read, and their keys and values.

A drafter reads committed tokens later than the model does, and proposes tokens after those that it has read; so its length is
its own. Nothing that it proposes is kept, so a rollback is only a smaller length here too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import FullAttentionLayer
from hybridge.cache.layers.layer import CacheLayer, CompositeLayer
from hybridge.cache.layers.sliding_attention import SlidingAttentionLayer
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible


class DrafterLengthLayer(CacheLayer):
    """drafted_length float32 [B, 1], the positions that the drafter has read. A snapshot copies it.

    As a float because the runtime's operator that writes slots takes no integers; lengths are exact up to 2^24.
    """

    kind: ClassVar[str] = "drafter_length"

    drafted_length: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("drafted_length", 1)

    def extend(self, tokens: int, count: Tensor, ahead: int = 0) -> Block:
        """Return a block of which the first ``count`` (int64 [1]) count, and ``ahead`` more follow; none if it does not fit."""
        length = self.drafted_length[0].long()
        fits = (count >= 1) & (count <= tokens) & (length + count + ahead <= self.sizes.max_seq_len)
        start = torch.where(fits, length, self.sizes.max_seq_len)
        return Block(start=start, count=torch.where(fits, count, 0), length=tokens)

    def overwritten_slots(self, block: Block) -> Tensor:
        """Return bool [N]: snapshot slots that count rows that the block or draft tokens after it overwrite; needs slots."""
        kept = self.get_buffer("drafted_length_slots").view(-1)
        return (kept > self.drafted_length[0]) & (block.count > 0)

    def close(self, block: Block) -> Tensor:
        """Count the block's rows. Returns the length int64 [1], or -1 if the block was refused."""
        length = self.drafted_length[0].long() + block.count
        self.drafted_length.copy_(length[None].to(self.drafted_length.dtype))
        return torch.where(block.count > 0, length, -1)


class DrafterAttentionLayer(FullAttentionLayer):
    """keys and values of a drafter's layer by position; rows past ``drafted_length`` are not seen."""

    kind: ClassVar[str] = "drafter_attention"

    def read(self, key: Tensor, value: Tensor, block: Block) -> None:
        """Keep the block's key [B, T, G, D] and value [B, T, G, V]."""
        self.update(key, value, block)

    def attend_block(
        self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring, *, causal: bool
    ) -> Tensor:
        """Attend over the rows before a block of draft tokens and over the block: up to each token, or the whole of it."""
        if causal:
            return self.attend(query, key, value, block, scoring)
        self.update(key, value, block)
        # Tokens that all see the same rows are one token with more heads, the last one.
        heads, (B, T) = key.shape[2], query.shape[:2]
        last = block.shared("last", lambda: Block(start=block.start + (T - 1), count=torch.ones_like(block.count), length=1))
        together = query.unflatten(2, (heads, -1)).transpose(1, 2).reshape(B, 1, -1, query.shape[-1])
        out = self.kernels.attend(together, self.keys, self.values, last, scoring)
        return out.view(B, heads, T, -1, value.shape[-1]).transpose(1, 2).flatten(2, 3)


class DrafterSlidingAttentionLayer(SlidingAttentionLayer):
    """The same in a ring, for a layer that sees a window of ``window`` positions, its own included."""

    kind: ClassVar[str] = "drafter_sliding_attention"

    def read(self, key: Tensor, value: Tensor, block: Block) -> None:
        """Keep the counted tokens of the block's key [B, T, G, D] and value [B, T, G, V]."""
        self._write(key, value, block)

    def attend_block(
        self, query: Tensor, key: Tensor, value: Tensor, block: Block, scoring: Scoring, *, causal: bool
    ) -> Tensor:
        """Attend over the ring and the block side by side: ``window`` positions back, and as many ahead or none."""
        keys, values = torch.cat([self.keys, key], dim=1), torch.cat([self.values, value], dim=1)
        visible = block.shared((self.ring, causal), lambda: self._seen_by(block, causal))
        return self.kernels.attend(query, keys, values, block, scoring, visible)

    def _seen_by(self, block: Block, causal: bool) -> Visible:
        held = self.ring.held(block, self.ring.size + block.length)
        ahead = held[None, :] - block.positions[:, None]
        mask = (held >= 0) & (ahead > -self.window) & (ahead < (1 if causal else self.window))
        return Visible(held=held, mask=mask)


class CarriedLayer(CacheLayer):
    """carried [B, C]: the output of a layer at the last token that it read, for a layer that reads it a token later."""

    kind: ClassVar[str] = "carried"

    carried: Tensor

    def __init__(self, sizes: CacheSizes, kernels: Kernels, *, channels: int) -> None:
        super().__init__(sizes, kernels)
        self.add_committed("carried", channels)

    def carry(self, out: Tensor, block: Block) -> Tensor:
        """Return what is carried and out [B, T, C] after it, [B, T + 1, C]; then carry that of the last token that counts."""
        window = torch.cat([self.carried.unsqueeze(1), out], dim=1)
        self.carried.copy_(window.index_select(1, block.count).squeeze(1))
        return window


class DrafterStateLayer(CompositeLayer):
    """The state of a drafter's decoder layer: the parts of such a layer of the target, and its last output.

    A tentative block is what was committed and draft tokens after it; ``accept`` keeps the former. A target's commit is for
    the target's layers alone.
    """

    def __init__(
        self, sizes: CacheSizes, kernels: Kernels, build: Callable[[CacheSizes], CacheLayer], *, ahead: int, carried: int
    ) -> None:
        """Take what ``build`` gives for blocks with ``ahead`` draft tokens. carried: channels of its output, 0 to keep none."""
        layer = build(replace(sizes, verify_len=sizes.verify_len + ahead, kv_dtype=None))
        parts = dict(layer.parts.items()) if isinstance(layer, CompositeLayer) else {"attention": layer}
        super().__init__(sizes, kernels, parts)  # type: ignore[arg-type]  # a ModuleDict forgets what it holds
        self._states = self.leaves()
        if carried:
            self.parts["carried"] = CarriedLayer(sizes, kernels, channels=carried)

    @property
    def carried(self) -> CarriedLayer:
        """Return the layer that keeps the last output."""
        return self.parts["carried"]  # type: ignore[return-value]  # a ModuleDict forgets what it holds

    @property
    def has_bounded_state(self) -> bool:
        """Return whether the layer has more state than rows by position, so that its state ends with a block."""
        return any(part.committed for part in self._states)

    def accept(self, count: Tensor) -> None:
        """Keep the first ``count`` (int64 [1]) tokens of the tentative block that was run."""
        for part in self._states:
            part.commit(count)

    def commit(self, count: Tensor) -> None:
        pass


def following(block: Block, tokens: int, index: int = 0) -> Block:
    """Return a block of draft tokens after the counted ones of ``block`` and ``index`` others: written, never counted."""
    return Block(start=block.start + block.count + index, count=torch.full_like(block.count, tokens), length=tokens)
