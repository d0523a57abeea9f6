"""Check that a drafter fits its target, and what it reads and proposes the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.export.checkpoint.loading import logits_width
from hybridge.runtime.artifacts.options import ExportOptions


@dataclass(frozen=True)
class Fit:
    """What a drafter's config says of its target; none where it says nothing. taps as transformers counts hidden states."""

    hidden_size: int
    layers: int | None
    vocab_size: int | None
    taps: tuple[int, ...]
    mask_token: int


def fitted(
    folder: Path, fit: Fit, longest: int, target: Any, options: ExportOptions
) -> tuple[tuple[int, ...], tuple[int, ...], ExportOptions]:
    """Return the drafter's taps and blocks as the options have them, and the options with both.

    longest: tokens of the longest block that it is made for. Raises what ``check_fit`` does, and UsageError for other blocks.
    """
    check_fit(folder, fit, target)
    taps, options = _tapped(fit.taps, options, target.num_hidden_layers)
    blocks = _blocks(longest, options)
    return taps, blocks, replace(options, draft_blocks=blocks)


def check_fit(folder: Path, fit: Fit, target: Any) -> None:
    """Raises UsageError where the drafter in ``folder`` is another target's, naming what differs."""
    layers, vocab = target.num_hidden_layers, logits_width(target)
    differing = [
        ("hidden size", fit.hidden_size, target.hidden_size),
        ("number of layers", fit.layers, layers),
        ("vocabulary", fit.vocab_size, target.vocab_size if fit.vocab_size != vocab else vocab),
    ]
    for what, wanted, own in differing:
        if wanted is not None and wanted != own:
            raise UsageError(
                f"the drafter in {folder} is for another target: its target's {what} is {wanted}, and this model's is {own}. "
                "Give the drafter that was trained for this very model."
            )
    if far := [tap for tap in fit.taps if not 0 <= tap <= layers]:
        raise UsageError(
            f"the drafter in {folder} reads the hidden states after {far[0]} layers, and this model has {layers} layers."
        )
    if fit.mask_token >= target.vocab_size:
        raise UsageError(
            f"the drafter in {folder} has the mask token {fit.mask_token}, and this model {target.vocab_size} tokens."
        )


def _tapped(reads: tuple[int, ...], options: ExportOptions, layers: int) -> tuple[tuple[int, ...], ExportOptions]:
    """The drafter's taps as the options name them, and the options with those that are missing."""
    given = {index % (layers + 1): index for index in options.tap_layers}
    missing = tuple(tap for tap in reads if tap not in given)
    return tuple(given.get(tap, tap) for tap in reads), replace(options, tap_layers=(*options.tap_layers, *missing))


def _blocks(longest: int, options: ExportOptions) -> tuple[int, ...]:
    """The lengths of the blocks: those asked for, else the drafter's ``longest``, as far as a verify takes it."""
    blocks: Sequence[int] = options.draft_blocks or (min(longest, options.verify_len),)
    if options.verify_len < 2:
        raise UsageError("a drafter needs verify calls of 2 tokens or more; export with a larger --verify-len.")
    if list(blocks) != sorted(set(blocks)) or blocks[0] < 2:
        raise UsageError(f"--draft-block {','.join(map(str, blocks))} should be different lengths from 2 on, in order.")
    if blocks[-1] > options.verify_len:
        raise UsageError(
            f"--draft-block {blocks[-1]} is longer than a verify takes, {options.verify_len} tokens; "
            f"give --verify-len {blocks[-1]}."
        )
    if blocks[-1] > longest:
        raise UsageError(f"--draft-block {blocks[-1]} is longer than the blocks of {longest} that this drafter is made for.")
    return tuple(blocks)
