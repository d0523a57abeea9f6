"""Multi-token prediction: the drafter that Qwen3.5-type checkpoints carry in their ``mtp.*`` weights.

transformers ignores these weights. With h the model's hidden states after the final norm and x the tokens, position p has
``z = fc([norm(embed(x[p + 1])), norm(h[p])])``, one decoder layer attends over all z up to p, and its normed output g gives
by the model's own head what may be x[p + 2]; one step further g stands for h. Source: vLLM, ``qwen3_5_mtp.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter_attention import DrafterAttentionLayer, step
from hybridge.export.adaptation.families.family import Unregistered
from hybridge.export.checkpoint.mtp_weights import MtpWeights


class MtpDrafter(nn.Module):
    """The drafter over the model and the cache; its attention layer is the cache's last one."""

    def __init__(self, weights: MtpWeights, cache: HybridCache, draft_len: int) -> None:
        super().__init__()
        self.weights, self.draft_len = weights, draft_len
        self.cache = Unregistered(cache)
        index = len(cache.cache_layers()) - 1
        self.index = index
        module: Any
        for module in weights.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx, module.hybridge = index, Unregistered(cache)

    def read(self, decoder: Any, hidden: Tensor, tokens: Tensor, count: Tensor, ahead: int = 0) -> tuple[Tensor, Block, Tensor]:
        """Take in the first ``count`` pairs of hidden [1, T, H] and the tokens [1, T] after each.

        Returns g [1, T, H], the block, and the drafter's length int64 [1], -1 where the pairs and ``ahead`` more do not fit.
        """
        cache = self.cache.cache
        layer = cache.part(self.index, DrafterAttentionLayer)
        block = layer.extend(tokens.shape[1], count, ahead)
        # A select: padding may be NaN, and in a value not even a weight of 0 would hide that.
        g = self._run(decoder, torch.where(block.real[:, None], hidden, 0.0), tokens, block)
        if cache.sizes.snapshot_slots:
            cache.forget_slots(layer.overwritten_slots(block))
        length = layer.close(block)
        cache.count(block.count > 0)
        return g, block, length

    def propose(self, decoder: Any, head: Any, g: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Chain from the last counted row of g [1, T, H]: tokens int64 and their probabilities float32, both [1, K]."""
        g = g.index_select(1, (block.count - 1).clamp(min=0))
        tokens: list[Tensor] = []
        chances: list[Tensor] = []
        for i in range(self.draft_len):
            if i:
                g = self._run(decoder, g, tokens[-1], step(block, i - 1))
            chance, token = head(g).softmax(-1).max(-1)
            tokens.append(token)
            chances.append(chance)
        return torch.cat(tokens, dim=1), torch.cat(chances, dim=1)

    def _run(self, decoder: Any, hidden: Tensor, tokens: Tensor, block: Block) -> Tensor:
        self.cache.cache.block = block
        w: Any = self.weights
        embedded = w.pre_fc_norm_embedding(decoder.embed_tokens(tokens))
        z = w.fc(torch.cat([embedded, w.pre_fc_norm_hidden(hidden)], dim=-1))
        rope = decoder.rotary_emb(z, block.positions[None])
        out: Tensor = w.norm(w.layers[0](z, position_embeddings=rope, attention_mask=None))
        return out
