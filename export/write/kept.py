"""Export another checkpoint of a shape without lowering: name the shape, and fill the program that is kept for it.

A shape is all that decides a program but the numbers of the weights: the config, the options, and the form of every tensor.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hybridge.cache
import hybridge.export
import hybridge.runtime.artifact
import hybridge.runtime.pack
from hybridge.export.lower.sources import compute, is_known
from hybridge.export.pinned.executorch import Source, StoredTensor
from hybridge.runtime.artifact.manifest import MethodEntry
from hybridge.runtime.pack.programs import Constant, KeptProgram, UnfitProgramError
from hybridge.runtime.version import __version__


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
        plain = {key: value for key, value in sorted(vars(module).items()) if _is_plain(value)}
        yield f"{name} {kind.__module__}.{kind.__qualname__} {plain}"
        config = getattr(module, "config", None)
        if hasattr(config, "to_dict"):
            configs[id(config)] = config
    for config in configs.values():
        yield json.dumps(
            {key: value for key, value in config.to_dict().items() if key not in NAMES}, sort_keys=True, default=str
        )


NAMES = ("_name_or_path", "name_or_path", "transformers_version")
"""Entries of a config that decide nothing of a model."""


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, a type of tensors, or of such alone."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | torch.dtype | type(None))


def _tensors(state: nn.Module) -> Iterator[str]:
    first: dict[object, str] = {}
    for name, tensor in (*state.named_parameters(remove_duplicate=False), *state.named_buffers(remove_duplicate=False)):
        place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
        shared = first.setdefault(place, name) if tensor.numel() else name
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()} {shared}"


def _inputs(methods: Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]) -> Iterator[str]:
    for name, (module, inputs) in methods.items():
        plain = {key: value for key, value in sorted(vars(module).items()) if _is_plain(value)}
        yield f"{name} {type(module).__qualname__} {plain} {[(each.dtype, tuple(each.shape)) for each in inputs]}"


@functools.cache
def exporting_code() -> str:
    """Return a hash of the Python that decides a program, of the pinned libraries' versions and of this Python's."""
    digest = hashlib.sha256()
    for package in (hybridge.cache, hybridge.export, hybridge.runtime.artifact, hybridge.runtime.pack):
        top = Path(package.__path__[0])
        for path in sorted(top.rglob("*.py")):
            digest.update(f"{path.relative_to(top)}".encode() + path.read_bytes())
    libraries = [version(name) for name in ("torch", "executorch", "transformers", "torchao", "numpy")]
    digest.update(f"{__version__} {libraries} {platform.python_version()} {platform.machine()}".encode())
    return digest.hexdigest()
