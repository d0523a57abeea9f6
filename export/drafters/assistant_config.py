"""What the config.json of a Gemma 4 assistant says: a small decoder without keys and values of its own.

Each of its layers attends over those of the target's last layer of the same type that has any. Source: transformers 5.23
``models/gemma4_assistant``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.cache.families.attention import first_sharing, shared_source
from hybridge.export.drafters.fields import MOST_LAYERS, Fields

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
