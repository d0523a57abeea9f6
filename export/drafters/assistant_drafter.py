"""Gemma 4's assistants: a chain of guesses at one place, which looks at the target's own keys and values.

With h the target's last hidden state, at position L - 1, and x the token at L, which is not committed yet,
``z = pre_projection([embed(x), h])`` goes through layers that attend over the target's rows of 0 … L - 1 alone. Their normed
output gives the next token, and by ``post_projection`` what stands for h one step further. The position stays L and no row is
added. Source: transformers 5.23 ``SinglePositionMultiTokenCandidateGenerator``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.export.adaptation.families.family import Unregistered
from hybridge.export.drafters.assistant_weights import AssistantWeights
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, Target
from hybridge.export.drafters.rope import Angles
from hybridge.export.drafters.tails import Chooser, Draws
from hybridge.runtime.artifacts.drafter_description import DrafterDescription


class AssistantDrafter(ArtifactDrafter):
    """The drafter over the target's layers ``sources``, one for each of its own.

    Its length says what it was given, as that of any drafter; where it looks is the target's.
    """

    def __init__(
        self,
        weights: AssistantWeights,
        sources: tuple[int, ...],
        cache: HybridCache,
        place: int,
        description: DrafterDescription,
    ) -> None:
        super().__init__(cache, place, description)
        self.weights, self.sources, self.state = weights, sources, Unregistered(cache)
        self.width = weights.config.target_width

    def draws(self, count: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, count), torch.zeros(1)

    def read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        return self.close(self.length.extend(tokens.shape[1], self._possible(count)))

    def draft(self, target: Target, guesses: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor) -> Answers:
        block = self.length.extend(tokens.shape[1], self._possible(count))
        last = (block.count - 1).clamp(min=0)
        token, h = tokens.index_select(1, last), hidden.index_select(1, last)
        chooser, place = Chooser(self.length.kernels, Draws(*draws)), self._last_position()
        angles = self.weights.angles(place.text_positions)
        found, chances, scores, candidates = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        for i in range(guesses):
            h, score, ids = self._step(target, token, h, place, angles)
            index, chance = chooser.at(i).choose(score)
            token = index if ids is None else ids[:, 0].gather(1, index)
            found.append(token)
            chances.append(chance)
            scores.append(score)
            candidates += [] if ids is None else [ids]
        fits = self.close(block) >= 0
        answers = torch.where(fits, torch.cat(found, dim=1), -1), torch.cat(chances, dim=1), torch.cat(scores, dim=1)
        return (*answers, torch.cat(candidates, dim=1)) if candidates else answers

    def _possible(self, count: Tensor) -> Tensor:
        """``count``, or 0 where the target has read nothing, so that there is nothing to look at."""
        return torch.where(self.state.cache.length > 0, count, 0)

    def _last_position(self) -> Block:
        """The target's last committed position, whose rows are the last that are seen; its text is one token ahead."""
        start = (self.state.cache.length - 1).clamp(min=0)
        return Block(start=start, count=torch.ones_like(start), length=1, ahead=1)

    def _step(
        self, target: Target, token: Tensor, h: Tensor, place: Block, angles: dict[str, Angles]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what stands for h [1, 1, F] one step behind ``token`` [1, 1], and the scores of what comes there."""
        weights = self.weights
        embedded = target.embed(token) * self.width**0.5
        x = weights.pre_projection(torch.cat([embedded, h], dim=-1))
        for layer, config, source in zip(weights.model.layers, weights.config.layers, self.sources, strict=True):
            x = layer(self.state.cache.part(source, AttentionLayer), x, place, angles[config.kind])
        x = weights.model.norm(x)
        return weights.post_projection(x), *weights.scores(x, self.length.kernels)
