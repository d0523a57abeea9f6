"""Decide ``--quantize auto``: what an export makes that says nothing of bits, which is what one would ship to a phone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from hybridge.cache.families import text_config
from hybridge.export.checkpoint.text_model import empty_model
from hybridge.export.quantization.quantizable import embedding_names, rounded_columns
from hybridge.runtime.artifacts.options import ExportOptions

RECIPE: Literal["balanced"] = "balanced"
"""The best of those that need no data, in about 4.9 bits a weight of the whole file (docs/quality.md)."""

GROUPS = (32, 16, 8)
"""Sizes of groups, best first."""


def decided(options: ExportOptions, config: Any, warn: Callable[[str], None]) -> ExportOptions:
    """Return the options with bits in the place of ``auto``: the recipe for our own kernels, float32 for all others.

    warn: is told where the weights of the model that ``config`` describes have to stay float32.
    """
    if options.quantize != "auto":
        return options
    exact = replace(options, quantize="none")
    if options.recipe != "none" or options.format != "pte" or options.kernels != "hybridge":
        return exact
    model = empty_model(text_config(config))
    columns = rounded_columns(model)
    fitting = [size for size in (options.group_size, *GROUPS) if not any(each % size for each in columns)]
    if not fitting:
        warn("no group of 8 columns or more divides this model's weights: they stay float32.")
        return exact
    # An embedding that is more than a table (Inkling's has a norm) stays as it is.
    left_alone = [(name, 32) for name in embedding_names(model) if list(model.get_input_embeddings().children())]
    return replace(exact, recipe=RECIPE, group_size=fitting[0], bits=(*left_alone, *options.bits))
