"""Keep the weights of a GGUF file as they are: the blocks of its tensors become the panels of our kernels, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from torch import Tensor, nn

from hybridge.export.layers.packed_layers import CHUNK, WithoutWeight
from hybridge.export.layers.rounded_weight import Grid, RoundedWeight
from hybridge.export.operators.panels import Factors
from hybridge.export.pinned.transformers_loading import origin_of
from hybridge.export.quantization.quantizable import GROUPS
from hybridge.export.quantization.rounding import round_to_nearest


def keep_blocks(name: str, weight: Tensor, grid: Grid) -> RoundedWeight:
    """Return a weight [N, K] with the bits that its file has; rounded to 8 where that cannot be, with a note that says why.

    The bits are taken only where they stand for the very numbers of ``weight``: an adapter may have changed those.
    """
    origin = origin_of(weight)
    if origin is None:
        return _rounded(name, weight, "no tensors of the file stand for it alone")
    stored: RoundedWeight | None = origin.blocks()
    if stored is None:
        kinds = " and ".join(origin.without_kernels())
        return _rounded(name, weight, f"there are no kernels for {kinds}" if kinds else "its rows lie otherwise in the file")
    if not _stands_for(stored, weight):
        return _rounded(name, weight, "its numbers are no longer those of the file")
    if stored.bits == 8 and bool((stored.quanta == -128).any()):  # which has no positive twin, as products need
        return _exact(weight)
    return stored


def notes(model: nn.Module) -> Iterator[str]:
    """Yield a sentence for each reason for which weights of ``model`` were rounded all the same."""
    names: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, WithoutWeight) and module.note:
            names.setdefault(module.note, []).append(name)
    for note, found in names.items():
        more = f" and {len(found) - 1} other weights" if len(found) > 1 else ""
        yield f"--quantize keep rounds {found[0]}{more} to 8 bits: {note}."


def _stands_for(stored: RoundedWeight, weight: Tensor) -> bool:
    if stored.quanta.shape != weight.shape:
        return False
    step = max(1, CHUNK // weight.shape[1])
    spans = (slice(first, first + step) for first in range(0, len(weight), step))
    return all(stored.mapped(itemgetter(span)).numbers().equal(weight[span].float()) for span in spans)


def _rounded(name: str, weight: Tensor, note: str) -> RoundedWeight:
    group = next((each for each in GROUPS if weight.shape[1] % each == 0), None)
    if group is None:
        return _exact(weight)
    rounded = round_to_nearest(name, weight, Grid(bits=8, group=group, signed_scales=True))
    return RoundedWeight(quanta=rounded.quanta, factors=rounded.factors, bits=8, note=note)


def _exact(weight: Tensor) -> RoundedWeight:
    return RoundedWeight(quanta=weight.detach().float(), factors=Factors(), bits=32)
