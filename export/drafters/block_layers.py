"""The model of block drafters: DFlash, DFlash 2 and DSpark are one backbone of Qwen3-like layers with three tails.

A block is the text's last token and masks after it. Context rows c are made once, for all layers, of the target's hidden
states at committed positions. A layer's queries come from the block's rows x, its keys and values from c and x with the same
weights. c is not normalized by the layer, and its keys and values stay in the cache; those of x do not. The tail turns hidden
states and logits of the masks into draft tokens, each position by itself or after the token before it.

Sources: z-lab/dflash ``dflash/model.py``, whose ``GroupedDynamicCausalConv`` is DFlash 2's convolution; mlx-vlm
``speculative/drafters/dspark``.
Axes: T tokens, N draft tokens, H hidden size, K taps of a convolution, V vocabulary, C candidates, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterAttentionLayer, DrafterSlidingAttentionLayer
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.drafters.layers import (
    Angles,
    AttentionProjections,
    DecoderConfig,
    DraftProposals,
    Mlp,
    RmsNorm,
    TokenSelector,
)

BlockKind = Literal["dflash", "dflash2", "dspark"]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """DFlash 2's convolution along the block. kernel: taps; group: channels that share the change of a tap by the token."""

    kernel: int
    group: int


@dataclass(frozen=True, kw_only=True)
class Selector:
    """DFlash 2's choice among the ``candidates`` best tokens of each position by low-rank scores of neighbours."""

    rank: int
    candidates: int


@dataclass(frozen=True, kw_only=True)
class Markov:
    """DSpark's low-rank correction by the token before, and its confidence head.

    confidence_of_token: the head reads that token beside the hidden state.
    """

    rank: int
    confidence: bool
    confidence_of_token: bool


@dataclass(frozen=True, kw_only=True)
class BlockDrafterConfig(DecoderConfig):
    """A block drafter.

    Args:
        windows: of each layer, None for full attention.
        causal: of each layer, False if draft tokens attend to later ones.
        block: tokens of a block with the text's last one, so one less are draft tokens.
        first_guess: the row of the first of them.
        neighbours: rope rotates pairs of neighbours, not of halves.
        target_layers: of the target, None if unknown.
    """

    kind: BlockKind
    vocab_size: int | None
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    neighbours: bool
    target_layer_ids: tuple[int, ...]
    target_layers: int | None
    block: int
    first_guess: int
    mask_token: int
    embedding_scale: float
    output_multiplier: float
    softcap: float | None
    convolution: Convolution | None = None
    selector: Selector | None = None
    markov: Markov | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """Return the hidden states to read as transformers counts them: 0 the embeddings, i after i layers."""
        return tuple(index + 1 for index in self.target_layer_ids)


class GroupedConvolution(nn.Module):
    """A causal convolution along the block, before a sublayer and once more after it.

    ``out[t, c] = sum over lag of (base[lag, c] + change[t, lag, group of c]) x[t - lag, c]``. The changes of both are computed
    from the sublayer's input. Zeros come before the block's first token.
    """

    def __init__(self, hidden: int, c: Convolution) -> None:
        super().__init__()
        self.taps, self.groups = c.kernel, hidden // c.group
        self.base_kernel = nn.Parameter(torch.zeros(2, c.kernel, hidden))
        self.kernel_projection = nn.Linear(hidden, 2 * c.kernel * self.groups, bias=False)

    def before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the sublayer for x [1, T, H], and the changes [1, T, K, groups] for ``after``."""
        change = self.kernel_projection(x).unflatten(-1, (2, self.taps, self.groups))
        return self.convolve(x, change[:, :, 0], self.base_kernel[0]), change[:, :, 1]

    def after(self, x: Tensor, change: Tensor) -> Tensor:
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
    """A decoder layer, with DFlash 2's convolutions around its sublayers if the config has them."""

    def __init__(self, c: BlockDrafterConfig, index: int) -> None:
        super().__init__()
        self.causal, self.scale = c.causal[index], c.head_dim**-0.5
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.self_attn, self.mlp = AttentionProjections(c, c.hidden_size, norms=True), Mlp(c)
        self.has_convolution = c.convolution is not None
        if c.convolution is not None:
            self.attention_conv, self.mlp_conv = (GroupedConvolution(c.hidden_size, c.convolution) for _ in range(2))

    def read(self, state: Any, context: Tensor, block: Block, angles: Angles) -> None:
        """Store keys and values of context rows [1, T, H]."""
        state.read(*self.self_attn.rows(context, angles), block)

    def forward(self, state: Any, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Run a block's rows x [1, T, H]."""
        h, change = self.input_layernorm(x), None
        if self.has_convolution:
            h, change = self.attention_conv.before(h)
        attention = self.self_attn
        keys, values = attention.rows(h, angles)
        scoring = Scoring(scale=self.scale)
        out = state.attend_block(attention.query(h, angles), keys, values, block, scoring, causal=self.causal)
        h = attention.o_proj(out.flatten(2))
        x = x + (h if change is None else self.attention_conv.after(h, change))
        h, change = self.post_attention_layernorm(x), None
        if self.has_convolution:
            h, change = self.mlp_conv.before(h)
        h = self.mlp(h)
        return x + (h if change is None else self.mlp_conv.after(h, change))


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
        """Run a block's embedded tokens x [1, T, H]. Returns the hidden states [1, T, H] after the last norm."""
        for index, layer in enumerate(self.layers):
            x = layer(state_of(cache, place + index), x, block, angles)
        out: Tensor = self.norm(x)
        return out


def state_of(cache: HybridCache, index: int) -> DrafterAttentionLayer | DrafterSlidingAttentionLayer:
    """Return the state of a drafter's layer."""
    layer = cache.cache_layers()[index]
    assert isinstance(layer, DrafterAttentionLayer | DrafterSlidingAttentionLayer)
    return layer


# Tails


def build_tail(config: BlockDrafterConfig, vocab: int) -> nn.Module:
    """Return the tail of ``config``'s kind, for the target's vocabulary."""
    if config.selector is not None:
        return CandidateSelector(config.hidden_size, vocab, config.selector)
    if config.markov is not None:
        return MarkovTail(config.hidden_size, vocab, config.markov)
    return IndependentHead()


class IndependentHead(nn.Module):
    """DFlash: each position's own best token, or a draw from its own logits."""

    def forward(self, hidden: Tensor, logits: Tensor, last: Tensor, selector: TokenSelector) -> DraftProposals:
        """Propose from hidden [1, N, H] and logits [1, N, C]; ``last`` [1, 1] is the token before them."""
        return selector.choose(logits)


class CandidateSelector(nn.Module):
    """DFlash 2: the best tokens of each position, of which each is chosen by how it follows the one before.

    ``score(candidate) = logit + <predecessor[previous] * projection(hidden), successor[candidate]>``.
    """

    def __init__(self, hidden: int, vocab: int, c: Selector) -> None:
        super().__init__()
        self.candidates = c.candidates
        self.predecessor_codebook, self.successor_codebook = (nn.Embedding(vocab, c.rank) for _ in range(2))
        self.hidden_projection = nn.Linear(hidden, c.rank, bias=False)

    def forward(self, hidden: Tensor, logits: Tensor, last: Tensor, selector: TokenSelector) -> DraftProposals:
        places = selector.kernels.best_candidates(logits, min(self.candidates, logits.shape[-1]))
        unary, best = logits.gather(-1, places), selector.named(places)
        projected, successors = self.hidden_projection(hidden), self.successor_codebook(best)  # [1, N, r], [1, N, C, r]
        steps: list[DraftProposals] = []
        for i in range(logits.shape[1]):
            wanted = self.predecessor_codebook(steps[-1].tokens if steps else last) * projected[:, i : i + 1]  # [1, 1, r]
            scores = unary[:, i : i + 1] + (successors[:, i] @ wanted.transpose(1, 2)).transpose(1, 2)
            steps.append(selector.choose(scores, i, best[:, i : i + 1]))
        return DraftProposals.joined(steps)


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

    def forward(self, hidden: Tensor, logits: Tensor, last: Tensor, selector: TokenSelector) -> DraftProposals:
        steps: list[DraftProposals] = []
        for i in range(logits.shape[1]):
            previous = self.markov_head.markov_w1(steps[-1].tokens if steps else last)
            step = selector.choose(logits[:, i : i + 1] + self.markov_head.markov_w2(previous), i)
            if self.confidence_head is not None:
                one = hidden[:, i : i + 1]
                confidence = self.confidence_head.proj(torch.cat([one, previous], dim=-1) if self.of_token else one)
                step = replace(step, probabilities=confidence.sigmoid().squeeze(-1))
            steps.append(step)
        return DraftProposals.joined(steps)
