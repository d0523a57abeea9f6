"""Options that keys in a cache cannot follow: refused by name, because to ignore one is to give wrong numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import UnsupportedModelError
from hybridge.cache.families.family import Config


def check_causal(config: Config) -> None:
    """Raises UnsupportedModelError where tokens see later ones: what is cached of a token would change with each new one."""
    for option, acausal in (("is_causal", (False,)), ("use_bidirectional_attention", (True, "all"))):
        value = getattr(config, option, None)
        if value in acausal:
            raise UnsupportedModelError(
                f"config.json says {option} = {value!r}: tokens of this {config.model_type!r} model see later ones, so it "
                "cannot be run piece by piece. Take a causal model."
            )


def check_rope(config: Config, sizes: CacheSizes) -> None:
    """Raises UnsupportedModelError where texts of ``max_seq_len`` tokens outgrow the angles that their first keys were given.

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


def _ropes(config: Config) -> Iterator[Mapping[str, Any]]:
    """Rope parameters: of each layer type, or of all layers."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_type = [each for each in parameters.values() if isinstance(each, Mapping)]
    yield from by_type or [parameters]


def _longest(config: Config, rope: Mapping[str, Any]) -> int | None:
    """Up to how many tokens the angles stay the same; None for any number."""
    kind = rope.get("rope_type") or "default"
    if kind == "longrope":
        limit: int = rope["original_max_position_embeddings"]
        return limit
    return config.max_position_embeddings if "dynamic" in kind else None
