"""Export another checkpoint of a shape without lowering: name the shape, and fill the program that is kept for it.

A shape is all that decides a program but the numbers of the weights: the config, the options, and the form of every tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.vocabulary import CHOSEN
from hybridge.export.lower.repeat import plain_attributes
from hybridge.export.lower.sources import compute, graph_source, is_known
from hybridge.export.pinned.executorch import Source, StoredTensor
from hybridge.export.pinned.torch_export import is_persistent, traced_graph
from hybridge.export.pinned.transformers import origin_of
from hybridge.export.source.gguf.architecture import MadeTensor
from hybridge.export.weights import PackedExperts, PanelLinear
from hybridge.runtime.artifact.manifest import Manifest, MethodEntry
from hybridge.runtime.pack.programs import Constant, KeptProgram, UnfitProgramError, exporting_code
from hybridge.runtime.pack.weights import GgufWeights


def kept_apart(parts: Sequence[bytes | StoredTensor], methods: dict[str, MethodEntry]) -> KeptProgram | None:
    """Return a program that was just lowered apart from weights; None if weights are in delegates or of unknown sources."""
    sources = [part.source for part in parts if isinstance(part, StoredTensor)]
    if any(method.delegates for method in methods.values()) or not all(map(is_known, sources)):
        return None
    return KeptProgram(parts=[_apart(part) for part in parts], methods=methods)


def _apart(part: bytes | StoredTensor) -> bytes | Constant:
    if isinstance(part, bytes):
        return part
    return part.to_bytes() if part.source is None else Constant(size=len(part), source=part.source)


def write_filled(program: KeptProgram, path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the file of a kept program with the ``tensors`` of a checkpoint, by name. Raises UnfitProgramError, OSError."""

    def fill(source: Source) -> memoryview:
        try:
            value = compute(source, tensors)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UnfitProgramError(str(error)) from error
        return value.flatten().view(torch.uint8).numpy().data

    program.write(path, fill)


# The same of a GGUF file: what PyTorch made of its tensors, in words that need no PyTorch


def packed_apart(
    program: KeptProgram, state: nn.Module, tensors: Mapping[str, Tensor], weights: GgufWeights, manifest: Manifest
) -> KeptProgram | None:
    """Return a program whose constants come of a GGUF file's tensors; None if they do not all, or not bit for bit.

    Args:
        program: with the sources of its constants in the model.
        state: the model over its cache.
        tensors: of the model, by name.
        weights: of the file, with the tokens that a drafter may propose.
        manifest: of the artifact.
    """
    stored = dict(file_sources(state))
    parts: list[bytes | Constant] = []
    for part in program.parts:
        if isinstance(part, Constant):
            data = compute(part.source, tensors).flatten().view(torch.uint8).numpy().tobytes()
            source = _in_file(part.source, stored)
            if source is CONFIG:
                parts.append(data)
                continue
            try:
                same = weights.fill(source) == data
            except UnfitProgramError:
                same = False
            if not same:
                return None
            parts.append(Constant(size=part.size, source=source))
        else:
            parts.append(part)
    return replace(program, parts=parts, manifest=manifest)


CONFIG: Source = {"config": True}
"""The source of a buffer that the config alone decides, such as the angles of RoPE."""


def file_sources(state: nn.Module) -> Iterator[tuple[str, Source]]:
    """Yield the sources of a model's tensors in its GGUF file, by the tensors' names, as far as they are known."""
    graphs: dict[object, Graph] = {}
    for prefix, module in state.named_modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            full = f"{prefix}.{name}" if prefix else name
            if isinstance(origin := getattr(module, "origin", None), MadeTensor) and name in PARTS:
                experts = module.experts if isinstance(module, PackedExperts) else 1
                yield full, {"packed": name, **_made(origin, graphs), "bits": module.bits, "experts": experts}
            elif isinstance(origin := origin_of(tensor), MadeTensor):
                yield full, _made(origin, graphs)["make"]
            elif name in dict(module.named_buffers(recurse=False)) and not is_persistent(module, name):
                yield full, CONFIG
            elif isinstance(module, ArtifactDrafter | PanelLinear) and name in CHOSEN:
                yield full, {"of": CHOSEN[name]}


PARTS = ("packed", "scales", "minima", "superscales", "table")
"""Names of a packed layer's tensors that are its weight."""


def _made(origin: MadeTensor, graphs: dict[object, Graph]) -> dict[str, Source]:
    """Return how a tensor is made. graphs: of those before, because layers have tensors that are made alike."""
    names, shapes = [each.name for each in origin.sources], tuple(each.shape for each in origin.sources)
    alike = origin.make, id(origin.config), shapes
    if alike not in graphs:
        graphs[alike] = traced_graph(partial(origin.make, origin.config), [torch.empty(each, device="meta") for each in shapes])
    return {"make": graph_source(graphs[alike], names), "of": names}


def _in_file(source: Source, stored: Mapping[str, Source]) -> Source:
    """Return a source in a model as one in its file."""
    match source:
        case {"of": str() as name}:
            return stored.get(name, {"unknown": name})
        case dict():
            return {key: _in_file(each, stored) for key, each in source.items()}
        case list():
            return [_in_file(each, stored) for each in source]
        case _:
            return source


# The key of a shape


def shape_key(state: nn.Module, methods: Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]], *others: object) -> str:
    """Return the name of all that decides a program but the numbers of the weights.

    Args:
        state: the model over its cache, ready to be traced: its modules with their plain attributes and configs, and name,
            shape, type and sharing of each tensor.
        methods: with their example inputs.
        others: options, constants and what else decides; by their ``repr``.
    """
    digest = hashlib.sha256(exporting_code().encode())
    for part in (*_modules(state), *_tensors(state), *_inputs(methods), *map(repr, others)):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()[:32]


def _modules(state: nn.Module) -> Iterator[str]:
    configs: dict[int, Any] = {}
    for name, module in state.named_modules():
        kind = type(module)
        yield f"{name} {kind.__module__}.{kind.__qualname__} {plain_attributes(module, NAMES)}"
        config = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            configs[id(config)] = config
    for config in configs.values():
        yield json.dumps(
            {key: value for key, value in config.to_dict().items() if key not in NAMES}, sort_keys=True, default=str
        )


NAMES = ("_name_or_path", "name_or_path", "transformers_version")
"""Entries of a config, and attributes of a model, that decide nothing of a program."""


def _tensors(state: nn.Module) -> Iterator[str]:
    first: dict[object, str] = {}
    for name, tensor in (*state.named_parameters(remove_duplicate=False), *state.named_buffers(remove_duplicate=False)):
        place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        shared = first.setdefault(place, name) if tensor.numel() else name
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {shared}"


def _inputs(methods: Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]) -> Iterator[str]:
    for name, (module, inputs) in methods.items():
        shapes = [(each.dtype, tuple(each.shape)) for each in inputs]
        yield f"{name} {type(module).__qualname__} {plain_attributes(module, NAMES)} {shapes}"
