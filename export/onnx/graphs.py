"""The two graphs of an ONNX artifact: the model with dynamic T, and the commit of a block's first tokens, without weights.

Axes: T tokens of the call, P committed ones before them, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.block import Block
from hybridge.cache.pinned import check
from hybridge.export.adaptation.adapt import AdaptedModel
from hybridge.export.onnx.traced_cache import TracedCache


class ModelGraph(nn.Module):
    """input_ids int64 [1, T], attention_mask int64 [1, P + T], first_logit int64 [] and past states -> logits, states, staged.

    Logits float32 [1, T - first_logit, V]. Of the mask only the size is looked at.
    """

    def __init__(self, model: PreTrainedModel, cache: TracedCache) -> None:
        super().__init__()
        self.model = AdaptedModel(model, cache)
        self.traced = (cache,)  # in a tuple, for not to own it
        self.requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, first_logit: Tensor, past: list[Tensor]) -> list[Tensor]:
        (cache,) = self.traced
        cache.hold(cache.states, past)
        T, total = input_ids.shape[1], attention_mask.shape[1]
        start, count = (torch.full((1,), size, dtype=torch.long) for size in (total - T, T))
        cache.block = Block(start=start, count=count, length=T, tentative=True)
        hidden = self.model.hidden(input_ids)
        logits = self.model.logits(_from(hidden, first_logit))
        return [logits, *cache.now(cache.states), *cache.now(cache.staged_inputs)]


class CommitGraph(nn.Module):
    """count int64 [1], bounded states and what a block staged -> the states after its first ``count`` tokens."""

    def __init__(self, cache: TracedCache) -> None:
        super().__init__()
        self.traced = (cache,)  # in a tuple, for not to own it

    def forward(self, count: Tensor, past: list[Tensor], staged: list[Tensor]) -> list[Tensor]:
        (cache,) = self.traced
        cache.hold(cache.bounded, past)
        cache.hold(cache.staged_inputs, staged)
        for layer in cache.cache_layers():
            layer.commit(count)
        return cache.now(cache.bounded)


def _from(hidden: Tensor, first: Tensor) -> Tensor:
    """hidden [1, T, hidden] from token ``first`` on."""
    number: int = first.item()  # type: ignore[assignment]  # a symbol while tracing
    check(number >= 0)
    check(number < hidden.shape[1])
    return hidden[:, number:]
