"""Multi-token prediction: the drafter that Qwen3.5-type checkpoints carry in their ``mtp.*`` weights.

transformers ignores these weights. With h the model's hidden states after the final norm and x the tokens, position p has
``z = fc([norm(embed(x[p + 1])), norm(h[p])])``, one decoder layer attends over all z up to p, and its normed output g gives
by the model's own head what may be x[p + 2]; one step further g stands for h. Source: vLLM, ``qwen3_5_mtp.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import step
from hybridge.export.adaptation.families.family import Unregistered
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, Target
from hybridge.export.drafters.mtp_weights import MtpWeights
from hybridge.runtime.artifacts.drafter_description import DrafterDescription


class MtpDrafter(ArtifactDrafter):
    """The drafter over the model and the cache; its attention layer is the one behind its length."""

    def __init__(self, weights: MtpWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights = weights
        self.width = weights.fc.out_features
        self.state = Unregistered(cache)
        module: Any
        for module in weights.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx, module.hybridge = place + 1, Unregistered(cache)

    def read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        return self._read(target, hidden, tokens, count, ahead=0)[2]

    def draft(self, target: Target, guesses: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor) -> Answers:
        g, block, length = self._read(target, hidden, tokens, count, ahead=guesses)
        proposed, chances = self._propose(target, guesses, g, block)
        return torch.where(length >= 0, proposed, -1), chances

    def _read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor, ahead: int) -> tuple[Tensor, Block, Tensor]:
        """g [1, T, H] of the pairs, their block, and the drafter's length, -1 where they and ``ahead`` more do not fit."""
        block = self.length.extend(tokens.shape[1], count, ahead)
        # A select: padding may be NaN, and in a value not even a weight of 0 would hide that.
        g = self._run(target.decoder, torch.where(block.real[:, None], hidden, 0.0), tokens, block)
        return g, block, self.close(block)

    def _propose(self, target: Target, guesses: int, g: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        """Chain from the last counted row of g [1, T, H]: tokens int64 and their probabilities float32, both [1, N]."""
        g = g.index_select(1, (block.count - 1).clamp(min=0))
        tokens: list[Tensor] = []
        chances: list[Tensor] = []
        for i in range(guesses):
            if i:
                g = self._run(target.decoder, g, tokens[-1], step(block, i - 1))
            chance, token = target.logits(g).softmax(-1).max(-1)
            tokens.append(token)
            chances.append(chance)
        return torch.cat(tokens, dim=1), torch.cat(chances, dim=1)

    def _run(self, decoder: Any, hidden: Tensor, tokens: Tensor, block: Block) -> Tensor:
        self.state.cache.block = block
        w: Any = self.weights
        embedded = w.pre_fc_norm_embedding(decoder.embed_tokens(tokens))
        z = w.fc(torch.cat([embedded, w.pre_fc_norm_hidden(hidden)], dim=-1))
        rope = decoder.rotary_emb(z, block.positions[None])
        out: Tensor = w.norm(w.layers[0](z, position_embeddings=rope, attention_mask=None))
        return out
