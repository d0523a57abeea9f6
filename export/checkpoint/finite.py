"""Whether all weights are numbers: asked of a model that has been read, or of each weight before it is worked on."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.export.pinned.transformers_loading import Reader, weight_of

CHUNK = 1 << 20
"""Elements that are looked at at once: what is found of each takes memory."""


class CheckedReader:
    """Tells another reader of weights that are finite. broken: the names of the others."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.broken: list[str] = []

    def keeps(self, model: PreTrainedModel, name: str) -> bool:
        """Ask the other."""
        return self.reader.keeps(model, name)

    def loaded(self, model: PreTrainedModel, name: str) -> None:
        """Tell the other, unless the weight is broken, or did not fit and is not there."""
        weight = weight_of(model, name)
        if weight.is_meta:
            return
        if is_finite(weight):
            self.reader.loaded(model, name)
        else:
            self.broken.append(name)


def broken_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights that hold NaN or infinity."""
    return [name for name, weight in model.named_parameters() if not is_finite(weight)]


def is_finite(weight: Tensor) -> bool:
    """Return whether all numbers of a weight are finite."""
    return all(bool(part.isfinite().all()) for part in weight.detach().flatten().split(CHUNK))
