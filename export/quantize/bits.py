"""Decide how many bits each weight gets: by the kind of quantization, a recipe, and patterns of names.

A recipe gives more bits to weights whose rounding costs most for each byte, which ``hybridge evaluate --layers`` measures;
docs/quality.md has the figures that these recipes come from. Gates of recurrences (their decays, steps and betas), convolutions
and norms stay float32 whatever is asked for: their errors add up over a long text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.layers import Grid, projections
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


# Choose the weights of a model that can have fewer bits, whoever runs it.


GATES = frozenset({"in_proj_a", "in_proj_b", "in_proj_ba", "b_proj", "f_a_proj", "f_b_proj", "x_proj"})
"""Layers that make decays, steps and betas of recurrences, whose errors add up over a text."""

READ_DIRECTLY = frozenset({"kv_b_proj", "dt_proj", "router", "gate"})
"""Layers whose weight is not only multiplied with, or decides between experts, where a rounding error is a wrong choice."""

NARROW = 16
"""A layer with so many times fewer outputs than inputs makes gates: little to gain, much to lose."""

GROUPS = (32, 16, 8)
"""Columns that may share a scale where nobody says how many, best first."""


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Return the linear layers that fewer bits are for, and their names."""
    for name, module in model.named_modules():
        wide = type(module) is nn.Linear and module.out_features * NARROW > module.in_features
        if wide and name.rpartition(".")[2] not in GATES | READ_DIRECTLY:
            yield name, module


def has_tied_head(model: PreTrainedModel) -> bool:
    """Return whether the output layer's weight is the embedding's."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def untied_linears(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """Return ``linears`` without an output layer that is tied: its weight is stored once, and a table of 32 bits."""
    tied = model.get_output_embeddings() if has_tied_head(model) else None
    return ((name, layer) for name, layer in linears(model) if layer is not tied)


def embedding_names(model: PreTrainedModel) -> list[str]:
    """Return the names of the embedding and of a head that is tied to it."""
    tied = [model.get_output_embeddings()] if has_tied_head(model) else []
    shared = [model.get_input_embeddings(), *tied]
    return [name for name, module in model.named_modules() if any(module is each for each in shared)]


def rounded_names(model: PreTrainedModel) -> list[str]:
    """Return the names of all weights that may be rounded: linear layers, experts, the embedding."""
    experts = [f"{name}.{each}" for name, module in model.named_modules() for each in projections(module)]
    return list(dict.fromkeys([*(name for name, _ in linears(model)), *experts, *embedding_names(model)]))


def rounded_columns(model: PreTrainedModel) -> set[int]:
    """Return how many columns those weights have, as their layers multiply with them."""
    found = {layer.in_features for _, layer in linears(model)} | {model.get_input_embeddings().weight.shape[1]}
    for module in model.modules():
        found |= {getattr(module, each).shape[1 if module.is_transposed else 2] for each in projections(module)}
    return found


def check_columns(name: str, weight: Tensor, group: int, smallest: int = 8) -> None:
    """Raises UsageError where the columns of ``weight`` are no whole number of groups, which have ``smallest`` or more."""
    if weight.shape[1] % group:
        divisors = [size for size in (128, 64, 32, 16, 8) if size >= smallest and weight.shape[1] % size == 0]
        hint = f"use --group-size {divisors[0]}" if divisors else "these kernels cannot have this model in fewer bits"
        raise UsageError(f"{name} has {weight.shape[1]} columns, which groups of {group} do not divide; {hint}.")


def embedding_factor(embedding: Any) -> float:
    """Return the factor of an embedding's rows. Raises UsageError if it does more than multiply with one."""
    factor = table_factor(embedding)
    if factor is None:
        raise UsageError(f"a {type(embedding).__name__} is more than a table; export without --embedding-quantize.")
    return factor


def table_factor(embedding: Any) -> float | None:
    """Return the factor of an embedding's rows, which some families have; None if it does more than multiply with one."""
    tokens = torch.arange(min(8, embedding.weight.shape[0]))
    plain, out = embedding.weight[tokens].detach(), embedding(tokens).detach()
    at = plain.abs().argmax()
    factor = float(out.flatten()[at] / plain.flatten()[at])
    return factor if torch.allclose(out, plain * factor, rtol=1e-5) else None
