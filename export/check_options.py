"""Options of an export that a model or each other contradict, refused before anything is read or traced."""

from __future__ import annotations

from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.cache.families import text_config
from hybridge.runtime.manifest import ExportOptions


def check_options(config: Any, options: ExportOptions) -> None:
    """Raises UsageError for verify lengths in disorder and for taps where ``config``'s model has no hidden states."""
    _check_verify_lens(options)
    tap_indices(options.tap_layers, text_config(config).num_hidden_layers)


def tap_indices(tap_layers: tuple[int, ...], layers: int) -> list[int]:
    """Each tap as an index from 0, the embeddings, to ``layers``, after the final norm. Raises UsageError out of range."""
    if wrong := [tap for tap in tap_layers if not -layers - 1 <= tap <= layers]:
        raise UsageError(
            f"tap layer {wrong[0]} does not exist: this model has {layers} layers, so a tap is 0 (the embeddings) to {layers} "
            f"(after the final norm), or -1 to {-layers - 1} counted from the end."
        )
    return [tap % (layers + 1) for tap in tap_layers]


def _check_verify_lens(options: ExportOptions) -> None:
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise UsageError(
            f"verify lengths {lens} are not ascending, different and 1 or more: "
            "shorter_verify_lens must lie below verify_len and be in order."
        )
