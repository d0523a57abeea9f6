"""Read a drafter's tensors, and put them into its modules once every one is known to be what it should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import safetensors
from torch import Tensor, nn

from hybridge.cache.errors import CheckpointError

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
