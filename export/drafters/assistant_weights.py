"""A Gemma 4 assistant's weights: its modules, named as in a checkpoint, filled from the checkpoint's folder."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.errors import CheckpointError
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.drafting import DraftingKernels
from hybridge.cache.operations.kernels import Scoring
from hybridge.export.drafters.assistant_config import AssistantConfig, AssistantLayerConfig, Clusters
from hybridge.export.drafters.backbone import Mlp, RmsNorm
from hybridge.export.drafters.rope import Angles, Rope, load_rope, rotate
from hybridge.export.drafters.tensors import fill, read_tensors
from hybridge.export.layers.packed_layers import constant

ORDERING = "masked_embedding.token_ordering"
UNUSED = re.compile(r"lm_head\.weight|model\.layers\.\d+\.self_attn\.[kv]_(proj|norm)\.weight")
"""The embedding once more, and what layers without keys and values have no use for."""


class LookingAttention(nn.Module):
    """Queries alone; the keys and values are of a layer of the target."""

    def __init__(self, c: AssistantLayerConfig, eps: float, bias: bool) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.heads * c.head_dim, bias=bias)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden_size, bias=bias)
        self.q_norm = RmsNorm(c.head_dim, eps)

    def forward(self, rows: AttentionLayer, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Attend with x [1, T, H] over the rows up to the block's positions."""
        query = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), angles)
        out: Tensor = self.o_proj(rows.look(query, block, Scoring(scale=1.0)).flatten(2))
        return out


class AssistantLayer(nn.Module):
    """Attention and an MLP, each with a norm before and behind it."""

    def __init__(self, c: AssistantConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.self_attn = LookingAttention(c.layers[index], c.eps, c.bias)
        self.mlp = Mlp(c, partial(F.gelu, approximate="tanh"))
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, rows: AttentionLayer, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Run x [1, T, H]."""
        x = x + self.post_attention_layernorm(self.self_attn(rows, self.input_layernorm(x), block, angles))
        out: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out * self.layer_scalar


class Decoder(nn.Module):
    """All layers; ``embed_tokens`` is only the output layer, and a table where only some of its rows are read."""

    def __init__(self, c: AssistantConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AssistantLayer(c, index) for index in range(len(c.layers)))
        self.norm = RmsNorm(c.hidden_size, c.eps)
        table = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size) if c.clusters else table


class MaskedEmbedding(nn.Module):
    """The tokens of the best clusters, by the product of a hidden state and each cluster's centroid."""

    def __init__(self, hidden: int, c: Clusters) -> None:
        super().__init__()
        self.best = c.best
        self.centroids = nn.Linear(hidden, c.count, bias=False)

    def complete(self, clusters: Tensor) -> None:
        """Add the tokens of each cluster, int64 [count, size]."""
        self.clusters = constant(clusters)

    def forward(self, hidden: Tensor, kernels: DraftingKernels) -> Tensor:
        """Return the candidates int64 [1, 1, C] of hidden [1, 1, H]."""
        best = kernels.best_candidates(self.centroids(hidden), self.best)
        return self.clusters.index_select(0, best.flatten()).view(1, 1, -1)


class AssistantWeights(nn.Module):
    """The modules of an assistant, and after ``load_assistant`` the rotary embedding of each type of layer."""

    def __init__(self, c: AssistantConfig) -> None:
        super().__init__()
        self.config = c
        self.model = Decoder(c)
        self.pre_projection = nn.Linear(2 * c.target_width, c.hidden_size, bias=False)
        self.post_projection = nn.Linear(c.hidden_size, c.target_width, bias=False)
        self.masked_embedding = MaskedEmbedding(c.hidden_size, c.clusters) if c.clusters else None

    def complete(self, ropes: dict[str, Rope]) -> None:
        """Add the rotary embeddings."""
        self.ropes = nn.ModuleDict(ropes)

    def angles(self, positions: Tensor) -> dict[str, Angles]:
        """Return cos and sin at positions int64 [T] by the type of layer."""
        return {kind: rope.angles(positions) for kind, rope in self.ropes.items()}  # type: ignore[operator]  # a Rope each

    def scores(self, hidden: Tensor, kernels: DraftingKernels) -> tuple[Tensor, Tensor | None]:
        """Return scores float32 [1, 1, C] of hidden [1, 1, H], and of which candidates [1, 1, C]; none where of all tokens."""
        if self.masked_embedding is None:
            return self.model.embed_tokens(hidden), None
        candidates = self.masked_embedding(hidden, kernels)
        rows = self.model.embed_tokens(candidates[:, 0])  # [1, C, H]
        return (rows @ hidden.transpose(1, 2)).transpose(1, 2), candidates


def load_assistant(folder: Path, c: AssistantConfig) -> AssistantWeights:
    """Read the weights in ``folder``, in float32.

    Raises CheckpointError where weights are missing, unknown, misshapen or not finite.
    """
    ropes = {layer.kind: load_rope(folder, layer) for layer in c.layers}
    found = read_tensors(folder, lambda name: None if UNUSED.fullmatch(name) else name)
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors with a drafter's weights; get the checkpoint again.")
    ordering = found.pop(ORDERING, None) if c.clusters else None
    with torch.device("meta"):
        weights = AssistantWeights(c)
    fill(weights, found, folder, advice="is it whole, and are its config.json and its weights of one drafter?")
    if weights.masked_embedding is not None:
        weights.masked_embedding.complete(_clusters(folder, ordering, c))
    weights.complete(ropes)
    return weights


def _clusters(folder: Path, ordering: Tensor | None, c: AssistantConfig) -> Tensor:
    """Return the tokens of each cluster int64 [count, size], which ``ordering`` [V] has one behind the other."""
    assert c.clusters is not None
    if ordering is None:
        raise CheckpointError(f"{folder} lacks {ORDERING}, which says what tokens its clusters have.")
    ids = ordering.round().long()
    if not torch.equal(ids.sort().values, torch.arange(c.vocab_size)):
        raise CheckpointError(f"{ORDERING} in {folder} is not {c.vocab_size} tokens in some order; the weights are damaged.")
    return ids.view(c.clusters.count, -1)
