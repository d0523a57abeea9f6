"""What a block drafter's config.json says: DFlash, DFlash 2 and DSpark are one backbone with three tails.

Names of the fields are those of the published checkpoints; a field of ``dflash_config`` comes before one of the same name at
the top. Sources: z-lab/dflash ``dflash/model.py`` and its fixtures; mlx-vlm ``speculative/drafters/dspark/config.py``;
transformers ``models/muse_glimmer_assistant``, which is DFlash in transformers' own form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.drafters.checkpoint import LONGEST_BLOCK, MOST_LAYERS, Fields

BlockKind = Literal["dflash", "dflash2", "dspark"]
ARCHITECTURES: Mapping[str, BlockKind] = {
    "DFlashDraftModel": "dflash",
    "MuseGlimmerAssistantModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "Lfm2DSparkDraftModel": "dspark",
    "Qwen3DSparkModel": "dspark",
}
TRANSFORMERS_FORM = "muse_glimmer_assistant"


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """DFlash 2's convolution along the block: taps of each kernel, and channels that share a tap's change by the token."""

    kernel: int
    group: int


@dataclass(frozen=True, kw_only=True)
class Selector:
    """DFlash 2's choice among the ``candidates`` best tokens of each position by low-rank scores of neighbours."""

    rank: int
    candidates: int


@dataclass(frozen=True, kw_only=True)
class Markov:
    """DSpark's low-rank correction by the token before, and its confidence, of the hidden state and that token or of one."""

    rank: int
    confidence: bool
    confidence_of_token: bool


@dataclass(frozen=True, kw_only=True)
class BlockDrafterConfig:
    """A block drafter. windows: of each layer, none for full attention; causal: of each layer, whether draft tokens see later
    ones.

    block: tokens of a block with the text's last one, of which one less are guessed; first_guess: the row that guesses the
    first of them. rope: as in a config of transformers; neighbours: it turns pairs of neighbours, not halves. target_layers may
    be unknown.
    """

    kind: BlockKind
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    vocab_size: int | None
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    rope: Mapping[str, Any]
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
        """Return what the drafter reads as transformers counts hidden states: 0 the embeddings, i after i layers."""
        return tuple(index + 1 for index in self.target_layer_ids)


def kind_of(fields: Fields) -> BlockKind | None:
    """Return which block drafter a config is of, by its architecture or by what only that kind has; None for anything else."""
    for name in fields.names("architectures"):
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if fields.get("model_type") == TRANSFORMERS_FORM:
        return "dflash"
    marks: tuple[tuple[str, BlockKind], ...] = (
        ("markov_rank", "dspark"),
        ("selector_rank", "dflash2"),
        ("dflash_config", "dflash"),
    )
    return next((kind for mark, kind in marks if fields.get(mark) is not None), None)


def read_block_config(path: Path, content: Mapping[str, Any]) -> BlockDrafterConfig | None:
    """Return what the config.json in ``path`` says, or None where it is no block drafter's.

    Raises CheckpointError for values that no drafter can have, UnsupportedModelError for parts that hybridge does not know.
    """
    nested = content.get("dflash_config")
    fields = Fields(path, {**content, **nested} if isinstance(nested, Mapping) else content)
    kind = kind_of(fields)
    if kind is None:
        return None
    _refuse_unknown_parts(fields)
    layers = fields.count("num_hidden_layers", most=MOST_LAYERS)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    own_form = fields.get("model_type") == TRANSFORMERS_FORM
    types = fields.names("layer_types") or ["full_attention"] * layers
    causal = next(
        (fields.truth(name) for name in ("causal", "is_causal", "dflash_query_causal") if fields.get(name) is not None), None
    )
    causal = False if causal is None and (own_form or kind == "dspark") else causal
    # DSpark's first row guesses, so its size is the number of guesses, unless it says that the last token is counted too.
    counted = kind != "dspark" or fields.truth("dspark_bonus_anchor", False)
    target_layers = fields.count("num_target_layers") if fields.get("num_target_layers") is not None else None
    config = BlockDrafterConfig(
        kind=kind,
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", max(1, hidden // heads)),
        eps=fields.number("rms_norm_eps", 1e-6),
        bias=fields.truth("attention_bias", False),
        vocab_size=None if own_form else fields.count("vocab_size"),
        # transformers' masks that look both ways count the window without the token itself.
        windows=tuple(fields.count("sliding_window") + own_form if each == "sliding_attention" else None for each in types),
        causal=tuple(each == "sliding_attention" if causal is None else causal for each in types),
        rope=fields.rope(),
        neighbours=not fields.truth("rope_is_neox_style", True),
        target_layer_ids=tuple(fields.counts("target_layer_ids")) if fields.get("target_layer_ids") is not None else (),
        target_layers=target_layers,
        block=fields.count("block_size", lowest=2, most=LONGEST_BLOCK) + (0 if counted else 1),
        first_guess=0 if kind == "dspark" else 1,
        mask_token=fields.count("mask_token_id", lowest=0, most=1 << 31),
        embedding_scale=fields.number("input_embedding_scale", 1.0),
        output_multiplier=fields.number("output_multiplier", 1.0),
        softcap=fields.number("final_logit_softcapping") if fields.get("final_logit_softcapping") is not None else None,
        **_tail(kind, fields),
    )
    return _checked(fields, _with_layer_ids(fields, config, layers), types, layers)


def _tail(kind: BlockKind, fields: Fields) -> dict[str, Any]:
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


def _with_layer_ids(fields: Fields, config: BlockDrafterConfig, layers: int) -> BlockDrafterConfig:
    """With the layers that z-lab's drafters read where the config does not say: evenly spread from the second on."""
    if config.target_layer_ids:
        return config
    if config.target_layers is None:
        raise fields.wrong("target_layer_ids", "a list of the target's layers")
    first, span = 1, config.target_layers - 4
    spread = [round(first + i * span / (layers - 1)) for i in range(layers)] if layers > 1 else [config.target_layers // 2]
    return BlockDrafterConfig(**{**vars(config), "target_layer_ids": tuple(spread)})


def _checked(fields: Fields, config: BlockDrafterConfig, types: list[str], layers: int) -> BlockDrafterConfig:
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


def _refuse_unknown_parts(fields: Fields) -> None:
    known = {
        "hidden_act": ("silu",),
        "markov_head_type": ("vanilla",),
        "attention_sink_bias": (False,),
        "sample_from_anchor": (True,),
        "projector_type": ("dflash", "dflash2", "dspark"),
    }
    for name, values in known.items():
        if (value := fields.get(name)) is not None and value not in values:
            raise UnsupportedModelError(f"{fields.path} asks for {name} {value!r}, which hybridge knows no drafter with.")
