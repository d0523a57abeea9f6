"""Gemma 4's assistants: a chain of draft tokens at one position, which attends to the target's own keys and values.

With h the target's last hidden state, at position L - 1, and x the token at L, which is not committed yet,
``z = pre_projection([embed(x), h])`` goes through layers that attend over the target's rows of 0 … L - 1 alone. Their normed
output gives the next token, and by ``post_projection`` what stands for h one step further. The position stays L and no row is
added. Each layer reads the keys and values of the target's last layer of the same type that has any.

Sources: transformers 5.23 ``SinglePositionMultiTokenCandidateGenerator``, ``models/gemma4_assistant``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.families.attention import first_sharing, shared_source
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels, Scoring
from hybridge.errors import CheckpointError, UsageError
from hybridge.export.drafters.drafter import (
    Answers,
    ArtifactDrafter,
    CheckpointPlan,
    TargetModel,
    TargetNeeds,
    VocabularyName,
    fitted,
    refuse_vocabulary,
)
from hybridge.export.drafters.folder import MOST_LAYERS, ConfigFields, DrafterFolder, fill, read_weights
from hybridge.export.drafters.layers import (
    Angles,
    DecoderConfig,
    DraftProposals,
    Mlp,
    RmsNorm,
    SamplingInputs,
    TokenSelector,
    load_rope,
    rotate,
)
from hybridge.export.drafters.vocabulary import DraftRows
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.weights import constant
from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.options import ExportOptions

TARGETS: Mapping[str, str] = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}
"""The model type of the target's text model, by the model type of the assistant."""
SLIDING = "sliding_attention"
OF_ALL_LAYERS = ("hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps", "attention_bias", "sliding_window")
"""Fields that transformers refuses to return if layers have values of their own."""
KNOWN: Mapping[str, tuple[Any, ...]] = {
    "tie_word_embeddings": (True,),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "hidden_size_per_layer_input": (0,),
    "enable_moe_block": (False,),
    "use_double_wide_mlp": (False,),
    "use_bidirectional_attention": ("vision",),
}
"""Values of fields that change the model."""


@dataclass(frozen=True, kw_only=True)
class AssistantLayerConfig(DecoderConfig):
    """One layer. kind: the type of the target's layer whose keys and values it reads; window: None for full attention."""

    kind: str
    window: int | None


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """The vocabulary in ``count`` clusters of one size. Only the tokens of the ``best`` ones get a score."""

    count: int
    best: int


@dataclass(frozen=True, kw_only=True)
class AssistantConfig:
    """A Gemma 4 assistant. target_width: of the target's hidden states; clusters: None if all tokens get a score."""

    target_width: int
    vocab_size: int
    layers: tuple[AssistantLayerConfig, ...]
    clusters: Clusters | None


def read_assistant_config(path: Path, content: Mapping[str, Any], target: Any) -> AssistantConfig | None:
    """Return the config in the config.json ``path``, or None if it is no assistant's. target: the text model's config.

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
    fields, inside = ConfigFields(path, content), content.get("text_config")
    if not isinstance(inside, Mapping):
        raise fields.wrong("text_config", "an object")
    own = ConfigFields(path, inside)
    for each in (fields, own):
        each.refuse_others(KNOWN, "assistant")
    text = _completed(path, own, inside, type(target))
    vocab = own.count("vocab_size", text.vocab_size)
    return AssistantConfig(
        target_width=fields.count("backbone_hidden_size"),
        vocab_size=vocab,
        layers=tuple(_layer(own, text, index) for index in range(text.num_hidden_layers)),
        clusters=_clusters(fields, vocab) if fields.truth("use_ordered_embeddings", False) else None,
    )


def source_of(folder: Path, layer: AssistantLayerConfig, target: Any) -> int:
    """Return the target's layer whose keys and values a layer of the drafter in ``folder`` reads.

    Raises UsageError if the target has none of that type, or none of that shape.
    """
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


def _completed(path: Path, own: ConfigFields, inside: Mapping[str, Any], kind: Any) -> Any:
    """Return the config of the text model inside, with transformers' default values."""
    layers = own.count("num_hidden_layers", most=MOST_LAYERS)
    if own.count("num_kv_shared_layers", layers, lowest=0) not in (0, layers):
        raise own.wrong("num_kv_shared_layers", f"all {layers} layers")
    try:
        text = kind.from_dict({**inside, "num_kv_shared_layers": layers})
        for name in OF_ALL_LAYERS:
            getattr(text, name)
        return text
    except Exception as error:  # whatever transformers' checks of a config run into
        raise CheckpointError(f"{path}: its text_config cannot be read ({' '.join(str(error).split())}).") from None


def _layer(own: ConfigFields, text: Any, index: int) -> AssistantLayerConfig:
    kind, sizes = text.layer_types[index], text.per_layer_config[index]
    rope = text.rope_parameters.get(kind)
    if not isinstance(rope, Mapping):
        raise own.wrong("rope_parameters", f"an object that has {kind}")
    heads = own.count("num_attention_heads", text.num_attention_heads)
    if sizes.num_key_value_heads < 1 or heads % sizes.num_key_value_heads:
        raise own.wrong("num_key_value_heads", f"a divisor of the {heads} heads")
    return AssistantLayerConfig(
        kind=kind,
        hidden_size=own.count("hidden_size", text.hidden_size),
        intermediate_size=own.count("intermediate_size", text.intermediate_size),
        heads=heads,
        kv_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_dim,
        eps=own.number("rms_norm_eps", text.rms_norm_eps),
        bias=text.attention_bias,
        window=text.sliding_window if kind == SLIDING else None,
        rope=rope,
    )


def _clusters(fields: ConfigFields, vocab: int) -> Clusters:
    count = fields.count("num_centroids", 2048)
    if vocab % count:
        raise fields.wrong("num_centroids", f"a divisor of the {vocab} tokens")
    return Clusters(count=count, best=fields.count("centroid_intermediate_top_k", 32, most=count))


class TargetAttention(nn.Module):
    """Attention over the keys and values of a layer of the target."""

    def __init__(self, c: AssistantLayerConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.heads * c.head_dim, bias=c.bias)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden_size, bias=c.bias)
        self.q_norm = RmsNorm(c.head_dim, c.eps)

    def forward(self, rows: AttentionLayer, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Attend with x [1, T, H] over the rows up to the block's positions."""
        query = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), angles)
        out: Tensor = self.o_proj(rows.attend_only(query, block, Scoring(scale=1.0)).flatten(2))
        return out


class AssistantLayer(nn.Module):
    """Attention and an MLP, each with a norm before and after it."""

    def __init__(self, c: AssistantLayerConfig) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = (RmsNorm(c.hidden_size, c.eps) for _ in range(2))
        self.self_attn = TargetAttention(c)
        self.mlp = Mlp(c, partial(F.gelu, approximate="tanh"))
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, rows: AttentionLayer, x: Tensor, block: Block, angles: Angles) -> Tensor:
        """Run x [1, T, H]."""
        x = x + self.post_attention_layernorm(self.self_attn(rows, self.input_layernorm(x), block, angles))
        out: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out * self.layer_scalar


class AssistantDecoder(nn.Module):
    """All layers. ``embed_tokens`` is only the output layer: a table if only some of its rows are read."""

    def __init__(self, c: AssistantConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AssistantLayer(layer) for layer in c.layers)
        hidden = c.layers[0].hidden_size
        self.norm = RmsNorm(hidden, c.layers[0].eps)
        table = nn.Linear(hidden, c.vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(c.vocab_size, hidden) if c.clusters else table


class MaskedEmbedding(nn.Module):
    """The tokens of the best clusters, by the product of a hidden state and each cluster's centroid.

    clusters: the tokens of each cluster int64 [count, size], set once the weights are loaded.
    """

    clusters: Tensor

    def __init__(self, hidden: int, c: Clusters) -> None:
        super().__init__()
        self.best = c.best
        self.centroids = nn.Linear(hidden, c.count, bias=False)

    def forward(self, hidden: Tensor, kernels: Kernels) -> Tensor:
        """Return the candidates int64 [1, 1, C] of hidden [1, 1, H]."""
        best = kernels.best_candidates(self.centroids(hidden), self.best)
        return self.clusters.index_select(0, best.flatten()).view(1, 1, -1)


class AssistantWeights(nn.Module):
    """The modules of an assistant. ropes: the rotary embedding of each type of layer, set once the weights are loaded."""

    ropes: nn.ModuleDict

    def __init__(self, c: AssistantConfig) -> None:
        super().__init__()
        self.config = c
        hidden = c.layers[0].hidden_size
        self.model = AssistantDecoder(c)
        self.pre_projection = nn.Linear(2 * c.target_width, hidden, bias=False)
        self.post_projection = nn.Linear(hidden, c.target_width, bias=False)
        self.masked_embedding = MaskedEmbedding(hidden, c.clusters) if c.clusters else None

    def angles(self, positions: Tensor) -> dict[str, Angles]:
        """Return cos and sin at positions int64 [T], by the type of layer."""
        return {kind: rope.angles(positions) for kind, rope in self.ropes.items()}  # type: ignore[operator]  # a Rope each

    def scores(self, hidden: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor | None]:
        """Return scores float32 [1, 1, C] of hidden [1, 1, H], and their candidates [1, 1, C], None for all tokens."""
        if self.masked_embedding is None:
            return self.model.embed_tokens(hidden), None
        candidates = self.masked_embedding(hidden, kernels)
        rows = self.model.embed_tokens(candidates[:, 0])  # [1, C, H]
        return (rows @ hidden.transpose(1, 2)).transpose(1, 2), candidates


# Weights

ORDERING = "masked_embedding.token_ordering"
UNUSED = re.compile(r"lm_head\.weight|model\.layers\.\d+\.self_attn\.[kv]_(proj|norm)\.weight")
"""The embedding once more, and weights for keys and values, which these layers do not compute."""


def load_assistant(folder: Path, c: AssistantConfig) -> AssistantWeights:
    """Read the weights in ``folder``, in float32.

    Raises CheckpointError if weights are missing, unknown, misshapen or not finite.
    """
    ropes = {layer.kind: load_rope(folder, layer) for layer in c.layers}
    found = read_weights(folder, lambda name: None if UNUSED.fullmatch(name) else name)
    ordering = found.pop(ORDERING, None) if c.clusters else None
    with torch.device("meta"):
        weights = AssistantWeights(c)
    fill(weights, found, folder)
    if weights.masked_embedding is not None:
        weights.masked_embedding.clusters = constant(_tokens_of_clusters(folder, ordering, c))
    weights.ropes = nn.ModuleDict(ropes)
    return weights


def _tokens_of_clusters(folder: Path, ordering: Tensor | None, c: AssistantConfig) -> Tensor:
    """Return the tokens of each cluster int64 [count, size], which ``ordering`` [V] lists cluster by cluster."""
    assert c.clusters is not None
    if ordering is None:
        raise CheckpointError(f"{folder} lacks {ORDERING}, which says what tokens its clusters have.")
    ids = ordering.round().long()
    if not torch.equal(ids.sort().values, torch.arange(c.vocab_size)):
        raise CheckpointError(f"{ORDERING} in {folder} is not {c.vocab_size} tokens in some order; the weights are damaged.")
    return ids.view(c.clusters.count, -1)


class AssistantDrafter(ArtifactDrafter):
    """The drafter over the target's layers ``sources``, one for each of its own. Its length counts what it was given."""

    def __init__(
        self,
        weights: AssistantWeights,
        sources: tuple[int, ...],
        cache: HybridCache,
        place: int,
        description: DrafterDescription,
    ) -> None:
        super().__init__(cache, place, description)
        self.weights, self.sources, self.width = weights, sources, weights.config.target_width

    def read(self, target: TargetModel, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        return self.close(self.length.extend(tokens.shape[1], self._possible(count)))

    def draft(
        self, target: TargetModel, draft_len: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor
    ) -> Answers:
        block = self.length.extend(tokens.shape[1], self._possible(count))
        last = (block.count - 1).clamp(min=0)
        token, h = tokens.index_select(1, last), hidden.index_select(1, last)
        selector = TokenSelector(self.length.kernels, SamplingInputs(*draws))
        # The target's last committed position, the last row to attend to; its text is one token ahead.
        start = (self.cache.length - 1).clamp(min=0)
        place = Block(start=start, count=torch.ones_like(start), length=1, ahead=1)
        angles = self.weights.angles(place.text_positions)
        steps: list[DraftProposals] = []
        for i in range(draft_len):
            h, scores, candidates = self._step(target, token, h, place, angles)
            steps.append(selector.choose(scores, i, candidates))
            token = steps[-1].tokens
        return DraftProposals.joined(steps).answers(self.close(block) >= 0)

    def _possible(self, count: Tensor) -> Tensor:
        """Return ``count``, or 0 before the target has read anything to attend to."""
        return torch.where(self.cache.length > 0, count, 0)

    def _step(
        self, target: TargetModel, token: Tensor, h: Tensor, place: Block, angles: dict[str, Angles]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the successor of h [1, 1, F] after ``token`` [1, 1], and the scores of the next token with candidates."""
        weights = self.weights
        embedded = target.embed(token) * self.width**0.5
        x = weights.pre_projection(torch.cat([embedded, h], dim=-1))
        for layer, config, source in zip(weights.model.layers, weights.config.layers, self.sources, strict=True):
            x = layer(self.cache.part(source, AttentionLayer), x, place, angles[config.kind])
        x = weights.model.norm(x)
        return weights.post_projection(x), *weights.scores(x, self.length.kernels)


@dataclass(frozen=True)
class AssistantPlan(CheckpointPlan):
    """The assistant in ``folder``. sources: the target's layers that it reads."""

    config: AssistantConfig
    sources: tuple[int, ...]
    reads_target: ClassVar[bool] = False
    before_window: ClassVar[int] = 1

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        return [DrafterLengthLayer(sizes, kernels)]

    def load(self, checkpoint: LoadedModel) -> AssistantWeights:
        return load_assistant(self.folder, self.config)

    def build(self, weights: Any, cache: HybridCache, head: Any, rows: DraftRows | None = None) -> ArtifactDrafter:
        return AssistantDrafter(weights, self.sources, cache, len(cache.layers) - 1, self.description)


def plan_assistant(
    folder: DrafterFolder, target: Any, options: ExportOptions, vocabulary: VocabularyName | None
) -> tuple[AssistantPlan, ExportOptions] | None:
    """Return the plan of an assistant for ``target``'s config, and the options with its taps; None for another folder."""
    config = read_assistant_config(folder.path, folder.config, target)
    if config is None:
        return None
    refuse_vocabulary(vocabulary, "assistants")
    needs = TargetNeeds(config.target_width, config.vocab_size, (target.num_hidden_layers,))
    taps, blocks, options = fitted(folder.place, needs, target, options)
    places = tuple(source_of(folder.place, layer, target) for layer in config.layers)
    return AssistantPlan(folder.place, taps, blocks, "gemma4_assistant", None, config, places), options
