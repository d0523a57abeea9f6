"""Let a ``HybridCache`` be the ``past_key_values`` of an unmodified transformers model, eagerly or compiled.

transformers' mixers ask for a state, compute and hand back the new one; these methods answer from the same fixed buffers that
the exported program uses. Names and arguments are those of ``transformers.cache_utils.Cache`` (5.23).

Eagerly a layer's keys are handed out as far as they are filled. Under ``torch.compile`` every shape is static instead and
lengths stay tensors, so one graph serves every length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hybridge.arguments import checked
from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.errors import CapacityError, UsageError

if TYPE_CHECKING:
    from hybridge.cache.layers.layer import CacheLayer


TAKES_CACHE_PARAMS = frozenset({"falcon_mamba", "mamba", "mamba2"})
"""Model types whose forward takes a cache as ``cache_params``, and ignores ``past_key_values``."""


class TransformersCacheApi:
    """Mixed into ``HybridCache``, which brings ``length``, ``sizes`` and ``cache_layers()``."""

    length: Tensor
    sizes: CacheSizes

    is_compileable = False  # whether generate() should compile on its own; torch.compile works all the same

    if TYPE_CHECKING:

        def cache_layers(self) -> list[CacheLayer]: ...

    def __len__(self) -> int:
        return len(self.cache_layers())

    # Attention

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Take in keys and values [B, G, T, D]; returns with them those before that may be seen, [B, G, N, D].

        The last attention layer of a forward moves the length, so all of them see the same one.
        Raises CapacityError if the tokens do not fit, UsageError for another batch size.
        """
        tokens = keys.shape[2]
        self._check_fits(keys.shape[0], tokens)
        block = Block(start=self.length.clone(), count=torch.full_like(self.length, tokens), length=tokens)
        seen = self._attention(layer_idx).visible_keys(keys.transpose(1, 2), values.transpose(1, 2), block, self._length())
        if layer_idx == self._attention_layers()[-1]:
            self.length.add_(tokens)
        return seen[0].transpose(1, 2), seen[1].transpose(1, 2)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int | Tensor]:
        """Return number and first position of the keys that ``update`` returns for this many queries.

        transformers makes its masks before any layer writes. Raises CapacityError if the tokens do not fit.
        """
        self._check_fits(self.sizes.batch_size, query_length)
        layers = self._attention_layers()
        sliding = [i for i in layers if self._attention(i).window]
        full = [i for i in layers if not self._attention(i).window]
        asked = sliding if layer_idx == len(self) else full if layer_idx == 0 else [layer_idx]
        if not layers:
            return query_length, 0
        return self._attention((asked or layers)[0]).visible_sizes(query_length, self._length())

    @property
    def is_sliding(self) -> list[bool]:
        """Return True at one index past the layers if any layer has a window.

        transformers asks for mask sizes at the first index that is True for its sliding mask, and at 0 for its full one; of
        a model whose first layer slides the two would be the same.
        """
        return [False] * len(self) + [any(self._attention(i).window for i in self._attention_layers())]

    def get_seq_length(self, layer_idx: int = 0) -> int | Tensor:
        return self._length()

    def get_query_offset(self, layer_idx: int = 0) -> int | Tensor:
        return self._length()

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.sizes.max_seq_len

    # Convolutions and recurrences

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """Return the conv window, a view [B, C, W]; zeros before the first token, which is what a causal conv pads with."""
        return self._states("conv_state", layer_idx)[state_idx].transpose(1, 2)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """Return the recurrent state; zeros before the first token."""
        return self._states("recurrent_state", layer_idx)[state_idx]

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Take the conv's new inputs [B, C, T]; returns window and inputs [B, C, W + T].

        Without attention the last conv moves the length. Raises like ``update`` there.
        """
        state = self.get_conv_state(layer_idx, state_idx)
        if not self._attention_layers():
            self._check_fits(*conv_states.shape[::2])
            if (layer_idx, state_idx) == self._last_conv():
                self.length.add_(conv_states.shape[-1])
        window = torch.cat([state.to(conv_states.dtype), conv_states], dim=-1)
        state.copy_(window[..., window.shape[-1] - state.shape[-1] :])
        return window

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Take the new recurrent state, in place."""
        return self.get_recurrent_state(layer_idx, state_idx).copy_(recurrent_states)

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return True

    @property
    def is_linear(self) -> list[bool]:
        return [not any(isinstance(part, AttentionLayer) for part in layer.leaves()) for layer in self.cache_layers()]

    # Rolling back

    @property
    def is_croppable(self) -> bool:
        return all(isinstance(part, AttentionLayer) for layer in self.cache_layers() for part in layer.leaves())

    @checked
    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens, as transformers' assisted generation does.

        Raises UsageError, a ValueError, for a positive number, which transformers once took for the length to keep; for more
        tokens than there are; and if a layer cannot forget: recurrent state is rolled back by ``restore``, or verified and
        committed in the first place; a window keeps ``verify_len`` positions to go back by.
        """
        removed, held = -tokens_to_remove, int(self.length)
        if removed and not self.is_croppable:
            raise UsageError(
                "recurrent state cannot be cropped; go back with snapshot() and restore(), or let Session.generate speculate."
            )
        if not 0 <= removed <= held:
            raise UsageError(
                f"crop({tokens_to_remove}) of a cache with {held} tokens: give the negative number of tokens to remove, "
                f"{-held} to 0."
            )
        if any(self._attention(i).window for i in self._attention_layers()) and removed > self.sizes.verify_len:
            raise UsageError(
                f"a sliding window cannot go back by {removed} tokens, only by verify_len = {self.sizes.verify_len}; "
                "build the cache with a larger one."
            )
        self.length.sub_(removed)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let sequence i continue sequence ``beam_idx[i]``, int64 [B], as beam search does."""
        for layer in self.cache_layers():
            for buffer in layer.buffers():
                buffer.copy_(buffer.index_select(0, beam_idx))

    def activate_past_recording(self) -> None:
        """Do nothing: rows after the length are kept as they are."""

    def is_recording_past(self, layer_idx: int) -> bool:
        """Return True to have a single token come through ``update_conv_state`` too, which moves the length."""
        return not self._attention_layers()

    # Inside

    def _length(self) -> int | Tensor:
        return self.length[0] if torch.compiler.is_compiling() else int(self.length)

    def _check_fits(self, batch_size: int, tokens: int) -> None:
        if batch_size != self.sizes.batch_size:
            raise UsageError(
                f"the cache was built for batch_size = {self.sizes.batch_size}, but got keys of batch {batch_size}."
            )
        if not torch.compiler.is_compiling() and int(self.length) + tokens > self.sizes.max_seq_len:
            raise CapacityError(
                f"{tokens} more tokens after {int(self.length)} do not fit into max_seq_len = {self.sizes.max_seq_len}; "
                "build the cache with a larger one."
            )

    def _attention(self, layer_idx: int) -> AttentionLayer:
        return next(part for part in self.cache_layers()[layer_idx].leaves() if isinstance(part, AttentionLayer))

    def _attention_layers(self) -> list[int]:
        """Return the layers that ``update`` is called for: transformers passes shared keys and values on by itself."""
        layers = enumerate(self.cache_layers())
        return [i for i, layer in layers if any(isinstance(part, AttentionLayer) and part.keeps for part in layer.leaves())]

    def _last_conv(self) -> tuple[int, int]:
        """Return layer and number of the conv state that a forward updates last."""
        counts = [len(self._states("conv_state", i)) for i in range(len(self))]
        last = max(i for i, count in enumerate(counts) if count)
        return last, counts[last] - 1

    def _states(self, name: str, layer_idx: int) -> list[Tensor]:
        return [part.get_buffer(name) for part in self.cache_layers()[layer_idx].leaves() if name in part.committed]
