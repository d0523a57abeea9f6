"""Choose the weights of a model that can have fewer bits, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.errors import UsageError
from hybridge.export.layers.experts import projections

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
