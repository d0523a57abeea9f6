"""Define a model family: the layer for each entry of its plan, and the plan from its config; refuse impossible models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybridge.cache.block import CacheSizes
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.limits import MOST_LAYERS

Config = Any  # transformers' PreTrainedConfig, by its attributes
LayerBuilder = Callable[[Config, CacheSizes, Kernels, int], CacheLayer]
"""Builds the cache layer of the decoder layer with that index."""

Signatures = tuple[tuple[str, frozenset[str]], ...]
"""Kinds of token mixers, each with names of modules, parameters and buffers by which it is recognized in any model."""


def layer_types(config: Config) -> Sequence[str]:
    """Return the config's ``layer_types``; full attention everywhere if it has none."""
    return getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers


@dataclass(frozen=True, kw_only=True)
class Family:
    """layers: what builds the cache layer for each entry of the plan; plan: one entry for each decoder layer."""

    layers: Mapping[str, LayerBuilder]
    plan: Callable[[Config], Sequence[str]] = layer_types


def check_layer_count(config: Config) -> None:
    """Raise CheckpointError for an absurd number of layers."""
    if not 1 <= config.num_hidden_layers <= MOST_LAYERS:
        raise CheckpointError(f"config.json says num_hidden_layers = {config.num_hidden_layers}, expected 1 to {MOST_LAYERS}.")


def summarize(types: Sequence[str]) -> str:
    """Return a summary such as ``3 × linear_attention, 1 × full_attention``."""
    return ", ".join(f"{list(types).count(kind)} × {kind}" for kind in dict.fromkeys(types))


ADVICE = "Take the config.json that came with the checkpoint."
CHOSEN = ("num_experts_per_tok", "top_k_experts")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names in configs for the number of experts of a token, and for the number of all experts."""


def check_experts(config: Config) -> None:
    """Raise CheckpointError if a token would choose no experts, or more than there are."""
    chosen, experts = (_first(config, names) for names in (CHOSEN, EXPERTS))
    if chosen is None or experts is None:
        return
    (chosen_name, k), (experts_name, count) = chosen, experts
    if not 1 <= k <= count:
        raise CheckpointError(
            f"config.json says {chosen_name} = {k} of {experts_name} = {count}: a token chooses 1 to {count} experts. "
            "Correct it to what the weights were trained with."
        )


def check_positive(config: Config, *names: str) -> None:
    """Raise CheckpointError for a size that is not a number of 1 or more, by its name in the config."""
    for name in names:
        size = getattr(config, name)
        if not isinstance(size, int) or size < 1:
            raise CheckpointError(f"config.json says {name} = {size}, expected 1 or more. {ADVICE}")


def check_windows(config: Config, layers: Sequence[CacheLayer]) -> None:
    """Raise CheckpointError for a window that is shorter than the model's convolutions."""
    parts = [part for layer in layers for part in layer.leaves()]
    windows = [part.window for part in parts if isinstance(part, AttentionLayer) and part.window is not None]
    kernels = [part.get_buffer("conv_state").shape[1] + 1 for part in parts if "conv_state" in part.committed]
    if windows and min(windows) < max(kernels, default=1):
        raise CheckpointError(
            f"config.json gives attention a window of {min(windows)}, less than the {max(kernels, default=1)} positions that "
            f"the convolutions of this {config.model_type!r} model see. Correct it to what the weights were trained with."
        )


def _first(config: Config, names: Sequence[str]) -> tuple[str, int] | None:
    """Return the first of those names for which the config has a number other than 0, with the number."""
    found = ((name, getattr(config, name, None)) for name in names)
    return next(((name, value) for name, value in found if isinstance(value, int) and value), None)


def check_causal(config: Config) -> None:
    """Raise UnsupportedModelError if tokens see later ones: each new token would change what is cached of them."""
    for option, acausal in (("is_causal", (False,)), ("use_bidirectional_attention", (True, "all"))):
        value = getattr(config, option, None)
        if value in acausal:
            raise UnsupportedModelError(
                f"config.json says {option} = {value!r}: tokens of this {config.model_type!r} model see later ones, so it "
                "cannot be run piece by piece. Take a causal model."
            )


def check_rope(config: Config, sizes: CacheSizes) -> None:
    """Raise UnsupportedModelError if texts of ``max_seq_len`` tokens outgrow the rope angles of their first keys.

    Dynamic and long rope choose the angles of *all* positions by the length of the text, so a text that grows past the limit
    needs every key anew, and every layer's hidden states with them. Source: transformers 5.23 ``dynamic_rope_update``.
    """
    for rope in _ropes(config):
        limit = _longest(config, rope)
        if limit is not None and sizes.max_seq_len > limit:
            raise UnsupportedModelError(
                f"rope type {rope['rope_type']!r} changes the angles of all positions once a text is longer than {limit} "
                f"tokens, and cached keys keep the old ones; max_seq_len is {sizes.max_seq_len}, but must be {limit} at most."
            )


LONGEST_CONTEXT = 32_768
"""Most tokens of a context that nobody chose."""
LARGE_WINDOW = 2048
"""Tokens of a window from which on its ring, which each snapshot copies, is more than a short context's rows."""


def own_context(config: Config) -> int:
    """Return the tokens of a context that nobody chose: as many as the model takes, up to LONGEST_CONTEXT.

    A model takes as many as it has positions, in a rope that is stretched as many as it was stretched to, and no more than
    keep their angles. A context ends with a large window, too: up to there its layers have rows by position.
    """
    limits: list[int] = [LONGEST_CONTEXT]
    windows = (getattr(config, name, None) for name in ("sliding_window", "sliding_window_size", "attention_chunk_size"))
    limits += [each for each in windows if isinstance(each, int) and each >= LARGE_WINDOW]
    positions = getattr(config, "max_position_embeddings", None)
    for rope in _ropes(config):
        original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
        if positions and original and factor:
            positions = max(positions, int(original * factor))
        if (longest := _longest(config, rope)) is not None:
            limits.append(longest)
    return max(1, min([*limits, *([int(positions)] if positions else [])]))


def _ropes(config: Config) -> Iterator[Mapping[str, Any]]:
    """Yield the rope parameters of each layer type, or of all layers."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_type = [each for each in parameters.values() if isinstance(each, Mapping)]
    yield from by_type or [parameters]


def _longest(config: Config, rope: Mapping[str, Any]) -> int | None:
    """Return the number of tokens up to which the angles stay the same; None for any number."""
    kind = rope.get("rope_type") or "default"
    if kind == "longrope":
        limit: int = rope["original_max_position_embeddings"]
        return limit
    if config.model_type == "hunyuan_v1_dense" and rope.get("alpha"):
        return None  # called dynamic, but the base is stretched by alpha once and for all
    return config.max_position_embeddings if "dynamic" in kind else None
