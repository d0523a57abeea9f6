"""What lets a ``HybridCache`` be the ``past_key_values`` of an unmodified transformers model, eagerly.

transformers' mixers ask for a state, compute and hand back the new one; these methods answer from the same fixed buffers that
the exported program uses. Names and arguments are those of ``transformers.cache_utils.Cache`` (5.23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridge.cache.attention import AttentionLayer
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from hybridge.cache.layer import CacheLayer


class TransformersCacheApi:
    """Mixed into ``HybridCache``, which brings ``length``, ``sizes`` and ``cache_layers()``."""

    length: Tensor
    sizes: CacheSizes

    is_compileable = False

    if TYPE_CHECKING:

        def cache_layers(self) -> list[CacheLayer]: ...

    def __len__(self) -> int:
        return len(self.cache_layers())

    @property
    def is_sliding(self) -> list[bool]:
        return [any(part.window for part in self._attention_parts(i)) for i in range(len(self))]

    @property
    def is_linear(self) -> list[bool]:
        return [not self._attention_parts(i) for i in range(len(self))]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, G, T, D]; returns all of them so far [B, G, length + T, D].

        The last attention layer of a forward moves the length, so all of them see the same one.
        Raises CapacityError where the tokens do not fit, UsageError for another batch size.
        """
        tokens, length = keys.shape[2], int(self.length)
        if length + tokens > self.sizes.max_seq_len:
            raise CapacityError(
                f"{tokens} more tokens after {length} do not fit into max_seq_len = {self.sizes.max_seq_len}; "
                "build the cache with a larger one."
            )
        if keys.shape[0] != self.sizes.batch_size:
            raise UsageError(
                f"the cache was built for batch_size = {self.sizes.batch_size}, but got keys of batch {keys.shape[0]}."
            )
        (layer,) = self._attention_parts(layer_idx)
        before = layer.recent(length)
        all_keys, all_values = (
            torch.cat([old.transpose(1, 2), new], 2) for old, new in zip(before, (keys, values), strict=True)
        )
        block = Block(start=self.length.clone(), count=torch.tensor([tokens]), length=tokens)
        layer.append(keys.transpose(1, 2), values.transpose(1, 2), block)
        if not any(self._attention_parts(i) for i in range(layer_idx + 1, len(self))):
            self.length.add_(tokens)
        return all_keys, all_values

    def _attention_parts(self, layer_idx: int) -> list[AttentionLayer]:
        return [part for part in self.cache_layers()[layer_idx].each() if isinstance(part, AttentionLayer)]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The conv window [B, C, W]; zeros before the first token, which is what a causal conv pads with."""
        return self.cache_layers()[layer_idx].get_buffer("conv_state")

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The recurrent state; zeros before the first token."""
        return self.cache_layers()[layer_idx].get_buffer("recurrent_state")

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Take the conv's new inputs [B, C, T]; returns window and inputs [B, C, W + T]."""
        state = self.get_conv_state(layer_idx, state_idx)
        window = torch.cat([state, conv_states], dim=-1)
        state.copy_(window[..., window.shape[-1] - state.shape[-1] :])
        return window

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Take the new recurrent state, in place."""
        return self.get_recurrent_state(layer_idx, state_idx).copy_(recurrent_states)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return int(self.length) > 0

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.length)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return int(self.length)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.sizes.max_seq_len

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys that ``update`` returns for this many queries."""
        length = int(self.length)
        parts = self._attention_parts(layer_idx)
        before = parts[0].recent(length)[0].shape[1] if parts else length
        return before + query_length, length - before
