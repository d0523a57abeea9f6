"""What an export does with a checkpoint's weights where its options leave that open, and what the choice costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hybridge.cache.errors import UsageError
from hybridge.cache.families import text_config
from hybridge.export.checkpoint.forms.recognize import quantization_of
from hybridge.export.checkpoint.gguf.checkpoint import is_gguf
from hybridge.export.checkpoint.gguf.file import open_gguf
from hybridge.export.checkpoint.text_model import empty_model
from hybridge.export.quantization.bits import with_recipe
from hybridge.export.quantization.quantizable import GROUPS, embedding_names, rounded_columns
from hybridge.export.quantization.quantize import is_quantized
from hybridge.export.source.reading import read_object
from hybridge.runtime.artifacts.options import ExportOptions

RECIPE: Literal["balanced"] = "balanced"
"""What a float checkpoint gets: the best of those that need no data (docs/quality.md)."""


def resolved(options: ExportOptions, place: Path, config: Any, warn: Callable[[str], None]) -> ExportOptions:
    """Return the options for the checkpoint at ``place`` with ``config``: without ``auto``, and with what their recipe implies.

    auto is what one would ship: a quantized GGUF file keeps its own blocks, a checkpoint that somebody quantized to 8 bits
    keeps 8, and any other gets ``RECIPE``, unless somebody asks for others; without our kernels everything stays float32.
    warn: is told where it does for its sizes.

    Raises UsageError for options that do not go together.
    """
    if options.quantize == "auto":
        if not options.has_own_kernels or options.recipe != "none":
            options = replace(options, quantize="none")
        elif _quantized_kinds(place) and not _others(options):
            options = replace(options, quantize="keep")
        else:
            own = _own_bits(place) if not _others(options) else None
            options = _shipped(replace(options, quantize="none"), config, own, warn)
    if options.quantize == "keep":
        _check_keep(options, place)
    return with_recipe(options)


def _shipped(options: ExportOptions, config: Any, own_bits: int | None, warn: Callable[[str], None]) -> ExportOptions:
    """The recipe or the checkpoint's own 8 bits, in groups that divide all weights.

    An embedding that is more than a table (Inkling's has a norm) stays.
    """
    model = empty_model(text_config(config))
    columns = rounded_columns(model)
    fitting = [size for size in (options.group_size, *GROUPS) if not any(each % size for each in columns)]
    if not fitting:
        warn("no group of 8 columns or more divides this model's weights: they stay float32.")
        return options
    left_alone = [(name, 32) for name in embedding_names(model) if list(model.get_input_embeddings().children())]
    if own_bits is not None and own_bits >= 8:
        bits = (("*", 8), *left_alone)
        return replace(options, quantize="8da4w", embedding_quantize="8w", group_size=fitting[0], bits=bits)
    rounding: Literal["blocks", "search"] = "search" if fitting[0] % 32 else "blocks"  # whose 5 bits want groups of 32
    return replace(options, recipe=RECIPE, rounding=rounding, group_size=fitting[0], bits=(*left_alone, *options.bits))


def costs(options: ExportOptions, place: Path) -> Iterator[str]:
    """Yield a sentence for what an export with ``options`` loses of a quantized file, and how not to."""
    if options.quantize == "keep" or not (kinds := _quantized_kinds(place)):
        return
    own = "--quantize keep" if options.has_own_kernels else "--quantize keep, with --format pte and --kernels hybridge,"
    if is_quantized(options):
        how = f"--recipe {options.recipe}" if options.recipe != "none" else f"--quantize {options.quantize}"
        done = f"{how} rounds them again, but for those that fit as they are, and the model gets worse"
    else:
        done = "they become float32, which takes several times the file's bytes"
    yield f"the weights in {place} are quantized already ({', '.join(kinds)}): {done}. {own} has the file's own bits."


def _quantized_kinds(place: Path) -> list[str]:
    """The types of a GGUF file's tensors that are quantized, by GGML's names; none for any other checkpoint."""
    tensors = open_gguf(place).tensors.values() if is_gguf(place) else ()
    return sorted({tensor.kind_name for tensor in tensors if not tensor.is_float})


def _own_bits(place: Path) -> int | None:
    """The bits that somebody gave the weights of a folder; None where nobody did."""
    config = place / "config.json"
    found = quantization_of(place, read_object(config)) if config.exists() else None
    return None if found is None else found.method.bits(found.quantization)


def _check_keep(options: ExportOptions, place: Path) -> None:
    if not is_gguf(place):
        raise UsageError(
            f"--quantize keep has the blocks of a GGUF file as they are, and {place} is none; give --quantize 8da4w, or none."
        )
    if not options.has_own_kernels:
        other = "--format onnx" if options.format != "pte" else f"--kernels {options.kernels}"
        raise UsageError(
            f"--quantize keep needs --format pte and --kernels hybridge, not {other}, which cannot have the blocks of a GGUF "
            "file; give --quantize 8da4w, which rounds them again, or none for float32."
        )
    if others := _others(options):
        raise UsageError(f"{' and '.join(others)} round weights, --quantize keep rounds none; leave one of them out.")


def _others(options: ExportOptions) -> list[str]:
    """Other options that ask for weights of fewer bits."""
    given = {
        f"--recipe {options.recipe}": options.recipe != "none",
        f"--embedding-quantize {options.embedding_quantize}": options.embedding_quantize != "none",
        "--bits": bool(options.bits),
        "--calibrate": options.calibrate != "none",
    }
    return [name for name, is_given in given.items() if is_given]
