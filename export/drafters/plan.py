"""Choose the drafter of an export, and check that it fits the target before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import UnsupportedModelError, UsageError
from hybridge.cache.families import text_config
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.drafters.draft_vocabulary import DraftVocabulary
from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.folder_plans import KINDS, open_drafter
from hybridge.export.drafters.mtp_drafter import MtpDrafter
from hybridge.export.drafters.mtp_families import mtp_config
from hybridge.export.drafters.mtp_weights import MtpWeights, check_mtp, load_mtp, mtp_state
from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions


class DrafterPlan(Protocol):
    """The drafter of an export, known by its config alone."""

    @property
    def reads_target(self) -> bool:
        """Return whether ``load`` needs the target's embedding and head as they are stored, not packed."""

    @property
    def behind_window(self) -> int:
        """Return how many positions behind a window of the target's it sees: 0 where it reads none of its keys and values."""

    @property
    def description(self) -> DrafterDescription:
        """Return what the manifest says of it."""

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        """Return its state: the layers of the cache behind the target's, its length first."""

    def load(self, checkpoint: Checkpoint) -> nn.Module:
        """Read its weights, in float32, for the target in ``checkpoint``. Raises CheckpointError."""

    def build(self, weights: Any, cache: HybridCache) -> ArtifactDrafter:
        """Return it over ``cache``, which ends with its layers, and the weights of ``load``."""


@dataclass(frozen=True)
class MtpPlan:
    """The drafter of the layers of multi-token prediction in the target's own checkpoint."""

    config: Any
    draft_len: int
    reads_target: bool = False
    behind_window: int = 0

    @property
    def count(self) -> int:
        """Return how many of the layers propose: one a draft token, as far as there are any."""
        layers: int = mtp_config(self.config).num_hidden_layers
        return min(self.draft_len, layers)

    @property
    def description(self) -> DrafterDescription:
        return DrafterDescription(kind="mtp", taps=(-1,), blocks=(self.draft_len + 1,))

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        layers = mtp_state(mtp_config(self.config), sizes, kernels, self.count)
        if self.draft_len > len(layers) and layers[-1].has_bounded_state:
            raise UsageError(
                f"draft_len is {self.draft_len}, but this {self.config.model_type!r} model has {len(layers)} layers of "
                f"multi-token prediction, none of which can go on with its own guesses; give --draft-len {len(layers)}."
            )
        return [DrafterLengthLayer(sizes, kernels), *layers]

    def load(self, checkpoint: Checkpoint) -> MtpWeights:
        return load_mtp(checkpoint, self.count)

    def build(self, weights: Any, cache: HybridCache) -> ArtifactDrafter:
        return MtpDrafter(weights, cache, len(cache.layers) - 1 - self.count, self.description)


def plan_drafter(
    config: Any,
    options: ExportOptions,
    folder: str | Path | None = None,
    vocabulary: DraftVocabulary | None = None,
) -> tuple[DrafterPlan | None, ExportOptions]:
    """Return the drafter that is asked for, if any, and the options with what it reads among the tapped layers.

    config: the target's, or its text model's; folder: the checkpoint of a drafter, where it is one of its own; vocabulary: the
    tokens that it may propose, all if it is left out.
    Raises UsageError for options that do not go together, CheckpointError for what is no drafter or none of this target,
    UnsupportedModelError for a kind or a family that hybridge knows no drafter of.
    """
    config = text_config(config)
    if folder is not None:
        return _plan_folder(config, options, folder, vocabulary)
    if vocabulary is not None:
        raise UsageError("--draft-vocab is for a drafter's own folder: give --drafter FOLDER, or leave it out.")
    if options.draft_blocks:
        raise UsageError("--draft-block is for a drafter's own folder: give --drafter FOLDER, or --draft-len with --mtp.")
    if not options.mtp:
        return None, options
    check_mtp(config, options)
    return MtpPlan(config, options.draft_len), options


def _plan_folder(
    config: Any, options: ExportOptions, named: str | Path, vocabulary: DraftVocabulary | None
) -> tuple[DrafterPlan, ExportOptions]:
    if options.mtp:
        raise UsageError("--mtp and --drafter are two drafters; an artifact has one. Give one of them.")
    if options.format != "pte":
        raise UsageError("--drafter is for --format pte. Leave it out.")
    folder = open_drafter(named)
    for plan in KINDS:
        if (planned := plan(folder, config, options, vocabulary)) is not None:
            return planned
    kind = folder.config.get("architectures") or folder.config.get("model_type")
    raise UnsupportedModelError(
        f"{folder.place} is no drafter that hybridge knows (its config.json says {kind!r}); it knows DFlash, DFlash 2, DSpark, "
        "EAGLE-3 and Gemma 4's assistants. A smaller model of the same vocabulary is exported by itself, and drafts with "
        "'hybridge run --draft'."
    )
