"""From a block's hidden states and logits to draft tokens: each position by itself, or each by the one before it.

Every tail gives the tokens int64 [1, N], the chance float32 [1, N] that each is right if those before it are, and the scores
float32 [1, N, C] that each was chosen by, of all tokens or of the candidates int64 [1, N, C], or [1, 1, C] for all of them.
With a temperature a token is drawn from softmax(scores / temperature) by its noise in [0, 1), with 0 it is the best one.

Axes: N draft tokens, V vocabulary, C candidates, H hidden size, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hybridge.cache.operations.drafting import DraftingKernels
from hybridge.export.drafters.block_config import Markov, Selector


@dataclass(frozen=True)
class Draws:
    """noise float32 [1, N] and temperature float32 [1]."""

    noise: Tensor
    temperature: Tensor

    def at(self, i: int) -> Draws:
        """Return the draw of draft token ``i``."""
        return Draws(self.noise[:, i : i + 1], self.temperature)


@dataclass(frozen=True)
class Guesses:
    """What a tail gives; see above."""

    tokens: Tensor
    chances: Tensor
    scores: Tensor
    candidates: Tensor | None = None


@dataclass(frozen=True)
class Chooser:
    """How tokens are chosen: by what kernels, draws, and ids int64 [C] of what the scores are of, if not of all tokens."""

    kernels: DraftingKernels
    draws: Draws
    ids: Tensor | None = None

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index int64 [1, N] of what is chosen of scores [1, N, C], and the best one's probability [1, N]."""
        return self.kernels.draw(scores, self.draws.noise, self.draws.temperature), self.kernels.top_chance(scores)

    def at(self, i: int) -> Chooser:
        """Return what chooses draft token ``i`` alone."""
        return Chooser(self.kernels, self.draws.at(i), self.ids)

    def named(self, places: Tensor) -> Tensor:
        """Return the tokens at ``places`` int64 [...] of the scores."""
        return places if self.ids is None else self.ids.index_select(0, places.flatten()).view(places.shape)

    @property
    def candidates(self) -> Tensor | None:
        """Return ``ids`` as candidates [1, 1, C] of all draft tokens: a result, as a program must not give out its own."""
        return None if self.ids is None else self.ids[None, None] + 0


class EachAlone(nn.Module):
    """DFlash: each position's own best token, or a draw from its own logits."""

    def forward(self, hidden: Tensor, logits: Tensor, last: Tensor, chooser: Chooser) -> Guesses:
        """Guess from hidden [1, N, H] and logits [1, N, C]; ``last`` [1, 1] is the token before them."""
        places, chances = chooser.choose(logits)
        return Guesses(chooser.named(places), chances, logits, chooser.candidates)


class CandidateSelector(nn.Module):
    """DFlash 2: the best tokens of each position, of which each is chosen by how it follows the one before.

    ``score(candidate) = logit + <predecessor[previous] * projection(hidden), successor[candidate]>``.
    """

    def __init__(self, hidden: int, vocab: int, c: Selector) -> None:
        super().__init__()
        self.candidates = c.candidates
        self.predecessor_codebook, self.successor_codebook = (nn.Embedding(vocab, c.rank) for _ in range(2))
        self.hidden_projection = nn.Linear(hidden, c.rank, bias=False)

    def forward(self, hidden: Tensor, logits: Tensor, last: Tensor, chooser: Chooser) -> Guesses:
        places = chooser.kernels.best_candidates(logits, min(self.candidates, logits.shape[-1]))
        unary, best = logits.gather(-1, places), chooser.named(places)
        projected, successors = self.hidden_projection(hidden), self.successor_codebook(best)  # [1, N, r], [1, N, C, r]
        tokens, chances, scores = [last], [], []
        for i in range(logits.shape[1]):
            wanted = self.predecessor_codebook(tokens[-1]) * projected[:, i : i + 1]  # [1, 1, r]
            scores.append(unary[:, i : i + 1] + (successors[:, i] @ wanted.transpose(1, 2)).transpose(1, 2))
            index, chance = chooser.at(i).choose(scores[-1])
            tokens.append(best[:, i].gather(-1, index))
            chances.append(chance)
        return Guesses(torch.cat(tokens[1:], dim=1), torch.cat(chances, dim=1), torch.cat(scores, dim=1), best)


class MarkovHead(nn.Module):
    """DSpark's correction: ``logits + w2(w1[previous])``."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(vocab, rank), nn.Linear(rank, vocab, bias=False)


class ConfidenceHead(nn.Module):
    """DSpark's own estimate that a token is right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class MarkovTail(nn.Module):
    """DSpark: each position by its logits and the token before it."""

    def __init__(self, hidden: int, vocab: int, c: Markov) -> None:
        super().__init__()
        self.markov_head = MarkovHead(vocab, c.rank)
        self.of_token = c.confidence_of_token
        self.confidence_head = ConfidenceHead(hidden + (c.rank if c.confidence_of_token else 0)) if c.confidence else None

    def forward(self, hidden: Tensor, logits: Tensor, last: Tensor, chooser: Chooser) -> Guesses:
        tokens, chances, scores = [last], [], []
        for i in range(logits.shape[1]):
            previous = self.markov_head.markov_w1(tokens[-1])
            scores.append(logits[:, i : i + 1] + self.markov_head.markov_w2(previous))
            index, chance = chooser.at(i).choose(scores[-1])
            tokens.append(chooser.named(index))
            chances.append(chance if self.confidence_head is None else self._confidence(hidden[:, i : i + 1], previous))
        found = torch.cat(tokens[1:], dim=1), torch.cat(chances, dim=1), torch.cat(scores, dim=1)
        return Guesses(*found, chooser.candidates)

    def _confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        assert self.confidence_head is not None
        seen = torch.cat([hidden, previous], dim=-1) if self.of_token else hidden
        chance: Tensor = self.confidence_head.proj(seen).sigmoid().squeeze(-1)
        return chance
