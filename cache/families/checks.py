"""Refuse what no model of any family can be, before anything is built on it."""

from __future__ import annotations

from collections.abc import Sequence

from hybridge.cache.errors import CheckpointError
from hybridge.cache.families.family import Config
from hybridge.cache.layers.attention import AttentionLayer
from hybridge.cache.layers.layer import CacheLayer

ADVICE = "Take the config.json that came with the checkpoint."
CHOSEN = ("num_experts_per_tok", "top_k_experts")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configs call the experts that a token chooses, and those it chooses from."""


def check_experts(config: Config) -> None:
    """Raises CheckpointError where a token would choose more experts than there are, or none of those there are."""
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
    """Raises CheckpointError for a size that is not a number of 1 or more, by its name in the config."""
    for name in names:
        size = getattr(config, name)
        if not isinstance(size, int) or size < 1:
            raise CheckpointError(f"config.json says {name} = {size}, expected 1 or more. {ADVICE}")


def check_windows(config: Config, layers: Sequence[CacheLayer]) -> None:
    """Raises CheckpointError for a window that not even the model's convolution fits into."""
    parts = [part for layer in layers for part in layer.leaves()]
    windows = [part.window for part in parts if isinstance(part, AttentionLayer) and part.window is not None]
    kernels = [part.get_buffer("conv_state").shape[1] + 1 for part in parts if "conv_state" in part.committed]
    if windows and min(windows) < max(kernels, default=1):
        raise CheckpointError(
            f"config.json gives attention a window of {min(windows)}, less than the {max(kernels, default=1)} positions that "
            f"the convolutions of this {config.model_type!r} model see. Correct it to what the weights were trained with."
        )


def _first(config: Config, names: Sequence[str]) -> tuple[str, int] | None:
    """The first of those names that the config has a number other than 0 for."""
    found = ((name, getattr(config, name, None)) for name in names)
    return next(((name, value) for name, value in found if isinstance(value, int) and value), None)
