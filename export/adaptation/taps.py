"""Hidden states of chosen layers, put out beside the logits for drafters that read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.errors import UnsupportedModelError, UsageError


class Taps:
    """Keeps what passes the chosen places of a decoder.

    indices count as transformers' ``output_hidden_states`` does: 0 what goes into the first layer, i what goes into layer i,
    and the number of layers, or -1, what comes out of the final norm.
    """

    def __init__(self, decoder: Any, indices: Sequence[int]) -> None:
        """Raises UsageError for an index that there is no layer for."""
        count = len(decoder.layers)
        check_taps(indices, count)
        self.places = [index % (count + 1) for index in indices]
        self.last = count
        self._seen: dict[int, Tensor] = {}
        for place in {*self.places} - {count}:
            decoder.layers[place].register_forward_pre_hook(self._keep(place), with_kwargs=True)

    def _keep(self, place: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._seen[place] = args[0] if args else kwargs["hidden_states"]

        return hook

    def collect(self, last: Tensor) -> Tensor:
        """Return float32 [1, T, places x hidden] of the decoder's latest run, which ended with ``last`` [1, T, hidden].

        Raises UnsupportedModelError for a model with several residual streams inside.
        """
        kept = [last if place == self.last else self._seen[place] for place in self.places]
        self._seen.clear()
        if several := [each for each in kept if each.shape != last.shape]:
            raise UnsupportedModelError(
                f"this model's hidden states inside are {list(several[0].shape)}, not {list(last.shape)} as after its final "
                "norm: it has several residual streams, so only the last (--tap-layers -1) can be tapped."
            )
        # Joining a single one would be no operation at all, which XNNPACK cannot have at its border.
        return (torch.cat(kept, dim=-1) if len(kept) > 1 else kept[0]).float()


def check_taps(indices: Sequence[int], layers: int) -> None:
    """Raises UsageError for an index that there is no layer for, or that is named twice."""
    for index in indices:
        if not -layers - 1 <= index <= layers:
            raise UsageError(
                f"tap layer {index} does not exist: the model has {layers} layers, so 0 (the embeddings) to {layers} "
                "(after the final norm, also -1) can be tapped."
            )
    if len({index % (layers + 1) for index in indices}) < len(indices):
        raise UsageError(f"tap layers {list(indices)} name one place twice.")
