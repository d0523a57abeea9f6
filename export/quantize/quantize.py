"""Give an artifact's weights fewer bits than its checkpoint's: resolve the options, and replace a model's layers.

``8da4w`` rounds weights to 4 bits and the inputs of linear layers to 8, by the same groups or token by token; ``4w``
and ``8w`` leave the inputs alone. ``keep`` rounds them too, and takes the blocks of a GGUF file as weights. Recurrent
state and gates stay float32 (docs/decisions.md).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.errors import UsageError
from hybridge.export.operators.linear import LANES
from hybridge.export.pinned.transformers import Reader, choose_experts, initialized, origin_of, tied_weights, with_origin
from hybridge.export.quantize.bits import (
    BITS,
    GROUPS,
    bits_of,
    check_columns,
    check_patterns,
    embedding_bits,
    embedding_factor,
    embedding_names,
    further_tables,
    grid_of,
    has_minima,
    has_tied_head,
    linears,
    rounded_columns,
    rounded_names,
    table_factor,
    with_recipe,
)
from hybridge.export.quantize.rounding import keep_blocks, round_by_search, round_in_blocks, round_to_nearest
from hybridge.export.quantize.stock import check_stock_quantization, quantize_for_stock, quantize_linear_for_stock
from hybridge.export.source.checkpoint import CheckpointSource
from hybridge.export.source.text_model import empty_model, text_decoder
from hybridge.export.weights import (
    EXPERTS,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PackedWeight,
    RoundedWeight,
    Rounder,
    WithoutWeight,
    projections,
)
from hybridge.runtime.artifact.options import ExportOptions

ROUNDERS: Mapping[str, Rounder] = {"nearest": round_to_nearest, "search": round_by_search, "blocks": round_in_blocks}
"""Rounders without data, by the option ``rounding``."""


def rounder_of(options: ExportOptions) -> Rounder:
    """Return the rounder that needs no data: it keeps a GGUF file's blocks, or rounds by the option ``rounding``."""
    return keep_blocks if options.quantize == "keep" else ROUNDERS[options.rounding]


def check_quantization(options: ExportOptions) -> None:
    """Raise UsageError for options that no kernels support together."""
    if options.kv_dtype != "float32" and options.kernels != "hybridge":
        raise UsageError(f"--kv-cache {options.kv_cache} needs --kernels hybridge, not {options.kernels}.")
    if not is_quantized(options):
        return
    if odd := {5, 6} & {BITS[options.embedding_quantize], *(bits for _, bits in options.bits)}:
        if not has_minima(options):
            raise UsageError(
                f"weights of {min(odd)} bits need --rounding blocks, --format pte and --kernels hybridge; others have 4 or 8."
            )
        if options.group_size % 32:
            raise UsageError(f"weights of {min(odd)} bits are in groups of 32 or a multiple, not of {options.group_size}.")
    if options.kernels != "hybridge":
        check_stock_quantization(options)
    elif options.group_size < 8 or options.group_size % 8:
        raise UsageError(f"--group-size {options.group_size} is not a multiple of 8; 32, 64 and 128 are usual.")


def check_calibration(options: ExportOptions) -> None:
    """Raise UsageError if there is nothing to calibrate, or if a validation could not read the rounded weights back."""
    if not is_quantized(options):
        raise UsageError("--calibrate is for rounded weights; give --quantize, --recipe or --bits too.")
    if options.quantize == "keep":
        raise UsageError("--calibrate is for weights that are rounded, and --quantize keep rounds none; give --quantize 8da4w.")
    if not options.has_own_kernels:
        other = f"--format {options.format}" if options.format != "pte" else f"--kernels {options.kernels}"
        raise UsageError(f"--calibrate needs --format pte and --kernels hybridge, not {other}; leave one of them out.")


def is_quantized(options: ExportOptions) -> bool:
    """Return whether any weight has fewer than 32 bits."""
    return options.quantize != "none" or options.embedding_quantize != "none" or bool(options.bits)


def is_lossy(options: ExportOptions) -> bool:
    """Return whether an artifact with ``options`` computes other logits than its checkpoint."""
    return is_quantized(options) or options.kv_dtype != "float32"


def is_packed(options: ExportOptions) -> bool:
    """Return whether a .pte with ``options`` replaces layers, if only to store their weights in another order."""
    return options.kernels == "hybridge" or is_quantized(options)


def is_own(options: ExportOptions) -> bool:
    """Return whether layers become hybridge's own ones; onnxruntime takes the same numbers."""
    return options.kernels == "hybridge" or options.format == "onnx"


def quantize(model: PreTrainedModel, options: ExportOptions, rounder: Rounder | None = None) -> None:
    """Replace layers of ``model`` in place by the artifact's; those that were replaced before stay.

    Args:
        rounder: rounds weights; without it, they are rounded without data.

    Raises:
        UsageError: a layer does not support the options, or a pattern of bits matches no weight.
    """
    replaced = (name for name, module in model.named_modules() if isinstance(module, WithoutWeight))
    check_patterns([*rounded_names(model), *replaced], options)
    (pack_weights if is_own(options) else quantize_for_stock)(model, options, rounder or rounder_of(options))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):  # it may be in the file's type, if it waited to be replaced
            module.weight.data = module.weight.data.float()


def quantize_drafter(drafter: nn.Module, options: ExportOptions) -> None:
    """Replace a drafter's linear layers and tables in place by the artifact's. Raises UsageError as ``quantize`` does."""
    bits = options.quantize if options.draft_quantize == "same" else options.draft_quantize
    options = replace(options, quantize=bits, recipe="none", bits=())  # those name the target's weights
    if not is_own(options):
        if bits == "none":
            return
        check_stock_quantization(options)
    for name, layer in list(linears(drafter)):
        replace_linear(drafter, name, layer, options)
    if is_own(options):
        pack_tables(drafter, options, rounder_of(options))


ENCODER_BITS = 8
"""Bits of a picture encoder's linear layers where the text's have fewer than 32: it is small, and reads each picture once."""


def quantize_encoder(whole: PreTrainedModel, parts: Iterable[str], options: ExportOptions, warn: Callable[[str], None]) -> None:
    """Replace the linear layers of an encoder of pictures in place by the artifact's; the stock runtime's stay float32.

    Groups that do not divide the columns of a layer are smaller there: of 16 for the 4304 columns of SigLIP so400m.

    Args:
        whole: the multimodal model.
        parts: names of the modules in it that make up the encoder.
        options: of the text model.
        warn: is told of layers that stay float32 because no group of 8 columns or more divides theirs.
    """
    if not options.has_own_kernels:
        return
    wanted = ENCODER_BITS if options.quantize != "none" else 32
    left = set[int]()
    for part in parts:
        for name, layer in list(linears(whole.get_submodule(part))):
            group = math.gcd(layer.in_features, options.group_size)
            fits = group % 8 == 0
            left |= set() if fits or wanted == 32 else {layer.in_features}
            of_layer = replace(options, group_size=group) if fits else options
            weight = _packed(name, layer.weight, wanted if fits else 32, of_layer, rounder_of(options))
            whole.set_submodule(f"{part}.{name}", PackedLinear(weight, layer.bias, integer=options.rounds_inputs))
    if left:
        columns = " and ".join(map(str, sorted(left)))
        warn(f"no group of 8 columns or more divides {columns} columns of the picture encoder, which stay float32.")


def replace_linear(model: nn.Module, name: str, layer: nn.Linear, options: ExportOptions) -> None:
    """Replace linear layer ``name`` of ``model``, as ``quantize`` would without data."""
    (pack_linear if is_own(options) else quantize_linear_for_stock)(model, name, layer, options, rounder_of(options))


# Resolve the options that depend on the checkpoint

RECIPE: Literal["balanced"] = "balanced"
"""The recipe of a float checkpoint: the best of those that need no data (docs/quality.md)."""


def resolve_quantization(options: ExportOptions, source: CheckpointSource, warn: Callable[[str], None]) -> ExportOptions:
    """Return the options without ``auto``, and with what their recipe implies, for this checkpoint.

    ``auto`` means what one would ship: a quantized GGUF file keeps its own blocks, a checkpoint that was quantized to 8
    bits keeps 8, and any other gets ``RECIPE``, unless other options ask for something else. Without our kernels all
    stays float32.

    Args:
        warn: is told if weights stay float32 because of their sizes, or if the weights of a quantized file get worse.

    Raises:
        UsageError: the options do not go together.
    """
    if options.quantize == "auto":
        others = _others(options)
        if not options.has_own_kernels or options.recipe != "none":
            options = replace(options, quantize="none")
        elif source.gguf_types and not others:
            options = replace(options, quantize="keep")
        else:
            own_bits = source.quantization.bits if source.quantization and not others else None
            options = _shipped(replace(options, quantize="none"), source.text_config, own_bits, warn)
    if options.quantize == "keep":
        _check_keep(options, source)
    options = with_recipe(options)
    if options.quantize != "keep" and source.gguf_types:
        warn(_cost(options, source))
    return options


def _shipped(options: ExportOptions, config: Any, own_bits: int | None, warn: Callable[[str], None]) -> ExportOptions:
    """Take the recipe or the checkpoint's own 8 bits, in groups that divide the columns of all weights.

    An embedding that is more than a table (Inkling's has a norm) stays float32.
    """
    model = empty_model(copy.deepcopy(config))  # a model changes its config, which is loaded later
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


def _cost(options: ExportOptions, source: CheckpointSource) -> str:
    """Say what an export loses of a quantized GGUF file, and how not to."""
    own = "--quantize keep" if options.has_own_kernels else "--quantize keep, with --format pte and --kernels hybridge,"
    if is_quantized(options):
        how = f"--recipe {options.recipe}" if options.recipe != "none" else f"--quantize {options.quantize}"
        done = f"{how} rounds them again, except those that fit as they are, and the model gets worse"
    else:
        done = "they become float32, which takes several times the file's bytes"
    return (
        f"the weights in {source.path} are quantized already ({', '.join(source.gguf_types)}): {done}. "
        f"{own} has the file's own bits."
    )


def _check_keep(options: ExportOptions, source: CheckpointSource) -> None:
    if source.gguf is None:
        raise UsageError(
            f"--quantize keep has the blocks of a GGUF file as they are, and {source.path} is not one; give --quantize 8da4w, "
            "or none."
        )
    if not options.has_own_kernels:
        other = f"--format {options.format}" if options.format != "pte" else f"--kernels {options.kernels}"
        raise UsageError(
            f"--quantize keep needs --format pte and --kernels hybridge, not {other}, which cannot have the blocks of a GGUF "
            "file; give --quantize 8da4w, which rounds them again, or none for float32."
        )
    if others := _others(options):
        raise UsageError(f"{' and '.join(others)} round weights, --quantize keep rounds none; leave one of them out.")


def _others(options: ExportOptions) -> list[str]:
    """Return the other options that ask for weights of fewer bits."""
    given = {
        f"--recipe {options.recipe}": options.recipe != "none",
        f"--embedding-quantize {options.embedding_quantize}": options.embedding_quantize != "none",
        "--bits": bool(options.bits),
        "--calibrate": options.calibrate != "none",
    }
    return [name for name, is_given in given.items() if is_given]


# Pack weights in panels for our kernels, once for every method and session


def pack_weights(model: PreTrainedModel, options: ExportOptions, rounder: Rounder = round_to_nearest) -> None:
    """Pack layers of ``model`` in place, one after the other, so that few weights are in memory twice.

    Raises UsageError if the group size does not divide a layer's columns, or an embedding cannot be quantized.
    """
    _pack_embedding(model, options, rounder)
    for name, table in list(further_tables(model)):
        if (bits := embedding_bits([name], options)) < 32:
            weight = _packed(name, table.weight, bits, options, rounder)
            model.set_submodule(name, PackedEmbedding(weight, embedding_factor(table)))
    for name, layer in list(linears(model)):
        pack_linear(model, name, layer, options, rounder)
    for name, module in list(model.named_modules()):
        pack_experts(name, module, options, rounder)
    choose_experts(model.config, EXPERTS)  # EXPERTS handles packed ones


def pack_linear(model: nn.Module, name: str, layer: nn.Linear, options: ExportOptions, rounder: Rounder) -> None:
    """Pack linear layer ``name`` of ``model``. Raises UsageError if the group size does not divide its columns."""
    weight = _packed(name, layer.weight, bits_of(name, options), options, rounder)
    model.set_submodule(name, PackedLinear(weight, layer.bias, integer=options.rounds_inputs))


def pack_experts(name: str, module: nn.Module, options: ExportOptions, rounder: Rounder) -> None:
    """Pack the weights in ``module``, if it has experts. Raises what ``pack_linear`` raises."""
    for projection in projections(module):
        _pack_projection(f"{name}.{projection}", module, projection, options, rounder)


def pack_tables(model: nn.Module, options: ExportOptions, rounder: Rounder) -> None:
    """Pack the embeddings of a drafter in 8 bits, if its linear layers have fewer than 32.

    Their rows are read one by one, so 4 bits would save no time.
    """
    for name, table in list(model.named_modules()):
        if options.quantize != "none" and type(table) is nn.Embedding:
            model.set_submodule(name, PackedEmbedding(_packed(name, table.weight, 8, options, rounder), 1.0))


def _pack_embedding(model: PreTrainedModel, options: ExportOptions, rounder: Rounder) -> None:
    """Pack the embedding, and the head if it is tied to it. An embedding of 32 bits is packed only for a tied head."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    names, tied = embedding_names(model), has_tied_head(model)
    bits = embedding_bits(names, options)
    factor = table_factor(embedding) if bits == 32 or options.quantize == "keep" else embedding_factor(embedding)
    if factor is None or (bits == 32 and not tied):
        return
    weight = _packed(names[0], embedding.weight, bits, options, rounder)
    model.set_input_embeddings(PackedEmbedding(weight, factor))
    if tied:
        model.set_output_embeddings(PackedLinear(weight, head.bias, integer=options.rounds_inputs))


def _pack_projection(name: str, module: Any, projection: str, options: ExportOptions, rounder: Rounder) -> None:
    parameter = getattr(module, projection)
    weight = parameter.detach().transpose(1, 2) if module.is_transposed else parameter.detach()  # [E, N, K]
    experts, rows, _ = weight.shape
    bits = bits_of(name, options)

    def in_panels(part: Tensor) -> Tensor:
        """Pad rows so that each expert has panels of its own."""
        return F.pad(part.unflatten(0, (experts, rows)), (0, 0, 0, -rows % LANES)).flatten(0, 1)

    flat = with_origin(weight.flatten(0, 1), origin_of(parameter))
    if bits == 32:
        packed = PackedWeight.exact(in_panels(flat), origin_of(parameter))
    else:
        packed = PackedWeight.of(_rounded(name, flat, bits, options, rounder).mapped(in_panels))
    delattr(module, projection)
    bias = None
    if module.has_bias:
        bias = getattr(module, f"{projection}_bias")
        delattr(module, f"{projection}_bias")
    setattr(module, projection, PackedExperts(packed, rows, bias, integer=options.rounds_inputs))


def _packed(name: str, weight: Tensor, bits: int, options: ExportOptions, rounder: Rounder) -> PackedWeight:
    return (
        PackedWeight.exact(weight, origin_of(weight))
        if bits == 32
        else PackedWeight.of(_rounded(name, weight, bits, options, rounder))
    )


def _rounded(name: str, weight: Tensor, bits: int, options: ExportOptions, rounder: Rounder) -> RoundedWeight:
    if options.quantize != "keep":  # whose groups are the file's
        check_columns(name, weight, options.group_size)
    return rounder(name, weight, grid_of(bits, options))


# Pack while reading


def packer(options: ExportOptions) -> Reader | None:
    """Return a reader that packs layers as a .pte with ``options`` has them; None if it packs none."""
    return PackedWhileRead(options) if is_packed(options) else None


@dataclass(frozen=True, kw_only=True)
class PackedNames:
    """Names in a model. linears, experts: modules to pack as they are read; kept: weights that are packed then or later."""

    linears: frozenset[str]
    experts: frozenset[str]
    kept: frozenset[str]


class PackedWhileRead:
    """Packs the text layers of one model while its checkpoint is being read, each as soon as its weights are there.

    So a checkpoint may be larger than memory: only packed weights stay. Tied weights and an embedding wait in the type
    of their file until everything has been read; ``quantize`` packs those.
    """

    def __init__(self, options: ExportOptions) -> None:
        self.options = options
        self._names: PackedNames | None = None

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Return whether weight ``name`` is packed now or later, and need not become float32 before."""
        return name in self.names(model).kept

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Pack the layer that weight ``name`` is of, if it was the last one. Raises UsageError as ``quantize`` does."""
        path, names = name.rpartition(".")[0], self.names(model)
        if path not in names.linears | names.experts:
            return
        module = model.get_submodule(path)
        if any(weight.is_meta for weight in module.parameters()):
            return
        if path in names.linears:
            assert isinstance(module, nn.Linear)
            replace_linear(model, path, module, self.options)
        else:
            pack_experts(path, module, self.options, rounder_of(self.options))
        packed = model.get_submodule(path)
        # Mark its tensors too, because a module around it may initialize them (RecurrentGemma does so with biases).
        for each in (*packed.modules(), *packed.parameters(), *packed.buffers()):
            initialized(each)

    def names(self, model: PreTrainedModel) -> PackedNames:
        """Return the names to pack in ``model``, found before any layer was packed."""
        if self._names is None:
            self._names = _names_to_pack(model, self.options)
        return self._names


def _names_to_pack(model: PreTrainedModel, options: ExportOptions) -> PackedNames:
    text = {id(module) for module in (*text_decoder(model).modules(), model.get_output_embeddings())}
    named = {name: module for name, module in model.named_modules() if id(module) in text}
    layers = {f"{name}.weight": name for name, _ in linears(model) if name in named}
    layers = layers if is_own(options) or options.quantize != "none" else {}
    stacks = {f"{name}.{each}": name for name, module in named.items() for each in projections(module)}
    stacks = stacks if is_own(options) else {}
    tied = tied_weights(model)
    return PackedNames(
        linears=frozenset(name for weight, name in layers.items() if weight not in tied),
        experts=frozenset(name for weight, name in stacks.items() if weight not in tied),
        kept=frozenset((*layers, *stacks, *_embeddings(model, options))),
    )


def _embeddings(model: PreTrainedModel, options: ExportOptions) -> Iterator[str]:
    """Yield the weights of the embedding and of what is tied to it, if they are packed and the embedding is a mere table."""
    table = model.get_input_embeddings()
    name = next(f"{name}.weight" for name, module in model.named_modules() if module is table)
    tied = {target for target, source in model.all_tied_weights_keys.items() if source == name}
    if type(table) is nn.Embedding and (
        options.embedding_quantize != "none" or (is_own(options) and tied) or options.quantize == "keep"
    ):
        yield from (name, *tied)
