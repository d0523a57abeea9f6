"""Gemma 4's assistants: a chain of guesses at one place, which looks at the target's own keys and values.

With h the target's last hidden state, at position L - 1, and x the token at L, which is not committed yet,
``z = pre_projection([embed(x), h])`` goes through layers that attend over the target's rows of 0 … L - 1 alone. Their normed
output gives the next token, and by ``post_projection`` what stands for h one step further. The position stays L and no row is
added. Source: transformers 5.23 ``SinglePositionMultiTokenCandidateGenerator``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.cache.families.attention import first_sharing, shared_source
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.operations.kernels import Kernels, Scoring
from hybridge.export.drafters.block_layers import Chooser, Draws, Mlp, RmsNorm
from hybridge.export.drafters.checkpoint import MOST_LAYERS, Angles, Fields, Rope, fill, load_rope, read_tensors, rotate
from hybridge.export.drafters.drafter import Answers, ArtifactDrafter, Target
from hybridge.export.layers import constant
from hybridge.export.model.families.family import Unregistered
from hybridge.runtime.artifacts.options import DrafterDescription


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


# What the config.json of a Gemma 4 assistant says: a small decoder without keys and values of its own.
#
# Each of its layers attends over those of the target's last layer of the same type that has any. Source:
# transformers 5.23
# ``models/gemma4_assistant``.


TARGETS: Mapping[str, str] = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}
"""For the model type of an assistant that of its target's text model."""
SLIDING = "sliding_attention"
OF_ALL_LAYERS = ("hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps", "attention_bias", "sliding_window")
"""Fields that transformers refuses to give where layers have values of their own."""


@dataclass(frozen=True, kw_only=True)
class AssistantLayerConfig:
    """The attention of one layer. kind: the type of the target's layer that it reads; window: none for full attention."""

    kind: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    rope: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """The vocabulary in ``count`` clusters of one size; of the ``best`` ones each token has a score, others have none."""

    count: int
    best: int


@dataclass(frozen=True, kw_only=True)
class AssistantConfig:
    """A Gemma 4 assistant. target_width: of the target's hidden states; clusters: none where all tokens have a score."""

    target_width: int
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    eps: float
    bias: bool
    layers: tuple[AssistantLayerConfig, ...]
    clusters: Clusters | None


def read_assistant_config(path: Path, content: Mapping[str, Any], target: Any) -> AssistantConfig | None:
    """Return what the config.json in ``path`` says, or None where it is not of an assistant. target: the text model's config.

    Raises UsageError for a target of another family, CheckpointError for values that no assistant can have,
    UnsupportedModelError for parts that hybridge does not know.
    """
    wanted = TARGETS.get(str(content.get("model_type")))
    if wanted is None:
        return None
    if target.model_type != wanted:
        raise UsageError(
            f"the drafter in {path.parent} is for another target: a {content['model_type']} is for a {wanted}, and this model "
            f"is a {target.model_type}. Give the drafter that was trained for this very model."
        )
    fields, inside = Fields(path, content), content.get("text_config")
    if not isinstance(inside, Mapping):
        raise fields.wrong("text_config", "an object")
    own = Fields(path, inside)
    _refuse_unknown_parts(fields, own)
    text = _completed(path, own, type(target))
    hidden, vocab = own.count("hidden_size", text.hidden_size), own.count("vocab_size", text.vocab_size)
    return AssistantConfig(
        target_width=fields.count("backbone_hidden_size"),
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=own.count("intermediate_size", text.intermediate_size),
        eps=own.number("rms_norm_eps", text.rms_norm_eps),
        bias=text.attention_bias,
        layers=tuple(_layer(own, text, index) for index in range(text.num_hidden_layers)),
        clusters=_clusters(fields, vocab) if fields.truth("use_ordered_embeddings", False) else None,
    )


def sources(folder: Path, config: AssistantConfig, target: Any) -> tuple[int, ...]:
    """Return the target's layer whose keys and values each layer of the drafter in ``folder`` reads.

    Raises UsageError where the target has none of that type, or none of that shape.
    """
    return tuple(_source(folder, layer, target) for layer in config.layers)


def _source(folder: Path, layer: AssistantLayerConfig, target: Any) -> int:
    if layer.kind not in (types := target.layer_types[: first_sharing(target)]):
        raise UsageError(
            f"the drafter in {folder} is for another target: it reads keys and values of {layer.kind}, and this model has "
            f"only those of {', '.join(sorted({*types})) or 'no layer'}. Give the drafter that was trained for this very model."
        )
    source = shared_source(target, layer.kind)
    theirs = target.per_layer_config[source]
    differing = [
        ("key/value heads", layer.kv_heads, theirs.num_key_value_heads),
        ("head dim", layer.head_dim, theirs.head_dim),
        ("window", layer.window, layer.window and target.sliding_window),
    ]
    for what, wanted, own in differing:
        if wanted != own:
            raise UsageError(
                f"the drafter in {folder} is for another target: its target's {layer.kind} has {what} {wanted}, and this "
                f"model's {own}. Give the drafter that was trained for this very model."
            )
    return source


def _completed(path: Path, own: Fields, kind: Any) -> Any:
    """The config of the text model inside, with what transformers takes where nothing is said."""
    layers = own.count("num_hidden_layers", most=MOST_LAYERS)
    if own.count("num_kv_shared_layers", layers, lowest=0) not in (0, layers):
        raise own.wrong("num_kv_shared_layers", f"all {layers} layers")
    try:
        text = kind.from_dict({**own.values, "num_kv_shared_layers": layers})
        for name in OF_ALL_LAYERS:
            getattr(text, name)
        return text
    except Exception as error:  # whatever transformers' checks of a config run into
        raise CheckpointError(f"{path}: its text_config is none ({' '.join(str(error).split())}).") from None


def _layer(own: Fields, text: Any, index: int) -> AssistantLayerConfig:
    kind, sizes = text.layer_types[index], text.per_layer_config[index]
    rope = text.rope_parameters.get(kind)
    if not isinstance(rope, Mapping):
        raise own.wrong("rope_parameters", f"an object that has {kind}")
    heads = own.count("num_attention_heads", text.num_attention_heads)
    if sizes.num_key_value_heads < 1 or heads % sizes.num_key_value_heads:
        raise own.wrong("num_key_value_heads", f"a divisor of the {heads} heads")
    return AssistantLayerConfig(
        kind=kind,
        hidden_size=text.hidden_size,
        heads=heads,
        kv_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        window=text.sliding_window if kind == SLIDING else None,
        rope=rope,
    )


def _clusters(fields: Fields, vocab: int) -> Clusters:
    count = fields.count("num_centroids", 2048)
    if vocab % count:
        raise fields.wrong("num_centroids", f"a divisor of the {vocab} tokens")
    return Clusters(count=count, best=fields.count("centroid_intermediate_top_k", 32, most=count))


def _refuse_unknown_parts(fields: Fields, own: Fields) -> None:
    known: Mapping[str, tuple[Any, ...]] = {
        "tie_word_embeddings": (True,),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "hidden_size_per_layer_input": (0,),
        "enable_moe_block": (False,),
        "use_double_wide_mlp": (False,),
        "use_bidirectional_attention": ("vision",),
    }
    for each in (fields, own):
        for name, values in known.items():
            if (value := each.get(name)) is not None and value not in values:
                raise UnsupportedModelError(f"{fields.path} asks for {name} {value!r}, which hybridge knows no assistant with.")


# A Gemma 4 assistant's weights: its modules, named as in a checkpoint, filled from the checkpoint's folder.


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

    def forward(self, hidden: Tensor, kernels: Kernels) -> Tensor:
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

    def scores(self, hidden: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor | None]:
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
        weights.masked_embedding.complete(_tokens_of_clusters(folder, ordering, c))
    weights.complete(ropes)
    return weights


def _tokens_of_clusters(folder: Path, ordering: Tensor | None, c: AssistantConfig) -> Tensor:
    """Return the tokens of each cluster int64 [count, size], which ``ordering`` [V] has one behind the other."""
    assert c.clusters is not None
    if ordering is None:
        raise CheckpointError(f"{folder} lacks {ORDERING}, which says what tokens its clusters have.")
    ids = ordering.round().long()
    if not torch.equal(ids.sort().values, torch.arange(c.vocab_size)):
        raise CheckpointError(f"{ORDERING} in {folder} is not {c.vocab_size} tokens in some order; the weights are damaged.")
    return ids.view(c.clusters.count, -1)
