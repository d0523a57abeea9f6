"""Multi-token prediction's weights: layers beside the model's own in a checkpoint, which transformers ignores by default."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.cache.families import FAMILIES as CACHES
from hybridge.cache.layers.drafter import DrafterStateLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.drafters.mtp_families import LAYER, MtpFamily, mtp_config, mtp_family
from hybridge.export.drafters.tensors import fill, read_tensors
from hybridge.runtime.artifacts.options import ExportOptions


class MtpLayer(nn.Module):
    """What goes into a decoder layer, of the model's own classes, and a norm behind it where the family has one for each."""

    def __init__(self, config: Any, decoder: Any, index: int) -> None:
        super().__init__()
        norm, layer = type(decoder.norm), type(decoder.layers[0])
        self.enorm, self.hnorm = (norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2))
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block: nn.Module = layer(config, index)
        self.hidden_first = getattr(config, "mtp_hidden_states_first", False)
        # As in ``MtpModel``: where a config says anything of it, there is one norm for all layers, or none.
        if not hasattr(config, "chain_hidden_post_norm"):
            self.norm = norm(config.hidden_size, eps=config.rms_norm_eps)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return what the decoder layer takes, [1, T, H], of embedded tokens and hidden states [1, T, H]."""
        parts = [self.enorm(embedded), self.hnorm(hidden)]
        z: Tensor = self.eh_proj(torch.cat(parts[::-1] if self.hidden_first else parts, dim=-1))
        return z


class MtpWeights(nn.Module):
    """The first ``count`` layers of multi-token prediction. config: that of ``mtp_config``."""

    def __init__(self, config: Any, decoder: Any, count: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(MtpLayer(config, decoder, index) for index in range(count))
        if getattr(config, "chain_hidden_post_norm", False):
            self.chain_norm = type(decoder.norm)(config.hidden_size, eps=config.rms_norm_eps)

    def normed(self, index: int, out: Tensor) -> Tensor:
        """Return the output [1, T, H] of decoder layer ``index`` as the next layer and the target's head take it."""
        norm = getattr(self.layers[index], "norm", None) or getattr(self, "chain_norm", None)
        normed: Tensor = out if norm is None else norm(out)
        return normed


def load_mtp(checkpoint: Checkpoint, count: int | None = None) -> MtpWeights:
    """Read the first ``count`` layers, all if it is left out, beside a loaded checkpoint, in float32.

    Raises what ``mtp_family`` does, UnsupportedModelError for more layers than the family's are known with, and CheckpointError
    where weights are missing, misshapen or not finite, or where there are not as many layers as the config says.
    """
    config = checkpoint.config
    family, wanted = mtp_family(config), mtp_config(config)
    with torch.device("meta"):
        drafter = MtpWeights(wanted, decoder_of(checkpoint.model), min(count or MOST, wanted.num_hidden_layers))
    stored = family.restored(read_tensors(checkpoint.folder, lambda name: family.inside(name, config)))
    _check_layers(checkpoint, family, stored, wanted.num_hidden_layers)
    unused = {name for name in stored if (layer := LAYER.match(name)) and int(layer[1]) >= len(drafter.layers)}
    stored = {name: each for name, each in stored.items() if name not in unused}
    named = {family.stored(name): name for name in drafter.state_dict()}
    shown = {own: family.outside(name, config) for name, own in named.items()}
    fill(
        drafter,
        {named.get(name, f"{UNKNOWN}{name}"): each for name, each in stored.items()},
        checkpoint.folder,
        shown=lambda name: shown.get(name) or family.outside(name.removeprefix(UNKNOWN), config),
        advice="its drafter cannot be exported, leave out --mtp.",
    )
    return drafter


MOST = 1 << 16
UNKNOWN = "?"
"""Before a name that no weight of ours has."""


def _check_layers(checkpoint: Checkpoint, family: MtpFamily, stored: dict[str, Tensor], layers: int) -> None:
    if not stored:
        place = family.outside("layers.0.*" if family.behind else "*", checkpoint.config)
        raise CheckpointError(f"{checkpoint.folder} has no {place} weights to make a drafter of; export it without --mtp.")
    found = {int(layer[1]) for name in stored if (layer := LAYER.match(name))}
    if found == {*range(layers)}:
        return
    more = [name for name in stored if (layer := LAYER.match(name)) and int(layer[1]) >= layers]
    if more and not hasattr(checkpoint.config, "num_mtp_layers"):
        raise UnsupportedModelError(
            f"{family.outside(more[0], checkpoint.config)}: drafters of several layers are not supported for "
            f"{checkpoint.config.model_type!r} models; export without --mtp."
        )
    raise CheckpointError(
        f"{checkpoint.folder} has {len(found)} layers of multi-token prediction, but its config.json says {layers}; "
        "take the config.json and the weights of one checkpoint, or export without --mtp."
    )


def check_mtp(config: Any, options: ExportOptions) -> None:
    """Raises what ``mtp_family`` does, and UsageError for options that no drafter can have."""
    mtp_family(config)
    # Refused draft tokens go behind the last position, where there are rows for one block.
    most = max(options.prefill_chunk, options.verify_len)
    if not 1 <= options.draft_len <= most:
        raise UsageError(f"draft_len is {options.draft_len}, but must lie between 1 and {most} (the longest block of tokens).")
    if -1 not in options.tap_layers:
        raise UsageError(
            f"the mtp drafter reads the last hidden states, but tap_layers are {list(options.tap_layers)}: add -1 to them."
        )


def mtp_state(config: Any, sizes: CacheSizes, kernels: Kernels, count: int) -> list[DrafterStateLayer]:
    """Return the state of the first ``count`` layers of ``mtp_config``'s; all but the last carry what they put out."""
    builders = CACHES[config.model_type].layers

    def layer(index: int) -> DrafterStateLayer:
        build = builders[config.layer_types[index]]
        carried = config.hidden_size if index < count - 1 else 0
        return DrafterStateLayer(sizes, kernels, lambda own: build(config, own, kernels, index), ahead=index, carried=carried)

    return [layer(index) for index in range(count)]
