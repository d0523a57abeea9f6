"""Read a drafter's own checkpoint: fields of its config.json, each checked as it is read, and its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.pinned.transformers import origin_of, with_origin
from hybridge.export.source.files import check_files, read_object
from hybridge.export.source.locate import find_checkpoint
from hybridge.export.source.quantization_methods import quantization_of
from hybridge.export.source.weight_files import stored_tensors, tensor_names

MOST = 1 << 24
MOST_LISTED = 1024
MOST_LAYERS = 64
"""Most decoder layers of a drafter; published ones have one to eight."""


@dataclass(frozen=True)
class DrafterFolder:
    """A folder that should hold a drafter. place: as the user's name was found; path: its config.json; config: its content."""

    place: Path
    path: Path
    config: dict[str, Any]


def open_drafter(named: str | Path) -> DrafterFolder:
    """Find the drafter's folder that ``named`` means, and read its config.json. Raises CheckpointError."""
    folder = find_checkpoint(named)
    path = folder / "config.json"
    check_files(folder, [path.name, *(each.name for each in folder.glob("*.safetensors"))])
    return DrafterFolder(folder, path, read_object(path))


class ConfigFields:
    """The fields of the config.json in ``path``. Each method returns a field, or raises CheckpointError with what is expected.

    values: the fields without those that are null, which count as left out.
    """

    def __init__(self, path: Path, given: Mapping[str, Any]) -> None:
        self.path, self.given = path, given
        self.values = {name: value for name, value in given.items() if value is not None}

    def count(self, name: str, default: int | None = None, *, lowest: int = 1, most: int = MOST) -> int:
        """Return a whole number of ``lowest`` to ``most``."""
        value = self.values.get(name, default)
        if type(value) is not int or not lowest <= value <= most:
            raise self.wrong(name, f"a whole number of {lowest} to {most}")
        return value

    def counts(self, name: str) -> list[int]:
        """Return a list of one or more whole numbers from 0 on."""
        values = self.values.get(name)
        if not isinstance(values, list) or not 1 <= len(values) <= MOST_LISTED:
            raise self.wrong(name, "a list of whole numbers")
        if not all(type(each) is int and 0 <= each < MOST for each in values):
            raise self.wrong(name, "a list of whole numbers")
        return list(values)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)

    def truth(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of names, empty if it is left out."""
        values = self.values.get(name, [])
        if not isinstance(values, list) or len(values) > MOST_LISTED or not all(isinstance(each, str) for each in values):
            raise self.wrong(name, "a list of names")
        return list(values)

    def rope(self) -> Mapping[str, Any]:
        """Return the rotary embedding as transformers' ``rope_parameters``, from these or from the two older fields."""
        given = self.values.get("rope_parameters") or self.values.get("rope_scaling") or {}
        if not isinstance(given, Mapping):
            raise self.wrong("rope_parameters", "an object")
        return {"rope_type": given.get("type", "default"), "rope_theta": self.number("rope_theta", 10_000.0), **given}

    def refuse_others(self, known: Mapping[str, Collection[Any]], kind: str) -> None:
        """Raise UnsupportedModelError if a field of ``known`` has another value than the listed ones. kind: for the message."""
        for name, values in known.items():
            if name in self.values and self.values[name] not in values:
                raise UnsupportedModelError(
                    f"{self.path} asks for {name} {self.values[name]!r}, which hybridge knows no {kind} with."
                )

    def wrong(self, name: str, wanted: str) -> CheckpointError:
        """Return the error that the field ``name`` is not what it should be."""
        shown = repr(self.given[name]) if name in self.given else "left out"
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        return CheckpointError(
            f"{self.path}: {name} is {shown}, but should be {wanted}. Take the config.json that came with it."
        )


def read_tensors(folder: Path, rename: Callable[[str], str | None]) -> dict[str, Tensor]:
    """Read the tensors of all safetensors in ``folder`` as float32, dequantized if its config.json names a quantization.

    Args:
        folder: with *.safetensors and config.json.
        rename: returns the new name of a tensor, None to skip it.

    Raises:
        CheckpointError: a file cannot be read, a weight lacks its scales, or two tensors get one name.
        UnsupportedModelError: hybridge does not read the quantization.
    """
    files = sorted(folder.glob("*.safetensors"))
    found: set[str] = set()
    for path in files:
        names = [new for name in tensor_names(path) if (new := rename(name)) is not None]
        if len(names) > len({*names} - found):
            raise CheckpointError(f"{path} has weights that are there already; are its files of one checkpoint?")
        found |= {*names}
    quantization = quantization_of(folder, read_object(folder / "config.json"))
    with stored_tensors(folder, files) as stored:
        tensors = stored.dequantized(quantization) if quantization else stored.tensors
        return {new: each[...].float() for name, each in tensors.items() if (new := rename(name)) is not None}


def read_weights(folder: Path, rename: Callable[[str], str | None]) -> dict[str, Tensor]:
    """Do what ``read_tensors`` does for a drafter's own folder. Raises CheckpointError if there are no tensors, too."""
    found = read_tensors(folder, rename)
    if not found:
        raise CheckpointError(f"{folder} has no *.safetensors with a drafter's weights; get the checkpoint again.")
    return found


WHOLE = "is it whole, and are its config.json and its weights of one drafter?"


def fill(
    module: nn.Module, weights: Mapping[str, Tensor], folder: Path, *, advice: str = WHOLE, shown: Callable[[str], str] = str
) -> None:
    """Give ``module``, whose parameters are on the meta device, its weights.

    Raises CheckpointError if weights are missing, unknown, misshapen or not finite, by the names that ``shown`` returns.
    """
    wanted = {name: tuple(each.shape) for name, each in module.state_dict().items()}
    for what, names in (("lacks", wanted.keys() - weights.keys()), ("has the unknown", weights.keys() - wanted.keys())):
        if names:
            raise CheckpointError(f"{folder} {what} {min(map(shown, names))}; {advice}")
    for name, each in weights.items():
        if tuple(each.shape) != wanted[name]:
            raise CheckpointError(
                f"{shown(name)} in {folder} has shape {list(each.shape)}, but should have {list(wanted[name])}."
            )
        if not bool(each.isfinite().all()):
            raise CheckpointError(f"{shown(name)} in {folder} is not finite (NaN or infinity); the weights are damaged.")
    module.load_state_dict(weights, assign=True)
    for name, parameter in module.named_parameters():
        with_origin(parameter, origin_of(weights[name]))
    module.eval().requires_grad_(False)
