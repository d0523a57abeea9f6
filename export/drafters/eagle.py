"""EAGLE-3: a llama layer that predicts the target's next state from hidden states of three layers and the next token.

With h = fc(hidden states) at position p and x the token after it, ``g = layer([norm(embed(x)), norm(h)])`` gives by the
drafter's own head what may come next; one step further g stands for h. Sources: EAGLE-3, arXiv:2503.01840; vLLM
``llama_eagle3.py``; SGLang ``llama_eagle3.py``; mlx-vlm ``speculative/drafters/eagle3/config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterAttentionLayer, DrafterLengthLayer, following
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels, Scoring
from hybridge.errors import CheckpointError
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
from hybridge.export.drafters.folder import ConfigFields, DrafterFolder, fill, read_weights
from hybridge.export.drafters.layers import (
    AttentionProjections,
    DecoderConfig,
    DraftProposals,
    Mlp,
    RmsNorm,
    Rope,
    SamplingInputs,
    TokenSelector,
    decoder_fields,
    known,
    load_rope,
)
from hybridge.export.drafters.vocabulary import DraftRows
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.weights import constant
from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.options import ExportOptions

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3DraftModel", "Eagle3Speculator")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
KNOWN = {
    "hidden_act": ("silu",),
    "num_hidden_layers": (1,),
    "norm_before_fc": (False,),
    "model_type": ("llama", "qwen3", "eagle3"),
}
"""Values of fields that change the model."""


@dataclass(frozen=True, kw_only=True)
class EagleConfig(DecoderConfig):
    """An EAGLE-3 drafter: one llama layer over a token's embedding and the state before it.

    Args:
        target_width: of the target's hidden states.
        taps: which of them, as transformers counts them, empty for the default.
        draft_vocab: tokens of its own head.
        norm_before_residual: the residual is the normalized state.
    """

    target_width: int
    vocab_size: int
    draft_vocab: int
    taps: tuple[int, ...]
    norm_before_residual: bool


def read_eagle_config(path: Path, content: Mapping[str, Any]) -> EagleConfig | None:
    """Return the config in the config.json ``path``, of the authors and SGLang or of vLLM's speculators; None for others.

    Raises CheckpointError for values that no drafter can have, UnsupportedModelError for parts that hybridge does not know.
    """
    layer, nested = content.get("transformer_layer_config"), content.get("eagle_config")
    fields = ConfigFields(path, {**(layer if isinstance(layer, Mapping) else {}), **content})
    named = {*fields.names("architectures")} & {*ARCHITECTURES}
    if not named and fields.values.get("speculators_model_type") != "eagle3":
        return None
    fields.refuse_others(KNOWN, "EAGLE-3 drafter")
    decoder = decoder_fields(fields)
    # vLLM names the layers that a state enters, SGLang those that it leaves: two names of one place differ by one.
    taps = fields.counts(LAYER_IDS) if LAYER_IDS in fields.values else []
    if not taps and isinstance(nested, Mapping) and nested.get(LAYER_IDS) is not None:
        taps = [index + 1 for index in ConfigFields(path, nested).counts(LAYER_IDS)]
    vocab = fields.count("vocab_size")
    return EagleConfig(
        **decoder,
        target_width=fields.count("target_hidden_size", decoder["hidden_size"]),
        vocab_size=vocab,
        draft_vocab=fields.count("draft_vocab_size", vocab),
        taps=tuple(taps),
        norm_before_residual=fields.truth("norm_before_residual", False),
    )


class EagleLayer(nn.Module):
    """The layer, named as in a checkpoint."""

    def __init__(self, c: EagleConfig) -> None:
        super().__init__()
        self.scale, self.norm_before_residual = c.head_dim**-0.5, c.norm_before_residual
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            RmsNorm(c.hidden_size, c.eps) for _ in range(3)
        )
        self.self_attn = AttentionProjections(c, width=2 * c.hidden_size, norms=False)
        self.mlp = Mlp(c)

    def forward(self, state: DrafterAttentionLayer, embedded: Tensor, h: Tensor, block: Block, rope: Rope) -> Tensor:
        """Run rows h [1, T, H] with the embedded token [1, T, H] after each."""
        normed = self.hidden_norm(h)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        angles, attention = rope.angles(block.positions), self.self_attn
        keys, values = attention.rows(both, angles)
        out: Tensor = state.attend(attention.query(both, angles), keys, values, block, Scoring(scale=self.scale))
        h = (normed if self.norm_before_residual else h) + attention.o_proj(out.flatten(2))
        answer: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return answer


class EagleWeights(nn.Module):
    """The modules of a checkpoint.

    rope: set once the weights are loaded. ids: int64 [draft_vocab], the target's token of each logit, None if all are the
    logits' own indices.
    """

    rope: Rope

    def __init__(self, c: EagleConfig, own_embedding: bool, taps: int) -> None:
        super().__init__()
        self.width = taps * c.target_width
        self.fc = nn.Linear(self.width, c.hidden_size, bias=False)
        self.layers = nn.ModuleList([EagleLayer(c)])
        self.norm, self.lm_head = RmsNorm(c.hidden_size, c.eps), nn.Linear(c.hidden_size, c.draft_vocab, bias=False)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size) if own_embedding else None
        self.ids: Tensor | None = None


# Weights

LAYER = "layers.0."
EMBEDDING, IDS = "embed_tokens.weight", "d2t"


def load_eagle(folder: Path, c: EagleConfig, taps: int, embedding: Tensor) -> EagleWeights:
    """Read the weights in ``folder``, in float32. embedding: the target's, [V, H].

    Raises CheckpointError if weights are missing, unknown, misshapen or not finite.
    """
    rope = load_rope(folder, c)
    found = read_weights(folder, _renamed)
    ids = _ids(folder, found.pop(IDS, None), c)
    if EMBEDDING in found and found[EMBEDDING].shape == embedding.shape and torch.equal(found[EMBEDDING], embedding.float()):
        del found[EMBEDDING]
    if EMBEDDING not in found and c.hidden_size != c.target_width:
        raise CheckpointError(f"{folder} lacks {EMBEDDING}, and the target's is {c.target_width} wide, not {c.hidden_size}.")
    with torch.device("meta"):
        weights = EagleWeights(c, EMBEDDING in found, taps)
    fill(weights, found, folder)
    weights.rope, weights.ids = rope, None if ids is None else constant(ids)
    return weights


def _renamed(name: str) -> str | None:
    name = name.removeprefix("model.").replace("midlayer.", LAYER, 1)
    return None if name in ("t2d", "rotary_emb.inv_freq") else name


def _ids(folder: Path, offsets: Tensor | None, c: EagleConfig) -> Tensor | None:
    """Return the token of each logit, its index plus its offset; None if there are no offsets."""
    if offsets is None:
        if c.draft_vocab != c.vocab_size:
            raise CheckpointError(f"{folder} lacks {IDS}, which says what its {c.draft_vocab} logits are of.")
        return None
    ids = offsets.round().long() + torch.arange(len(offsets))
    if ids.shape != (c.draft_vocab,) or not 0 <= int(ids.min()) <= int(ids.max()) < c.vocab_size:
        raise CheckpointError(
            f"{IDS} in {folder} does not say {c.draft_vocab} tokens of {c.vocab_size}; the weights are damaged."
        )
    return ids


class EagleDrafter(ArtifactDrafter):
    """EAGLE-3's drafter; its attention layer's state is after its length."""

    def __init__(self, weights: EagleWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights, self.width = weights, weights.width

    def read(self, target: TargetModel, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        return self.close(self._read(target, hidden, tokens, count, 0)[1])

    def draft(
        self, target: TargetModel, draft_len: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor
    ) -> Answers:
        g, block = self._read(target, hidden, tokens, count, draft_len)
        g = g.index_select(1, (block.count - 1).clamp(min=0))
        selector = TokenSelector(self.length.kernels, SamplingInputs(*draws), self.weights.ids)
        steps: list[DraftProposals] = []
        for i in range(draft_len):
            if i:
                g = self._run(target, g, steps[-1].tokens, following(block, 1, i - 1))
            steps.append(selector.choose(self.weights.lm_head(self.weights.norm(g)), i))
        return DraftProposals.joined(steps).answers(self.close(block) >= 0)

    def _read(self, target: TargetModel, hidden: Tensor, tokens: Tensor, count: Tensor, ahead: int) -> tuple[Tensor, Block]:
        block = self.length.extend(tokens.shape[1], count, ahead)
        return self._run(target, self.weights.fc(known(hidden, block)), tokens, block), block

    def _run(self, target: TargetModel, h: Tensor, tokens: Tensor, block: Block) -> Tensor:
        own = self.weights.embed_tokens
        embedded = target.embed(tokens) if own is None else own(tokens)
        state = self.cache.part(self.place + 1, DrafterAttentionLayer)
        out: Tensor = self.weights.layers[0](state, embedded, h, block, self.weights.rope)
        return out


@dataclass(frozen=True)
class EaglePlan(CheckpointPlan):
    """The EAGLE-3 drafter in ``folder``."""

    config: EagleConfig

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        heads, width = self.config.kv_heads, self.config.head_dim
        return [DrafterLengthLayer(sizes, kernels), DrafterAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=width)]

    def load(self, checkpoint: LoadedModel) -> EagleWeights:
        return load_eagle(self.folder, self.config, len(self.taps), checkpoint.model.get_input_embeddings().weight)

    def build(self, weights: Any, cache: HybridCache, head: Any, rows: DraftRows | None = None) -> ArtifactDrafter:
        return EagleDrafter(weights, cache, len(cache.layers) - 2, self.description)


def plan_eagle(
    folder: DrafterFolder, target: Any, options: ExportOptions, vocabulary: VocabularyName | None
) -> tuple[EaglePlan, ExportOptions] | None:
    """Return the plan of an EAGLE-3 drafter for ``target``'s config, and the options with its taps; None for another folder."""
    config = read_eagle_config(folder.path, folder.config)
    if config is None:
        return None
    refuse_vocabulary(vocabulary, "EAGLE-3's")
    layers = target.num_hidden_layers
    needs = TargetNeeds(config.target_width, config.vocab_size, config.taps or (2, layers // 2, layers - 3))
    taps, blocks, options = fitted(folder.place, needs, target, options)
    return EaglePlan(folder.place, taps, blocks, "eagle3", None, config), options
