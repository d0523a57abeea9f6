"""The drafters that are checkpoints of their own: which kind a folder holds, and what an export makes of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.block import CacheSizes
from hybridge.cache.errors import UsageError
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
from hybridge.export.source.checkpoint_path import find_checkpoint
from hybridge.export.source.reading import check_files, read_object
from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions

LONGEST = 16
"""Tokens of a chain's longest block: it may go on for ever, but guesses become worse with each step."""


@dataclass(frozen=True)
class DrafterFolder:
    """A folder that should hold a drafter, its config.json, and what that says."""

    place: Path
    path: Path
    config: dict[str, Any]


def open_drafter(named: str | Path) -> DrafterFolder:
    """Return the folder that ``named`` means. Raises CheckpointError where it is no checkpoint."""
    folder = find_checkpoint(named)
    path = folder / "config.json"
    check_files(folder, [path.name, *(each.name for each in folder.glob("*.safetensors"))])
    return DrafterFolder(folder, path, read_object(path))


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


def plan_block(
    folder: DrafterFolder, target: Any, options: ExportOptions, vocabulary: DraftVocabulary | None
) -> tuple[BlockPlan, ExportOptions] | None:
    """Return the plan of a block drafter for ``target``'s config, and the options with its taps; None where it is none."""
    config = read_block_config(folder.path, folder.config)
    if config is None:
        return None
    fit = Fit(config.hidden_size, config.target_layers, config.vocab_size, config.taps, config.mask_token)
    taps, blocks, options = fitted(folder.place, fit, config.block, target, options)
    return BlockPlan(folder.place, config, logits_width(target), taps, blocks, vocabulary), options


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


def plan_eagle(
    folder: DrafterFolder, target: Any, options: ExportOptions, vocabulary: DraftVocabulary | None
) -> tuple[EaglePlan, ExportOptions] | None:
    """Do what ``plan_block`` does for EAGLE-3."""
    config = read_eagle_config(folder.path, folder.config)
    if config is None:
        return None
    _no_vocabulary(vocabulary, "EAGLE-3's")
    layers = target.num_hidden_layers
    fit = Fit(config.target_width, None, config.vocab_size, config.taps or (2, layers // 2, layers - 3), 0)
    taps, blocks, options = fitted(folder.place, fit, LONGEST, target, options)
    return EaglePlan(folder.place, config, taps, blocks), options


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


def plan_assistant(
    folder: DrafterFolder, target: Any, options: ExportOptions, vocabulary: DraftVocabulary | None
) -> tuple[AssistantPlan, ExportOptions] | None:
    """Do what ``plan_block`` does for a Gemma 4's assistant."""
    config = read_assistant_config(folder.path, folder.config, target)
    if config is None:
        return None
    _no_vocabulary(vocabulary, "assistants")
    fit = Fit(config.target_width, None, config.vocab_size, (target.num_hidden_layers,), 0)
    taps, blocks, options = fitted(folder.place, fit, LONGEST, target, options)
    return AssistantPlan(folder.place, config, sources(folder.place, config, target), taps, blocks), options


def _no_vocabulary(vocabulary: DraftVocabulary | None, others: str) -> None:
    if vocabulary is not None:
        raise UsageError(f"--draft-vocab is for drafters that share their target's output layer; {others} have their own.")


KINDS = (plan_block, plan_eagle, plan_assistant)
"""The first that knows a folder plans it."""
