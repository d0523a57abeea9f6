"""Weights of a checkpoint out of a GGUF file's tensors: under their own names, with what llama.cpp did to them undone.

Source: llama.cpp's ``conversion/*.py``, ``modify_tensors`` of each architecture.

Axes: H heads, D dimensions of a head, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from hybridge.export.checkpoint.forms.form import Unread
from hybridge.export.checkpoint.gguf.file import GgufTensor
from hybridge.export.checkpoint.gguf.selection import selected
from hybridge.export.layers.rounded_weight import RoundedWeight
from hybridge.export.pinned.transformers_loading import with_origin

Config = Mapping[str, Any]
"""The entries of a config.json."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight of a checkpoint. of: how the names of the tensors end that it is made of; make: config and tensors to it."""

    name: str
    of: tuple[str, ...]
    make: Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class MadeTensor:
    """A weight that is read and made when it is indexed with ``...``; the numbers that it makes know it as their origin."""

    sources: tuple[GgufTensor, ...]
    config: Config
    make: Callable[..., Tensor]

    def __getitem__(self, index: EllipsisType, /) -> Tensor:
        made: Tensor = self.make(self.config, *(source.read() for source in self.sources))
        return with_origin(made.contiguous(), self)

    def blocks(self) -> RoundedWeight | None:
        """Return the same with the bits that the file has; None where it does not consist of rows of the file."""
        return selected(partial(self.make, self.config), self.sources)

    def without_kernels(self) -> list[str]:
        """Return the types of its sources that there are no kernels for."""
        return sorted({source.kind_name for source in self.sources if not source.has_kernels})


def same(names: Mapping[str, str], make: Callable[..., Tensor] | None = None) -> tuple[Weight, ...]:
    """Return the weights and biases that a tensor each is, by the tensor's name and their own."""
    return tuple(
        Weight(name=f"{own}.{part}", of=(f"{name}.{part}",), make=make or (lambda config, tensor: tensor))
        for name, own in names.items()
        for part in ("weight", "bias")
    )


def one(name: str, of: str, make: Callable[..., Tensor]) -> Weight:
    """Return a weight that is made of one tensor."""
    return Weight(name=name, of=(of,), make=make)


def made(
    weights: tuple[Weight, ...], tensors: Mapping[str, GgufTensor], config: Config, *, block: str = ""
) -> Iterator[tuple[str, Unread, tuple[str, ...]]]:
    """Yield name, tensor and the names of its sources of each weight whose tensors are all there, behind ``block``."""
    for weight in weights:
        sources = tuple(f"{block}{end}" for end in weight.of)
        if all(source in tensors for source in sources):
            found = MadeTensor(sources=tuple(map(tensors.__getitem__, sources)), config=config, make=weight.make)
            yield weight.name, found, sources


# What llama.cpp did, undone


def minus_one(config: Config, norm: Tensor) -> Tensor:
    """Norms that multiply with 1 + weight are stored with the 1 added."""
    return norm - 1


def decay(config: Config, tensor: Tensor) -> Tensor:
    """-exp(A_log) is stored, as a column; A_log [H] of it."""
    return torch.log(-tensor).flatten()


def decay_of_channels(config: Config, tensor: Tensor) -> Tensor:
    """The same for a number for each channel and state [C, N]."""
    return torch.log(-tensor)


def flat(config: Config, tensor: Tensor) -> Tensor:
    """Columns and groups are one dimension."""
    return tensor.flatten()


def conv(config: Config, tensor: Tensor) -> Tensor:
    """A depthwise convolution [C, kernel] to [C, 1, kernel]."""
    return tensor.reshape(-1, 1, tensor.shape[-1])


def as_column(config: Config, tensor: Tensor) -> Tensor:
    """A row [1, K] that is stored as [K]."""
    return tensor.reshape(1, -1)


def unpaired(heads: str) -> Callable[[Config, Tensor], Tensor]:
    """Rows of queries or keys in pairs that are rotated together, back to halves. heads: how the config names their number."""

    def make(config: Config, tensor: Tensor) -> Tensor:
        halves: Tensor = tensor.unflatten(0, (config[heads], -1, 2)).transpose(1, 2).reshape(tensor.shape)
        return halves

    return make


def beside(config: Config, *parts: Tensor) -> Tensor:
    """Rows of several tensors, one below the other; of each expert [E, N, K] where they are stacked."""
    return torch.cat(parts, dim=-2)
