"""Fields of a drafter's config.json, each checked as it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch
from torch import Tensor, nn

from hybridge.cache.errors import CheckpointError
from hybridge.export.layers import constant
from hybridge.export.pinned.transformers import rope_frequencies
from hybridge.export.source.files import first_line
from hybridge.runtime.artifacts.options import LIMITS

MOST = 1 << 24
MOST_LISTED = 1024
MOST_LAYERS = 64
"""Decoder layers of a drafter: published ones have one to eight."""
LONGEST_BLOCK = LIMITS["verify_len"][1]
"""Draft tokens and the one before them that any program verifies at once."""


class Fields:
    """The fields of the config.json in ``path`` by name. Each reader raises CheckpointError, saying what should be there."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values

    def get(self, name: str) -> Any:
        """Return a field as it is, None where it is left out."""
        return self.values.get(name)

    def count(self, name: str, default: int | None = None, *, lowest: int = 1, most: int = MOST) -> int:
        """Return a whole number of ``lowest`` to ``most``."""
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) is not int or not lowest <= value <= most:
            raise self.wrong(name, f"a whole number of {lowest} to {most}")
        return value

    def counts(self, name: str) -> list[int]:
        """Return a list of whole numbers from 0 on, at least one."""
        values = self.values.get(name)
        if not isinstance(values, list) or not 1 <= len(values) <= MOST_LISTED:
            raise self.wrong(name, "a list of whole numbers")
        if not all(type(each) is int and 0 <= each < MOST for each in values):
            raise self.wrong(name, "a list of whole numbers")
        return list(values)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)

    def truth(self, name: str, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def names(self, name: str) -> list[str]:
        """Return a list of names; an empty one where it is left out."""
        values = self.values.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or len(values) > MOST_LISTED or not all(isinstance(each, str) for each in values):
            raise self.wrong(name, "a list of names")
        return list(values)

    def rope(self) -> Mapping[str, Any]:
        """Return the rotary embedding as transformers' ``rope_parameters``, from these or from the two older fields."""
        given = self.get("rope_parameters") or self.get("rope_scaling") or {}
        if not isinstance(given, Mapping):
            raise self.wrong("rope_parameters", "an object")
        return {"rope_type": given.get("type", "default"), "rope_theta": self.number("rope_theta", 10_000.0), **given}

    def wrong(self, name: str, wanted: str) -> CheckpointError:
        """Return the error that the field ``name`` is not what it should be."""
        shown = repr(self.values.get(name)) if name in self.values else "left out"
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        return CheckpointError(
            f"{self.path}: {name} is {shown}, but should be {wanted}. Take the config.json that came with it."
        )


# Read a drafter's tensors, and put them into its modules once every one is known to be what it should be.


Renamed = Callable[[str], str | None]


def read_tensors(folder: Path, rename: Renamed) -> dict[str, Tensor]:
    """The float32 tensors of all safetensors in ``folder``, by the names that ``rename`` gives them; without those it gives
    none.

    Raises CheckpointError for what cannot be read, and where two tensors get one name.
    """
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                names = {name: new for name in file.keys() if (new := rename(name)) is not None}  # noqa: SIM118  not a dict
                if len(names.keys()) > len({*names.values()} - found.keys()):
                    raise CheckpointError(f"{path} has weights that are there already; are its files of one checkpoint?")
                found |= {new: file.get_tensor(name).float() for name, new in names.items()}
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); the checkpoint is damaged.") from None
    return found


def fill(
    module: nn.Module, weights: Mapping[str, Tensor], folder: Path, *, advice: str, shown: Callable[[str], str] = str
) -> None:
    """Give ``module``, whose parameters hold nothing yet, its weights, which nothing may be missing of and nothing left over.

    Raises CheckpointError where weights are missing, unknown, misshapen or not finite, by the names that ``shown`` gives.
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
    module.eval().requires_grad_(False)


# Experts that a checkpoint stores one by one, stacked as transformers' modules have them.


EXPERT = re.compile(r"(?P<prefix>.*\.mlp\.experts\.)(?P<expert>\d{1,4})\.(gate|up|down)_proj\.weight")
"""What checkpoints call the weights of one expert."""


def fused_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the experts' own stacked as transformers has them: gate beside up [E, 2 I, H], down [E, H, I].

    Those that do not belong together stay as they are.
    """
    found = [match for name in weights if (match := EXPERT.fullmatch(name))]
    for prefix in sorted({match["prefix"] for match in found}):
        count = 1 + max(int(match["expert"]) for match in found if match["prefix"] == prefix)
        names = {part: [f"{prefix}{e}.{part}_proj.weight" for e in range(count)] for part in ("gate", "up", "down")}
        own = {part: [weights.get(name) for name in each] for part, each in names.items()}
        gate, up, down = (_stacked(each) for each in own.values())
        if gate is not None and up is not None and down is not None and gate.shape == up.shape:
            weights = {name: each for name, each in weights.items() if not name.startswith(prefix)}
            weights |= {f"{prefix}gate_up_proj": torch.cat([gate, up], dim=1), f"{prefix}down_proj": down}
    return weights


def _stacked(weights: list[Tensor | None]) -> Tensor | None:
    """[E, ...] of weights that are all there and alike, else None."""
    there = [each for each in weights if each is not None]
    alike = len(there) == len(weights) and len({each.shape for each in there}) == 1
    return torch.stack(there) if alike else None


# The rotary embedding of a drafter: frequencies by transformers' own rules, cos and sin as our modules take them.


Angles = tuple[Tensor, Tensor]
"""cos and sin [1, T, 1, D]."""


class AttentionSizes(Protocol):
    """The sizes of attention."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class RopeSizes(AttentionSizes, Protocol):
    """What the rotary embedding follows from."""

    @property
    def rope(self) -> Mapping[str, Any]:
        """Return it as transformers' ``rope_parameters``."""


class Rope(nn.Module):
    """frequencies [D / 2], and the factor of cos and sin."""

    def __init__(self, frequencies: Tensor, factor: float) -> None:
        super().__init__()
        self.frequencies, self.factor = constant(frequencies.float()), factor

    def angles(self, positions: Tensor) -> Angles:
        """cos and sin at positions int64 [T]."""
        turns = positions[:, None].float() * self.frequencies
        turns = torch.cat([turns, turns], dim=-1)[None, :, None]
        return turns.cos() * self.factor, turns.sin() * self.factor


def load_rope(folder: Path, sizes: RopeSizes) -> Rope:
    """Make the rotary embedding of the drafter in ``folder``. Raises CheckpointError where its config asks for none that is."""
    known = {"head_dim": sizes.head_dim, "hidden_size": sizes.hidden_size, "num_attention_heads": sizes.heads}
    try:
        return Rope(*rope_frequencies({**known, "num_key_value_heads": sizes.kv_heads, "rope_parameters": dict(sizes.rope)}))
    except Exception as error:  # whatever transformers' checks of a config run into
        raise CheckpointError(f"{folder / 'config.json'}: its rotary embedding cannot be made ({first_line(error)}).") from None


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn x [1, T, heads, D] by its positions, halves side by side."""
    cos, sin = angles
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin
