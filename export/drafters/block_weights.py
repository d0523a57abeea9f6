"""A block drafter's weights: the modules of DFlash, DFlash 2 and DSpark, filled from a checkpoint's folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from hybridge.cache.errors import CheckpointError
from hybridge.export.drafters.backbone import Backbone
from hybridge.export.drafters.block_config import BlockDrafterConfig
from hybridge.export.drafters.rope import Rope, load_rope
from hybridge.export.drafters.tails import CandidateSelector, EachAlone, MarkovTail
from hybridge.export.drafters.tensors import fill, read_tensors
from hybridge.export.layers.packed_layers import constant

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
