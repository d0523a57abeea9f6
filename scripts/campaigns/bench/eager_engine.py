"""Run transformers eagerly with its dynamic cache."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from campaigns.bench.worker import VERIFY, tokens


class EagerEngine:
    """The cached forward of a checkpoint in float32."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint

    @torch.inference_mode()
    def load(self) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(self.checkpoint, dtype=torch.float32).eval()
        self.block = torch.tensor([tokens(VERIFY, self.model.config.vocab_size)])
        self.cache = DynamicCache(config=self.model.config)
        self.decode()

    def set_threads(self, count: int) -> None:
        torch.set_num_threads(count)

    @torch.inference_mode()
    def fill(self, context: int) -> None:
        """Make the layers by a short prefill, then give keys and values as many rows as are asked for."""
        self.cache = DynamicCache(config=self.model.config)
        self.model(input_ids=self.block, past_key_values=self.cache, logits_to_keep=1)
        for layer in self.cache.layers:
            if getattr(layer, "keys", None) is not None:
                layer.keys, layer.values = (_rows(old, context) for old in (layer.keys, layer.values))

    @torch.inference_mode()
    def decode(self) -> None:
        self.model(input_ids=self.block[:, :1], past_key_values=self.cache)

    @torch.inference_mode()
    def verify(self, count: int) -> None:
        self.model(input_ids=self.block[:, :count], past_key_values=self.cache)

    def commit(self, count: int) -> None:
        raise NotImplementedError("transformers cannot roll back recurrent state")

    @torch.inference_mode()
    def prefill(self, count: int) -> None:
        self.cache = DynamicCache(config=self.model.config)
        ids = torch.tensor([tokens(count, self.model.config.vocab_size)])
        self.model(input_ids=ids, past_key_values=self.cache, logits_to_keep=1)


def _rows(old: torch.Tensor, count: int) -> torch.Tensor:
    """[1, heads, count, size] of small random numbers."""
    return torch.rand(*old.shape[:2], count, old.shape[-1]) * 0.1
