"""Block drafters as an artifact has them: DFlash, DFlash 2 and DSpark over the target's cache, embedding and head.

The last token of the text and masks behind it go through a small model at once, which sees what the target saw of every
committed position. Sources: DFlash arXiv:2602.06036; z-lab/dflash; mlx-vlm ``speculative/drafters/dspark``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.errors import CheckpointError
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import following
from hybridge.export.drafters.block_config import BlockDrafterConfig
from hybridge.export.drafters.block_layers import Backbone, CandidateSelector, Chooser, Draws, EachAlone, Guesses, MarkovTail
from hybridge.export.drafters.checkpoint import Rope, fill, load_rope, read_tensors
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, Target
from hybridge.export.layers import constant
from hybridge.export.model.families.family import Unregistered
from hybridge.runtime.artifacts.options import DrafterDescription


class BlockDrafter(ArtifactDrafter):
    """The drafter over the cache; its length is the cache's layer ``place``, its layers come behind it."""

    def __init__(self, weights: BlockWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights, self.state = weights, Unregistered(cache)
        config = weights.config
        self.width = len(config.target_layer_ids) * config.hidden_size

    def draws(self, count: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, count), torch.zeros(1)

    def read(self, target: Target, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        block = self.length.extend(tokens.shape[1], count)
        self._read(hidden, block)
        return self.close(block)

    def draft(self, target: Target, guesses: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor) -> Answers:
        block = self.length.extend(tokens.shape[1], count)
        self._read(hidden, block)
        last = tokens.index_select(1, (block.count - 1).clamp(min=0))
        found = self._guess(target, last, following(block, guesses + self.weights.config.first_guess), guesses, Draws(*draws))
        fits = self.close(block) >= 0
        answers = torch.where(fits, found.tokens, -1), found.chances, found.scores
        return answers if found.candidates is None else (*answers, found.candidates)

    def _read(self, hidden: Tensor, block: Block) -> None:
        # A select: padding may be NaN, and in a value not even a weight of 0 would hide that.
        taps = torch.where(block.real[:, None], hidden, 0.0)
        angles = self.weights.rope.angles(block.positions)
        self.weights.backbone.read(self.state.cache, self.place + 1, taps, block, angles)

    def _guess(self, target: Target, last: Tensor, block: Block, guesses: int, draws: Draws) -> Guesses:
        """Run ``last`` [1, 1] and masks as ``block``; the tail's guesses."""
        config, masks = self.weights.config, block.length - 1
        tokens = torch.cat([last, torch.full((1, masks), config.mask_token)], dim=1) if masks else last
        x = target.embed(tokens) * config.embedding_scale
        hidden = self.weights.backbone.run(
            self.state.cache, self.place + 1, x, block, self.weights.rope.angles(block.positions)
        )
        hidden = hidden[:, block.length - guesses :]
        tail: Any = self.weights.tail
        out: Guesses = tail(hidden, self._logits(target, hidden), last, Chooser(self.length.kernels, draws, self.weights.ids))
        return out

    def _logits(self, target: Target, hidden: Tensor) -> Tensor:
        config, own = self.weights.config, self.weights.head
        logits: Tensor = (target.head if own is None else own)(hidden) * config.output_multiplier
        return logits if config.softcap is None else (logits / config.softcap).tanh() * config.softcap


# A block drafter's weights: the modules of DFlash, DFlash 2 and DSpark, filled from a checkpoint's folder.


COPIES = ("embed_tokens.weight", "lm_head.weight")
"""What a checkpoint may have of its target's, for runtimes that hold a drafter apart from it."""
DERIVED = ("rotary_emb.inv_freq", "t2d", "d2t")
RENAMED = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
"""transformers' names of what others call otherwise."""


class BlockWeights(nn.Module):
    """The modules of a block drafter: a backbone, a tail, and, once it is loaded, its rotary embedding.

    head and ids int64 [n]: of the tokens that it may propose, where these are not all.
    """

    rope: Rope

    def __init__(self, config: BlockDrafterConfig, vocab: int) -> None:
        super().__init__()
        self.config = config
        self.backbone, self.tail = Backbone(config), build_tail(config, vocab)
        self.head: nn.Linear | None = None
        self.ids: Tensor | None = None

    def shorten(self, ids: Tensor, head: nn.Linear) -> None:
        """Let it propose the tokens ``ids`` int64 [n] alone, by these rows of the target's ``head``."""
        self.head, self.ids = rows_of(head, ids), constant(ids)
        if isinstance(self.tail, MarkovTail):
            self.tail.markov_head.markov_w2 = rows_of(self.tail.markov_head.markov_w2, ids)


def rows_of(layer: nn.Linear, ids: Tensor) -> nn.Linear:
    """Return a layer with the outputs ``ids`` of another alone."""
    with torch.device("meta"):
        part = nn.Linear(layer.in_features, len(ids), bias=layer.bias is not None)
    part.weight = constant(layer.weight.detach()[ids].float())
    if layer.bias is not None:
        part.bias = constant(layer.bias.detach()[ids].float())
    return part


def build_tail(config: BlockDrafterConfig, vocab: int) -> nn.Module:
    """Return the tail of ``config``'s kind, for the target's vocabulary."""
    if config.selector is not None:
        return CandidateSelector(config.hidden_size, vocab, config.selector)
    if config.markov is not None:
        return MarkovTail(config.hidden_size, vocab, config.markov)
    return EachAlone()


def load_block_weights(folder: Path, config: BlockDrafterConfig, vocab: int, copies: dict[str, Tensor]) -> BlockWeights:
    """Read the weights in ``folder``, in float32. vocab: tokens of the target; copies: its embedding and head, by COPIES'
    names.

    Raises CheckpointError where weights are missing, unknown, misshapen or not finite, or are copies of another target's.
    """
    rope = load_rope(folder, config)
    found = read_tensors(folder, _renamed)
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors with a drafter's weights; get the checkpoint again.")
    _check_copies(folder, {name: found.pop(name) for name in COPIES if name in found}, copies)
    if config.neighbours:
        found = {name: _halves(name, each, config.head_dim) for name, each in found.items()}
    with torch.device("meta"):
        weights = BlockWeights(config, vocab)
    advice = "is it whole, and are its config.json and its weights of one drafter?"
    fill(weights, {_place(name): each for name, each in found.items()}, folder, advice=advice)
    weights.rope = rope
    return weights


def _renamed(name: str) -> str | None:
    """The name without a prefix that some have; none for what is computed anew."""
    name = name.removeprefix("model.")
    name = RENAMED.get(name, name)
    if name.startswith("candidate_selector.") and name.endswith("_codebook"):
        name += ".weight"  # a parameter there, the table of an embedding here
    return None if name in DERIVED else name


def _place(name: str) -> str:
    """Where in the modules a tensor belongs."""
    if name.startswith(("markov_head.", "confidence_head.")):
        return f"tail.{name}"
    if name.startswith("candidate_selector."):
        return f"tail.{name.removeprefix('candidate_selector.')}"
    return f"backbone.{name}"


def _check_copies(folder: Path, found: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    """Raises CheckpointError where the checkpoint's embedding or head is not the target's: its guesses would be others."""
    for name, each in found.items():
        own = target[name]
        if each.shape != own.shape or not torch.allclose(each.bfloat16().float(), own.bfloat16().float()):
            raise CheckpointError(
                f"{folder} has another {name} ({list(each.shape)}) than the target ({list(own.shape)}): a block drafter shares "
                "its target's. Is it the drafter of this very model, and not of its base model?"
            )


def _halves(name: str, weight: Tensor, head_dim: int) -> Tensor:
    """Turn pairs of neighbours into halves: queries and keys with their channels in another order have the same products."""
    parts = name.split(".")
    if len(parts) < 2 or parts[-2] not in ("q_proj", "k_proj", "q_norm", "k_norm") or weight.shape[0] % head_dim:
        return weight
    order = torch.cat([torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)])
    turned: Tensor = weight.unflatten(0, (-1, head_dim))[:, order]
    return turned.flatten(0, 1).contiguous()
