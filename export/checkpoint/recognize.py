"""Say what a model of an unknown family is made of, so that whoever wants it knows what is missing.

Token mixers are told by the names of their parameters and modules, which transformers keeps from family to family.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from hybridge.export.checkpoint.decoder import decoder_of

SIGNATURES: tuple[tuple[str, frozenset[str]], ...] = (
    ("Kimi delta attention", frozenset({"A_log", "dt_bias", "conv1d", "f_b_proj"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "in_proj_qkvz"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "in_proj_qkv"})),
    ("gated delta net", frozenset({"A_log", "dt_bias", "conv1d", "a_proj", "b_proj"})),
    ("Mamba-2", frozenset({"A_log", "D", "dt_bias", "conv1d", "in_proj"})),
    ("Mamba", frozenset({"A_log", "D", "conv1d", "x_proj", "dt_proj"})),
    ("lightning attention", frozenset({"slope_rate", "qkv_proj", "output_gate"})),
    ("RG-LRU", frozenset({"rg_lru", "conv_1d"})),
    ("short convolution", frozenset({"conv", "in_proj", "out_proj"})),
    ("latent attention", frozenset({"kv_b_proj", "o_proj"})),
    ("attention", frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})),
    ("attention", frozenset({"qkv_proj", "o_proj"})),
)
"""What the modules, parameters and buffers of a token mixer that hybridge has a state for are called, the surest first."""


def what_is_missing(config: Any) -> str | None:
    """Return a sentence or two on the parts of the model that ``config`` describes; None if it cannot be built.

    Builds the model without memory for its weights, and runs nothing of a checkpoint's.
    """
    try:
        with torch.device("meta"):
            layers = list(decoder_of(AutoModelForCausalLM.from_config(config, trust_remote_code=False)).layers)
    except Exception:  # whatever a config that nobody has tried makes transformers run into
        return None
    known, unknown = _parts(layers)
    if not known:
        return None
    found = f"Parts of it that hybridge has: {_counted(known)}."
    if unknown:
        return f"{found} Layers without any: {_counted(unknown)}; their state has to be written first."
    return f"{found} What is missing is an entry in the two tables of families: docs/adding-a-family.md shows how."


def _parts(layers: Iterable[nn.Module]) -> tuple[Counter[str], Counter[str]]:
    """Return how many of which known mixers there are, and how many layers by class have none."""
    known: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for layer in layers:
        mixers = [name for module in layer.modules() if (name := _recognize(module))]
        known.update(mixers)
        if not mixers:
            unknown[type(layer).__name__] += 1
    return known, unknown


def _recognize(module: nn.Module) -> str | None:
    names = {name for name, _ in module.named_children()}
    names |= {name for name, _ in module.named_parameters(recurse=False)}
    names |= {name for name, _ in module.named_buffers(recurse=False)}
    return next((kind for kind, signature in SIGNATURES if signature <= names), None)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in counts.most_common())
