"""Block drafters, which propose a block of tokens in one pass: DFlash, DFlash 2 and DSpark.

Published forms, weights, drafter and plan; ``block_layers.py`` has the model. A field of ``dflash_config`` takes precedence
over one of the same name at the top.

Sources: z-lab/dflash ``dflash/model.py`` and its fixtures; mlx-vlm ``speculative/drafters/dspark/config.py``; transformers
``models/muse_glimmer_assistant``, which is DFlash in transformers' own form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterAttentionLayer, DrafterLengthLayer, DrafterSlidingAttentionLayer, following
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError
from hybridge.export.drafters.block_layers import (
    Backbone,
    BlockDrafterConfig,
    BlockKind,
    Convolution,
    Markov,
    MarkovTail,
    Selector,
    build_tail,
)
from hybridge.export.drafters.drafter import (
    Answers,
    ArtifactDrafter,
    CheckpointPlan,
    TargetModel,
    TargetNeeds,
    VocabularyName,
    fitted,
    outputs_of,
)
from hybridge.export.drafters.folder import MOST_LAYERS, ConfigFields, DrafterFolder, fill, read_weights
from hybridge.export.drafters.layers import (
    DraftProposals,
    Rope,
    SamplingInputs,
    TokenSelector,
    decoder_fields,
    known,
    load_rope,
)
from hybridge.export.drafters.vocabulary import DraftRows, vocabulary_of
from hybridge.export.source.checkpoint import LoadedModel, logits_width
from hybridge.limits import SIZES
from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.options import ExportOptions

ARCHITECTURES: Mapping[str, BlockKind] = {
    "DFlashDraftModel": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "Lfm2DSparkDraftModel": "dspark",
    "Qwen3DSparkModel": "dspark",
}
TRANSFORMERS_FORM = "muse_glimmer_assistant"
KNOWN = {
    "hidden_act": ("silu",),
    "markov_head_type": ("vanilla",),
    "attention_sink_bias": (False,),
    "sample_from_anchor": (True,),
    "projector_type": ("dflash", "dflash2", "dspark"),
}
"""Values of fields that change the model."""


def kind_of(fields: ConfigFields) -> BlockKind | None:
    """Return the kind of block drafter that a config is of, by its architecture or by a field of that kind; None for others."""
    for name in fields.names("architectures"):
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if fields.values.get("model_type") == TRANSFORMERS_FORM:
        return "dflash"
    marks: tuple[tuple[str, BlockKind], ...] = (
        ("markov_rank", "dspark"),
        ("selector_rank", "dflash2"),
        ("dflash_config", "dflash"),
    )
    return next((kind for mark, kind in marks if mark in fields.values), None)


def read_block_config(path: Path, content: Mapping[str, Any]) -> BlockDrafterConfig | None:
    """Return the config in the config.json ``path``, or None if it is no block drafter's.

    Raises CheckpointError for values that no drafter can have, UnsupportedModelError for parts that hybridge does not know.
    """
    nested = content.get("dflash_config")
    fields = ConfigFields(path, {**content, **nested} if isinstance(nested, Mapping) else content)
    kind = kind_of(fields)
    if kind is None:
        return None
    fields.refuse_others(KNOWN, "drafter")
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    own_form = fields.values.get("model_type") == TRANSFORMERS_FORM
    types = fields.names("layer_types") or ["full_attention"] * layers
    named = [name for name in ("causal", "is_causal", "dflash_query_causal") if name in fields.values]
    causal = fields.truth(named[0]) if named else None
    causal = False if causal is None and (own_form or kind == "dspark") else causal
    # DSpark's first row gives a draft token, so its size is their number, unless it says that the last token is counted too.
    counted = kind != "dspark" or fields.truth("dspark_bonus_anchor", False)
    config = BlockDrafterConfig(
        kind=kind,
        **decoder_fields(fields),
        vocab_size=None if own_form else fields.count("vocab_size"),
        # transformers' masks that look both ways count the window without the token itself.
        windows=tuple(fields.count("sliding_window") + own_form if each == "sliding_attention" else None for each in types),
        causal=tuple(each == "sliding_attention" if causal is None else causal for each in types),
        neighbours=not fields.truth("rope_is_neox_style", True),
        target_layer_ids=tuple(fields.counts("target_layer_ids")) if "target_layer_ids" in fields.values else (),
        target_layers=fields.count("num_target_layers") if "num_target_layers" in fields.values else None,
        block=fields.count("block_size", lowest=2, most=SIZES["verify_len"][1]) + (0 if counted else 1),
        first_guess=0 if kind == "dspark" else 1,
        mask_token=fields.count("mask_token_id", lowest=0, most=1 << 31),
        embedding_scale=fields.number("input_embedding_scale", 1.0),
        output_multiplier=fields.number("output_multiplier", 1.0),
        softcap=fields.number("final_logit_softcapping") if "final_logit_softcapping" in fields.values else None,
        **_tail(kind, fields),
    )
    return _checked(fields, _with_layer_ids(fields, config, layers), types, layers)


def _tail(kind: BlockKind, fields: ConfigFields) -> dict[str, Any]:
    if kind == "dflash2":
        return {
            "convolution": Convolution(kernel=fields.count("conv_kernel_size", most=64), group=fields.count("conv_group_size")),
            "selector": Selector(rank=fields.count("selector_rank"), candidates=fields.count("selector_top_k", most=4096)),
        }
    if kind == "dspark":
        confidence, of_token = fields.truth("enable_confidence_head", False), fields.truth("confidence_head_with_markov", True)
        markov = Markov(rank=fields.count("markov_rank"), confidence=confidence, confidence_of_token=of_token)
        return {"markov": markov}
    return {}


def _with_layer_ids(fields: ConfigFields, config: BlockDrafterConfig, layers: int) -> BlockDrafterConfig:
    """Fill in the layers that z-lab's drafters read by default: evenly spread from the second on."""
    if config.target_layer_ids:
        return config
    if config.target_layers is None:
        raise fields.wrong("target_layer_ids", "a list of the target's layers")
    first, span = 1, config.target_layers - 4
    spread = [round(first + i * span / (layers - 1)) for i in range(layers)] if layers > 1 else [config.target_layers // 2]
    return replace(config, target_layer_ids=tuple(spread))


def _checked(fields: ConfigFields, config: BlockDrafterConfig, types: list[str], layers: int) -> BlockDrafterConfig:
    if len(types) != layers or not {*types} <= {"full_attention", "sliding_attention"}:
        raise fields.wrong("layer_types", f"{layers} times full_attention or sliding_attention")
    if config.heads % config.kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of the {config.heads} heads")
    if config.head_dim % 2:
        raise fields.wrong("head_dim", "an even number")
    if config.convolution is not None and config.hidden_size % config.convolution.group:
        raise fields.wrong("conv_group_size", f"a divisor of the hidden size {config.hidden_size}")
    if len({*config.target_layer_ids}) < len(config.target_layer_ids):
        raise fields.wrong("target_layer_ids", "different layers")
    return config


# Weights

COPIES = ("embed_tokens.weight", "lm_head.weight")
"""Weights of its target that a checkpoint may repeat, for runtimes that load the drafter without it."""
DERIVED = ("rotary_emb.inv_freq", "t2d", "d2t")
RENAMED = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
"""Names in transformers' form, and those of the other publishers."""


class BlockWeights(nn.Module):
    """The modules of a block drafter. rope: set once the weights are loaded."""

    rope: Rope

    def __init__(self, config: BlockDrafterConfig, vocab: int) -> None:
        super().__init__()
        self.config = config
        self.backbone, self.tail = Backbone(config), build_tail(config, vocab)


def load_block_weights(folder: Path, config: BlockDrafterConfig, vocab: int, copies: dict[str, Tensor]) -> BlockWeights:
    """Read the weights in ``folder``, in float32. vocab: tokens of the target; copies: its embedding and head, by COPIES.

    Raises CheckpointError if weights are missing, unknown, misshapen or not finite, or are copies of another target's.
    """
    rope = load_rope(folder, config)
    found = read_weights(folder, _renamed)
    _check_copies(folder, {name: found.pop(name) for name in COPIES if name in found}, copies)
    if config.neighbours:
        found = {name: _halves(name, each, config.head_dim) for name, each in found.items()}
    with torch.device("meta"):
        weights = BlockWeights(config, vocab)
    fill(weights, {_place(name): each for name, each in found.items()}, folder)
    weights.rope = rope
    return weights


def _renamed(name: str) -> str | None:
    """Return the common name of a stored tensor, or None if its values are computed."""
    name = name.removeprefix("model.")
    name = RENAMED.get(name, name)
    if name.startswith("candidate_selector.") and name.endswith("_codebook"):
        name += ".weight"  # a parameter there, the table of an embedding here
    return None if name in DERIVED else name


def _place(name: str) -> str:
    """Return the name in our modules."""
    if name.startswith(("markov_head.", "confidence_head.")):
        return f"tail.{name}"
    if name.startswith("candidate_selector."):
        return f"tail.{name.removeprefix('candidate_selector.')}"
    return f"backbone.{name}"


def _check_copies(folder: Path, found: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    """Raise CheckpointError if the checkpoint's embedding or head is not the target's."""
    for name, each in found.items():
        own = target[name]
        if each.shape != own.shape or not torch.allclose(each.bfloat16().float(), own.bfloat16().float()):
            raise CheckpointError(
                f"{folder} has another {name} ({list(each.shape)}) than the target ({list(own.shape)}): a block drafter shares "
                "its target's. Is it the drafter of this very model, and not of its base model?"
            )


def _halves(name: str, weight: Tensor, head_dim: int) -> Tensor:
    """Reorder channels so that rope rotates halves, not neighbours; queries and keys keep their products."""
    parts = name.split(".")
    if len(parts) < 2 or parts[-2] not in ("q_proj", "k_proj", "q_norm", "k_norm") or weight.shape[0] % head_dim:
        return weight
    order = torch.cat([torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)])
    turned: Tensor = weight.unflatten(0, (-1, head_dim))[:, order]
    return turned.flatten(0, 1).contiguous()


class MaskedBlockDrafter(ArtifactDrafter):
    """Block drafters; their layers' state is after their length. Sources: DFlash, arXiv:2602.06036; z-lab/dflash."""

    def __init__(self, weights: BlockWeights, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__(cache, place, description)
        self.weights = weights
        self.width = len(weights.config.target_layer_ids) * weights.config.hidden_size

    def restricted_to(self, rows: DraftRows | None, head: Any) -> Self:
        tail = self.weights.tail
        if rows is not None and isinstance(tail, MarkovTail):
            tail.markov_head.markov_w2 = outputs_of(tail.markov_head.markov_w2, rows)  # type: ignore[assignment]  # packed layers too
        return super().restricted_to(rows, head)

    def read(self, target: TargetModel, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        return self.close(self._read(hidden, tokens, count))

    def draft(
        self, target: TargetModel, draft_len: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor
    ) -> Answers:
        block = self._read(hidden, tokens, count)
        last = tokens.index_select(1, (block.count - 1).clamp(min=0))
        found = self._propose(
            target, last, following(block, draft_len + self.weights.config.first_guess), draft_len, SamplingInputs(*draws)
        )
        return found.answers(self.close(block) >= 0)

    def _read(self, hidden: Tensor, tokens: Tensor, count: Tensor) -> Block:
        block = self.length.extend(tokens.shape[1], count)
        angles = self.weights.rope.angles(block.positions)
        self.weights.backbone.read(self.cache, self.place + 1, known(hidden, block), block, angles)
        return block

    def _propose(
        self, target: TargetModel, last: Tensor, block: Block, draft_len: int, draws: SamplingInputs
    ) -> DraftProposals:
        """Run ``last`` [1, 1] and masks as ``block``, and choose tokens with the tail."""
        weights, masks = self.weights, block.length - 1
        tokens = torch.cat([last, torch.full((1, masks), weights.config.mask_token)], dim=1) if masks else last
        x = target.embed(tokens) * weights.config.embedding_scale
        hidden = weights.backbone.run(self.cache, self.place + 1, x, block, weights.rope.angles(block.positions))
        hidden = hidden[:, block.length - draft_len :]
        selector = TokenSelector(self.length.kernels, draws, self.ids)
        logits, softcap = target.head(hidden) * weights.config.output_multiplier, weights.config.softcap
        out: DraftProposals = weights.tail(
            hidden, logits if softcap is None else (logits / softcap).tanh() * softcap, last, selector
        )
        return out


@dataclass(frozen=True)
class BlockPlan(CheckpointPlan):
    """The block drafter in ``folder``. vocab: logits of the target."""

    config: BlockDrafterConfig
    vocab: int

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        heads, width = self.config.kv_heads, self.config.head_dim
        found: list[CacheLayer] = [DrafterLengthLayer(sizes, kernels)]
        for window in self.config.windows:
            if window is None or window >= sizes.rows:  # no row is ever outside of such a window
                found.append(DrafterAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=width))
            else:
                found.append(DrafterSlidingAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=width, window=window))
        return found

    def load(self, checkpoint: LoadedModel) -> BlockWeights:
        model = checkpoint.model
        own = (model.get_input_embeddings(), model.get_output_embeddings())
        copies = dict(zip(COPIES, (each.weight for each in own), strict=True))
        return load_block_weights(self.folder, self.config, self.vocab, copies)

    def build(self, weights: Any, cache: HybridCache, head: Any, rows: DraftRows | None = None) -> ArtifactDrafter:
        drafter = MaskedBlockDrafter(weights, cache, len(cache.layers) - 1 - len(self.config.windows), self.description)
        return drafter.restricted_to(rows, head)


def plan_block(
    folder: DrafterFolder, target: Any, options: ExportOptions, vocabulary: VocabularyName | None
) -> tuple[BlockPlan, ExportOptions] | None:
    """Return the plan of a block drafter for ``target``'s config, and the options with its taps; None for another folder."""
    config = read_block_config(folder.path, folder.config)
    if config is None:
        return None
    needs = TargetNeeds(config.hidden_size, config.vocab_size, config.taps, config.target_layers, config.mask_token)
    taps, blocks, options = fitted(folder.place, needs, target, options, config.block)
    size = logits_width(target)
    return BlockPlan(folder.place, taps, blocks, config.kind, vocabulary_of(vocabulary, size, options), config, size), options
