"""Choose the weights that get fewer bits, and how many: by the kind of quantization, a recipe, and patterns of names.

A recipe gives more bits to weights whose rounding costs most for each byte, which ``hybridge evaluate --layers``
measures; docs/quality.md has the figures behind these recipes. Gates of recurrences (decays, steps and betas),
convolutions and norms always stay float32, because their errors add up over a long text.
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

from hybridge.errors import UsageError
from hybridge.export.pinned.torch_export import called_with
from hybridge.export.weights import Grid, projections
from hybridge.runtime.artifact.options import Bits, ExportOptions

BITS: Mapping[str, int] = {"none": 32, "keep": 8, "8da4w": 4, "4w": 4, "5w": 5, "6w": 6, "8w": 8}
"""Bits by the kind of quantization; those of ``keep`` are for weights that cannot keep their own."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A choice of bits. embedding: of the embedding and a tied head; bits: of other weights, by patterns; the rest gets 4."""

    embedding: Literal["4w", "5w", "6w", "8w"]
    bits: Bits = ()


OUTPUTS = ("*.out_proj", "*.o_proj")
"""Output projections of attention and recurrent layers: small, and read by every later layer."""

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
"""Recipes for groups with minima (``--rounding blocks``), whose bits are worth more."""


def recipe_of(options: ExportOptions) -> Recipe:
    """Return the recipe that the options name."""
    return (BLOCK_RECIPES if has_minima(options) else RECIPES)[options.recipe]


def has_minima(options: ExportOptions) -> bool:
    """Return whether groups are rounded to a scale and a minimum, which only our own kernels support."""
    return options.rounding == "blocks" and options.has_own_kernels


def with_recipe(options: ExportOptions) -> ExportOptions:
    """Return the options with what their recipe implies. Raises UsageError if the two contradict."""
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
    """Return the bits of the weight of a linear layer or of experts."""
    recipe = recipe_of(options).bits if options.recipe != "none" else ()
    return _by_patterns((name,), (*recipe, *options.bits), BITS[options.quantize])


def embedding_bits(names: Iterable[str], options: ExportOptions) -> int:
    """Return the bits of the embedding. names: its own, and that of a tied head."""
    kind = "keep" if options.quantize == "keep" else options.embedding_quantize
    return _by_patterns(names, options.bits, BITS[kind])


def grid_of(bits: int, options: ExportOptions) -> Grid:
    """Return the grid that the kernels of an export take: our own, onnxruntime's, or XNNPACK's."""
    if options.kernels == "hybridge" or options.format == "onnx":
        return Grid(bits=bits, group=options.group_size, signed_scales=True, minima=bits < 8 and has_minima(options))
    return Grid(bits=bits, group=options.group_size, scale=torch.bfloat16)


def check_patterns(names: Iterable[str], options: ExportOptions) -> None:
    """Raise UsageError for a pattern of ``--bits`` that matches none of ``names``, the weights that can have fewer bits."""
    known = list(names)
    for pattern, bits in options.bits:
        if not any(_matches(name, pattern) for name in known):
            kinds = sorted({".".join(part for part in name.split(".")[-2:] if not part.isdigit()) for name in known})
            raise UsageError(
                f"--bits {pattern}={bits} is for no weight that can have fewer bits; this model's are {', '.join(kinds)}. "
                "Gates, convolutions and norms stay float32."
            )


def parse_bits(text: str) -> Bits:
    """Parse patterns such as ``'out_proj=8,self_attn.*=8'``. Raises UsageError for anything else."""
    found = [re.fullmatch(r"\s*([^=,\s]+)\s*=\s*(4|5|6|8|32)\s*", part) for part in text.split(",")] if text else []
    if not all(found):
        raise UsageError(
            f"--bits {text!r}: expected patterns of names and 4, 5, 6, 8 or 32 bits, such as 'out_proj=8,self_attn.*=8'."
        )
    return tuple((match[1], int(match[2])) for match in found if match)


def _by_patterns(names: Iterable[str], patterns: Bits, bits: int) -> int:
    """Return the bits of the last pattern that matches one of the names, or the default."""
    every = tuple(names)
    return next((given for pattern, given in reversed(patterns) if any(_matches(name, pattern) for name in every)), bits)


def _matches(name: str, pattern: str) -> bool:
    """Match a whole name, or its end after a dot."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


# The weights of a model that can have fewer bits

GATES = frozenset(
    {"in_proj_a", "in_proj_b", "in_proj_ba", "b_proj", "f_a_proj", "f_b_proj", "x_proj", "w_lora", "a_lora", "v_lora"}
)
"""Layers that compute decays, steps and betas of recurrences, whose errors add up over a text."""

READ_DIRECTLY = frozenset({"kv_b_proj", "dt_proj", "router", "gate"})
"""Layers whose weight is used for more than a product, and those that choose experts, with the layers inside of them: an error
makes a wrong choice."""

NARROW = 16
"""Ratio of inputs to outputs from which a layer makes gates: little to gain, much to lose."""

TABLES = frozenset({"embed_tokens_per_layer"})
"""Tables beside the embedding, with a row for each token: of Gemma 3n and 4 they are most of the weights."""

GROUPS = (32, 16, 8)
"""Default numbers of columns that share a scale, best first."""


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers that can have fewer bits, by name: not those with less than a group of columns."""
    for name, module in model.named_modules():
        wide = type(module) is nn.Linear and module.out_features * NARROW > module.in_features
        if wide and module.in_features >= GROUPS[-1] and (GATES | READ_DIRECTLY).isdisjoint(name.split(".")):
            yield name, module


def has_tied_head(model: PreTrainedModel) -> bool:
    """Return whether the output layer's weight is the embedding's."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def untied_linears(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear]]:
    """Return ``linears`` without a tied output layer, whose weight is stored once, as a table of 32 bits."""
    tied = model.get_output_embeddings() if has_tied_head(model) else None
    return ((name, layer) for name, layer in linears(model) if layer is not tied)


def embedding_names(model: PreTrainedModel) -> list[str]:
    """Return the names of the embedding and of a tied head."""
    tied = [model.get_output_embeddings()] if has_tied_head(model) else []
    shared = [model.get_input_embeddings(), *tied]
    return [name for name, module in model.named_modules() if any(module is each for each in shared)]


def further_tables(model: nn.Module) -> Iterator[tuple[str, nn.Embedding]]:
    """Yield the tables of ``TABLES`` that a model has, by name."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in TABLES:
            yield name, module


def rounded_names(model: PreTrainedModel) -> list[str]:
    """Return the names of all weights that may be rounded: linear layers, experts, the embedding."""
    experts = [f"{name}.{each}" for name, module in model.named_modules() for each in projections(module)]
    tables = [*embedding_names(model), *(name for name, _ in further_tables(model))]
    return list(dict.fromkeys([*(name for name, _ in linears(model)), *experts, *tables]))


def rounded_columns(model: PreTrainedModel) -> set[int]:
    """Return the numbers of columns of those weights."""
    found = {layer.in_features for _, layer in linears(model)} | {model.get_input_embeddings().weight.shape[1]}
    found |= {table.embedding_dim for _, table in further_tables(model)}
    for module in model.modules():
        found |= {getattr(module, each).shape[1 if module.is_transposed else 2] for each in projections(module)}
    return found


def check_columns(name: str, weight: Tensor, group: int, smallest: int = 8) -> None:
    """Raise UsageError if groups do not divide the columns of ``weight``. smallest: the smallest group of the kernels."""
    if weight.shape[1] % group:
        divisors = [size for size in (128, 64, 32, 16, 8) if size >= smallest and weight.shape[1] % size == 0]
        hint = f"use --group-size {divisors[0]}" if divisors else "these kernels cannot have this model in fewer bits"
        raise UsageError(f"{name} has {weight.shape[1]} columns, which groups of {group} do not divide; {hint}.")


def embedding_factor(embedding: Any) -> float:
    """Return the factor of an embedding's rows. Raises UsageError if it is more than a table with a factor."""
    factor = table_factor(embedding)
    if factor is None:
        raise UsageError(f"a {type(embedding).__name__} is more than a table; export without --embedding-quantize.")
    return factor


def table_factor(embedding: Any) -> float | None:
    """Return the factor of an embedding's rows, 1 for most families; None if it is more than a table with a factor.

    It is found with rows of ones, because the graph has it as a number, which the model's own weights must not decide.
    """
    shape, token = embedding.weight.shape, torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        out, doubled = (
            called_with(embedding, {"weight": torch.full((1, 1), number).expand(shape)}, token) for number in (1.0, 2.0)
        )
    factor = float(out.flatten()[0])
    return factor if torch.allclose(out, out.new_tensor(factor)) and torch.allclose(doubled, 2 * out) else None
