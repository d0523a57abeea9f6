"""The backbone of block drafters: Qwen3-like layers over what was committed and a block of draft tokens at once.

With c the context rows, which come of the target's hidden states once for all layers, and x a block's rows: queries are of x,
keys and values of c and of x, by the same weights; c is not normed by the layer, and is kept, x is not.

Source: z-lab/dflash ``dflash/model.py``; DFlash 2's convolution is its ``GroupedDynamicCausalConv``.
Axes: T tokens, H hidden size, G key/value heads, D head dim, K taps of a convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterAttentionLayer, DrafterSlidingAttentionLayer
from hybridge.cache.operations.kernels import Kernels, Scoring
from hybridge.export.drafters.block_config import BlockDrafterConfig, Convolution, Markov, Selector
from hybridge.export.drafters.checkpoint import Angles, AttentionSizes, rotate


class MlpSizes(Protocol):
    """The sizes of an MLP."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...


class Sizes(AttentionSizes, MlpSizes, Protocol):
    """The sizes of a layer."""

    @property
    def eps(self) -> float: ...
    @property
    def bias(self) -> bool: ...


class RmsNorm(nn.Module):
    """``weight * x / root(mean(x^2) + eps)``."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Attention(nn.Module):
    """What goes into attention and comes out of it; width: of the rows that go in; norms: of queries and keys by head."""

    def __init__(self, c: Sizes, width: int, *, norms: bool) -> None:
        super().__init__()
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(width, queries, bias=c.bias)
        self.k_proj, self.v_proj = (nn.Linear(width, keys, bias=c.bias) for _ in range(2))
        self.o_proj = nn.Linear(queries, c.hidden_size, bias=c.bias)
        self.q_norm, self.k_norm = (RmsNorm(c.head_dim, c.eps) if norms else nn.Identity() for _ in range(2))

    def rows(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Keys and values [1, T, G, D] of rows x [1, T, H]."""
        keys = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim))), angles)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.head_dim))

    def query(self, x: Tensor, angles: Angles) -> Tensor:
        """Queries [1, T, heads, D] of rows x [1, T, H]."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), angles)


class Mlp(nn.Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, c: MlpSizes, act: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.act = act
        self.gate_proj, self.up_proj = (nn.Linear(c.hidden_size, c.intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return out


class GroupedConvolution(nn.Module):
    """A causal convolution along the block, before a sublayer and once more behind it.

    ``out[t, c] = sum over lag of (base[lag, c] + change[t, lag, group of c]) x[t - lag, c]``; the changes of both come of what
    goes into the sublayer. The block's first token has nothing before it.
    """

    def __init__(self, hidden: int, c: Convolution) -> None:
        super().__init__()
        self.taps, self.groups = c.kernel, hidden // c.group
        self.base_kernel = nn.Parameter(torch.zeros(2, c.kernel, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * c.kernel * self.groups, bias=False)

    def before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What goes into the sublayer for x [1, T, H], and the changes [1, T, K, groups] of the convolution behind it."""
        change = self.kernel_projection(x).unflatten(-1, (2, self.taps, self.groups))
        return self.convolve(x, change[:, :, 0], self.base_kernel[0]), change[:, :, 1]

    def behind(self, x: Tensor, change: Tensor) -> Tensor:
        """Return the sublayer's output x [1, T, H] convolved."""
        return self.convolve(x, change, self.base_kernel[1])

    def convolve(self, x: Tensor, change: Tensor, base: Tensor) -> Tensor:
        """Convolve x [1, T, H] with change [1, T, K, groups] and base [K, H]."""
        T = x.shape[1]
        kernels = base.unflatten(1, (self.groups, -1)) + change.unsqueeze(-1)  # [1, T, K, groups, channels]
        padded = F.pad(x, (0, 0, self.taps - 1, 0)).unflatten(-1, (self.groups, -1))
        out: Tensor = kernels[:, :, 0] * padded[:, self.taps - 1 :]
        for lag in range(1, self.taps):
            out = out + kernels[:, :, lag] * padded[:, self.taps - 1 - lag : self.taps - 1 - lag + T]
        return out.flatten(2)


class DrafterLayer(nn.Module):
    """One layer; its state is the cache layer at ``place``."""

    def __init__(self, c: BlockDrafterConfig, index: int) -> None:
        super().__init__()
        self.causal, self.scale = c.causal[index], c.head_dim**-0.5
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.self_attn, self.mlp = Attention(c, c.hidden_size, norms=True), Mlp(c)
        if c.convolution is not None:
            self.attention_conv, self.mlp_conv = (GroupedConvolution(c.hidden_size, c.convolution) for _ in range(2))
        self.has_convolution = c.convolution is not None

    def read(self, state: Any, context: Tensor, block: Block, angles: Angles) -> None:
        """Keep keys and values of context rows [1, T, H]."""
        state.read(*self.self_attn.rows(context, angles), block)

    def forward(self, state: Any, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Run a block's rows x [1, T, H]."""
        return self._second(self._first(state, x, block, angles))

    def _first(self, state: Any, x: Tensor, block: Block, angles: Angles) -> Tensor:
        h, change = self.input_layernorm(x), None
        if self.has_convolution:
            h, change = self.attention_conv.before(h)
        attention = self.self_attn
        keys, values = attention.rows(h, angles)
        scoring = Scoring(scale=self.scale)
        out = state.attend_block(attention.query(h, angles), keys, values, block, scoring, causal=self.causal)
        h = attention.o_proj(out.flatten(2))
        return x + (h if change is None else self.attention_conv.behind(h, change))

    def _second(self, x: Tensor) -> Tensor:
        h, change = self.post_attention_layernorm(x), None
        if self.has_convolution:
            h, change = self.mlp_conv.before(h)
        h = self.mlp(h)
        return x + (h if change is None else self.mlp_conv.behind(h, change))


class Backbone(nn.Module):
    """All layers and the norms around them, named as in a checkpoint; the cache has their state from ``place`` on."""

    def __init__(self, c: BlockDrafterConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(len(c.target_layer_ids) * c.hidden_size, c.hidden_size, bias=False)
        self.hidden_norm, self.norm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.layers = nn.ModuleList(DrafterLayer(c, index) for index in range(len(c.windows)))

    def read(self, cache: HybridCache, place: int, taps: Tensor, block: Block, angles: Angles) -> None:
        """Read the target's hidden states, taps [1, T, F], of committed positions."""
        context = self.hidden_norm(self.fc(taps))
        for index, layer in enumerate(self.layers):
            layer.read(state_of(cache, place + index), context, block, angles)  # type: ignore[operator]

    def run(self, cache: HybridCache, place: int, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Run a block's embedded tokens x [1, T, H]; hidden states [1, T, H] after the last norm."""
        for index, layer in enumerate(self.layers):
            x = layer(state_of(cache, place + index), x, block, angles)
        out: Tensor = self.norm(x)
        return out


def state_of(cache: HybridCache, index: int) -> DrafterAttentionLayer | DrafterSlidingAttentionLayer:
    """Return the state of a drafter's layer."""
    layer = cache.cache_layers()[index]
    assert isinstance(layer, DrafterAttentionLayer | DrafterSlidingAttentionLayer)
    return layer


# From a block's hidden states and logits to draft tokens: each position by itself, or each by the one before it.
#
# Every tail gives the tokens int64 [1, N], the chance float32 [1, N] that each is right if those before it are, and
# the scores
# float32 [1, N, C] that each was chosen by, of all tokens or of the candidates int64 [1, N, C], or [1, 1, C] for
# all of them.
# With a temperature a token is drawn from softmax(scores / temperature) by its noise in [0, 1), with 0 it is the
# best one.
#
# Axes: N draft tokens, V vocabulary, C candidates, H hidden size, r rank.


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

    kernels: Kernels
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
