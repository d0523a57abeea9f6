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
from hybridge.cache.layers.drafter import DrafterAttentionLayer, DrafterLengthLayer, DrafterSlidingAttentionLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.export.checkpoint.loading import Checkpoint, logits_width
from hybridge.export.drafters.assistant_config import AssistantConfig, read_assistant_config, sources
from hybridge.export.drafters.assistant_drafter import AssistantDrafter
from hybridge.export.drafters.assistant_weights import AssistantWeights, load_assistant
from hybridge.export.drafters.block_config import BlockDrafterConfig, read_block_config
from hybridge.export.drafters.block_drafter import BlockDrafter
from hybridge.export.drafters.block_weights import COPIES, BlockWeights, load_block_weights
from hybridge.export.drafters.draft_vocabulary import DraftVocabulary, draft_ids
from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.eagle_config import EagleConfig, read_eagle_config
from hybridge.export.drafters.eagle_drafter import EagleDrafter, EagleWeights, load_eagle
from hybridge.export.drafters.fit import Fit, fitted
from hybridge.export.drafters.mtp_drafter import MtpDrafter
from hybridge.export.drafters.mtp_families import mtp_config
from hybridge.export.drafters.mtp_weights import MtpWeights, check_mtp, load_mtp, mtp_state
from hybridge.export.source.checkpoint_path import find_checkpoint
from hybridge.export.source.reading import check_files, read_object
from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions

LONGEST = 16
"""Tokens of a chain's longest block: it may go on for ever, but guesses become worse with each step."""


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


@dataclass(frozen=True)
class BlockPlan:
    """The block drafter in ``folder``; taps: what it reads, as ``ExportOptions.tap_layers`` has them; blocks: see there."""

    folder: Path
    config: BlockDrafterConfig
    vocab: int
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    vocabulary: DraftVocabulary | None = None
    reads_target: bool = True
    behind_window: int = 0

    @property
    def description(self) -> DrafterDescription:
        return DrafterDescription(kind=self.config.kind, taps=self.taps, blocks=self.blocks, samples=True)

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        heads, width = self.config.kv_heads, self.config.head_dim
        found: list[CacheLayer] = [DrafterLengthLayer(sizes, kernels)]
        for window in self.config.windows:
            if window is None or window >= sizes.rows:  # which no row is ever outside of
                found.append(DrafterAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=width))
            else:
                layer = DrafterSlidingAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=width, window=window)
                found.append(layer)
        return found

    def load(self, checkpoint: Checkpoint) -> BlockWeights:
        model = checkpoint.model
        own = (model.get_input_embeddings(), model.get_output_embeddings())
        copies = dict(zip(COPIES, (each.weight for each in own), strict=True))
        weights = load_block_weights(self.folder, self.config, self.vocab, copies)
        if self.vocabulary is not None:
            weights.shorten(draft_ids(checkpoint, self.vocabulary), own[1])
        return weights

    def build(self, weights: Any, cache: HybridCache) -> ArtifactDrafter:
        return BlockDrafter(weights, cache, len(cache.layers) - 1 - len(self.config.windows), self.description)


@dataclass(frozen=True)
class EaglePlan:
    """The EAGLE-3 drafter in ``folder``; taps and blocks as in ``BlockPlan``."""

    folder: Path
    config: EagleConfig
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    reads_target: bool = True
    behind_window: int = 0

    @property
    def description(self) -> DrafterDescription:
        return DrafterDescription(kind="eagle3", taps=self.taps, blocks=self.blocks, samples=True)

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        heads, width = self.config.kv_heads, self.config.head_dim
        return [DrafterLengthLayer(sizes, kernels), DrafterAttentionLayer(sizes, kernels, kv_heads=heads, head_dim=width)]

    def load(self, checkpoint: Checkpoint) -> EagleWeights:
        return load_eagle(self.folder, self.config, len(self.taps), checkpoint.model.get_input_embeddings().weight)

    def build(self, weights: Any, cache: HybridCache) -> ArtifactDrafter:
        return EagleDrafter(weights, cache, len(cache.layers) - 2, self.description)


@dataclass(frozen=True)
class AssistantPlan:
    """The assistant of a Gemma 4 in ``folder``; sources: what its layers read of the target; the others as in ``BlockPlan``."""

    folder: Path
    config: AssistantConfig
    sources: tuple[int, ...]
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    reads_target: bool = False
    behind_window: int = 1

    @property
    def description(self) -> DrafterDescription:
        return DrafterDescription(kind="gemma4_assistant", taps=self.taps, blocks=self.blocks, samples=True)

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        return [DrafterLengthLayer(sizes, kernels)]

    def load(self, checkpoint: Checkpoint) -> AssistantWeights:
        return load_assistant(self.folder, self.config)

    def build(self, weights: Any, cache: HybridCache) -> ArtifactDrafter:
        return AssistantDrafter(weights, self.sources, cache, len(cache.layers) - 1, self.description)


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
    if folder is None:
        if vocabulary is not None:
            raise UsageError("--draft-vocab is for a drafter's own folder: give --drafter FOLDER, or leave it out.")
        if options.draft_blocks:
            raise UsageError("--draft-block is for a drafter's own folder: give --drafter FOLDER, or --draft-len with --mtp.")
        if not options.mtp:
            return None, options
        check_mtp(config, options)
        return MtpPlan(config, options.draft_len), options
    if options.mtp:
        raise UsageError("--mtp and --drafter are two drafters; an artifact has one. Give one of them.")
    if options.format != "pte":
        raise UsageError("--drafter is for --format pte. Leave it out.")
    place, path, content = _open(folder)
    if (block := read_block_config(path, content)) is not None:
        fit = Fit(block.hidden_size, block.target_layers, block.vocab_size, block.taps, block.mask_token)
        taps, blocks, options = fitted(place, fit, block.block, config, options)
        return BlockPlan(place, block, logits_width(config), taps, blocks, vocabulary), options
    if (eagle := read_eagle_config(path, content)) is not None:
        if vocabulary is not None:
            raise UsageError("--draft-vocab is for drafters that share their target's output layer; EAGLE-3's have their own.")
        layers = config.num_hidden_layers
        reads = eagle.taps or (2, layers // 2, layers - 3)
        fit = Fit(eagle.target_width, None, eagle.vocab_size, reads, 0)
        taps, blocks, options = fitted(place, fit, LONGEST, config, options)
        return EaglePlan(place, eagle, taps, blocks), options
    if (assistant := read_assistant_config(path, content, config)) is not None:
        if vocabulary is not None:
            raise UsageError("--draft-vocab is for drafters that share their target's output layer; assistants have their own.")
        fit = Fit(assistant.target_width, None, assistant.vocab_size, (config.num_hidden_layers,), 0)
        taps, blocks, options = fitted(place, fit, LONGEST, config, options)
        return AssistantPlan(place, assistant, sources(place, assistant, config), taps, blocks), options
    kind = content.get("architectures") or content.get("model_type")
    raise UnsupportedModelError(
        f"{place} is no drafter that hybridge knows (its config.json says {kind!r}); it knows DFlash, DFlash 2, DSpark, "
        "EAGLE-3 and Gemma 4's assistants. A smaller model of the same vocabulary is exported by itself, and drafts with "
        "'hybridge run --draft'."
    )


def _open(named: str | Path) -> tuple[Path, Path, dict[str, Any]]:
    """The folder that ``named`` means, its config.json, and what that holds."""
    folder = find_checkpoint(named)
    path = folder / "config.json"
    check_files(folder, [path.name, *(each.name for each in folder.glob("*.safetensors"))])
    return folder, path, read_object(path)
