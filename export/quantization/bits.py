"""Decide how many bits each weight gets: by the kind of quantization, a recipe, and patterns of names.

A recipe gives more bits to weights whose rounding costs most for each byte, which ``hybridge evaluate --layers`` measures;
docs/quality.md has the figures that these recipes come from. Gates of recurrences (their decays, steps and betas), convolutions
and norms stay float32 whatever is asked for: their errors add up over a long text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

import torch

from hybridge.cache.errors import UsageError
from hybridge.export.layers.rounded_weight import Grid
from hybridge.runtime.artifacts.options import Bits, ExportOptions

BITS: Mapping[str, int] = {"none": 32, "keep": 8, "8da4w": 4, "4w": 4, "5w": 5, "6w": 6, "8w": 8}
"""By the kind of quantization; those of ``keep`` are for weights that cannot keep the bits that they have."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """embedding: of the embedding, and a head that is tied to it; bits: of the other weights that have not 4."""

    embedding: Literal["4w", "5w", "6w", "8w"]
    bits: Bits = ()


OUTPUTS = ("*.out_proj", "*.o_proj")
"""What attention and recurrent layers write: few numbers, and each is read by every later layer."""

RECIPES: Mapping[str, Recipe] = {
    "small": Recipe(embedding="4w"),
    "balanced": Recipe(
        embedding="8w",
        bits=tuple((pattern, 8) for pattern in (*OUTPUTS, "*.k_proj", "*.v_proj", "*.layers.0.*.down_proj", "*.layers.0.*.w2")),
    ),
    "quality": Recipe(
        embedding="8w",
        bits=(("*", 8), *((pattern, 4) for pattern in ("*.gate_proj", "*.up_proj", "*.gate_up_proj", "*.w1", "*.w3"))),
    ),
}

BLOCK_RECIPES: Mapping[str, Recipe] = {
    "small": Recipe(embedding="4w"),
    "balanced": Recipe(embedding="5w", bits=(("*.k_proj", 5), ("*.v_proj", 6), *((pattern, 5) for pattern in OUTPUTS))),
    "quality": Recipe(
        embedding="6w",
        bits=(("*", 5), *((pattern, 6) for pattern in (*OUTPUTS, "*.k_proj", "*.v_proj", "*.down_proj", "*.w2"))),
    ),
}
"""The same for groups with minima (``--rounding blocks``), whose bits are worth more."""


def recipe_of(options: ExportOptions) -> Recipe:
    """Return the recipe that the options name."""
    return (BLOCK_RECIPES if has_minima(options) else RECIPES)[options.recipe]


def has_minima(options: ExportOptions) -> bool:
    """Return whether groups are rounded to a scale and a minimum: our own kernels alone have those."""
    return options.rounding == "blocks" and options.has_own_kernels


def with_recipe(options: ExportOptions) -> ExportOptions:
    """Return the options with what their recipe leaves to no other option. Raises UsageError where the two contradict."""
    if options.recipe == "none":
        return options
    if options.quantize == "8w":
        raise UsageError(
            f"--recipe {options.recipe} gives most weights 4 bits, --quantize 8w gives all 8; leave one of them out."
        )
    recipe, table = recipe_of(options), options.embedding_quantize
    if options.format == "pte" and table == "none":
        table = recipe.embedding
    return replace(options, quantize="8da4w" if options.quantize == "none" else options.quantize, embedding_quantize=table)


def bits_of(name: str, options: ExportOptions) -> int:
    """Return the bits of a linear layer's or of experts' weight."""
    recipe = recipe_of(options).bits if options.recipe != "none" else ()
    return _by_patterns((name,), (*recipe, *options.bits), BITS[options.quantize])


def embedding_bits(names: Iterable[str], options: ExportOptions) -> int:
    """Return the bits of the embedding, which ``names`` are of: its own, and that of a head that is tied to it."""
    kind = "keep" if options.quantize == "keep" else options.embedding_quantize
    return _by_patterns(names, options.bits, BITS[kind])


def grid_of(bits: int, options: ExportOptions) -> Grid:
    """Return the whole numbers and scales that the kernels of an export take: our own, onnxruntime's, or XNNPACK's."""
    if options.kernels == "hybridge" or options.format == "onnx":
        return Grid(bits=bits, group=options.group_size, signed_scales=True, minima=bits < 8 and has_minima(options))
    return Grid(bits=bits, group=options.group_size, scale=torch.bfloat16)


def check_patterns(names: Iterable[str], options: ExportOptions) -> None:
    """Raises UsageError for a pattern of ``--bits`` that is for none of ``names``, the weights that can have fewer bits."""
    known = list(names)
    for pattern, bits in options.bits:
        if not any(_matches(name, pattern) for name in known):
            kinds = sorted({".".join(part for part in name.split(".")[-2:] if not part.isdigit()) for name in known})
            raise UsageError(
                f"--bits {pattern}={bits} is for no weight that can have fewer bits; this model's are {', '.join(kinds)}. "
                "Gates, convolutions and norms stay float32."
            )


def parse_bits(text: str) -> Bits:
    """Return the patterns of ``'out_proj=8,self_attn.*=8'``. Raises UsageError for what is none."""
    found = [re.fullmatch(r"\s*([^=,\s]+)\s*=\s*(4|5|6|8|32)\s*", part) for part in text.split(",")] if text else []
    if not all(found):
        raise UsageError(
            f"--bits {text!r}: expected patterns of names and 4, 5, 6, 8 or 32 bits, such as 'out_proj=8,self_attn.*=8'."
        )
    return tuple((match[1], int(match[2])) for match in found if match)


def _by_patterns(names: Iterable[str], patterns: Bits, bits: int) -> int:
    """The last pattern that is for one of the names decides."""
    every = tuple(names)
    return next((given for pattern, given in reversed(patterns) if any(_matches(name, pattern) for name in every)), bits)


def _matches(name: str, pattern: str) -> bool:
    """A pattern is for a whole name, or for its end behind a dot."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")
