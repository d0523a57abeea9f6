"""Choose the drafter of an export, and check that it fits the target before any weight is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from hybridge.export.drafters.assistant import (
    AssistantConfig,
    AssistantDrafter,
    AssistantWeights,
    load_assistant,
    read_assistant_config,
    sources,
)
from hybridge.export.drafters.block_config import BlockDrafterConfig, read_block_config
from hybridge.export.drafters.block_drafter import COPIES, BlockDrafter, BlockWeights, load_block_weights
from hybridge.export.drafters.drafter import ArtifactDrafter, DraftVocabulary, draft_ids
from hybridge.export.drafters.eagle import EagleConfig, EagleDrafter, EagleWeights, load_eagle, read_eagle_config
from hybridge.export.drafters.mtp import MtpDrafter, MtpWeights, check_mtp, load_mtp, mtp_state
from hybridge.export.drafters.mtp_families import mtp_config
from hybridge.export.source.checkpoint import LoadedModel, logits_width
from hybridge.export.source.files import check_files, read_object
from hybridge.export.source.locate import find_checkpoint
from hybridge.runtime.artifacts.options import DrafterDescription, ExportOptions


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

    def load(self, checkpoint: LoadedModel) -> nn.Module:
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

    def load(self, checkpoint: LoadedModel) -> MtpWeights:
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


# The drafters that are checkpoints of their own: which kind a folder holds, and what an export makes of each.


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

    def load(self, checkpoint: LoadedModel) -> BlockWeights:
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

    def load(self, checkpoint: LoadedModel) -> EagleWeights:
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

    def load(self, checkpoint: LoadedModel) -> AssistantWeights:
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


# Check that a drafter fits its target, and what it reads and proposes the options.


@dataclass(frozen=True)
class Fit:
    """What a drafter's config says of its target; none where it says nothing. taps as transformers counts hidden states."""

    hidden_size: int
    layers: int | None
    vocab_size: int | None
    taps: tuple[int, ...]
    mask_token: int


def fitted(
    folder: Path, fit: Fit, longest: int, target: Any, options: ExportOptions
) -> tuple[tuple[int, ...], tuple[int, ...], ExportOptions]:
    """Return the drafter's taps and blocks as the options have them, and the options with both.

    longest: tokens of the longest block that it is made for. Raises what ``check_fit`` does, and UsageError for other blocks.
    """
    check_fit(folder, fit, target)
    taps, options = _tapped(fit.taps, options, target.num_hidden_layers)
    blocks = _blocks(longest, options)
    return taps, blocks, replace(options, draft_blocks=blocks)


def check_fit(folder: Path, fit: Fit, target: Any) -> None:
    """Raises UsageError where the drafter in ``folder`` is another target's, naming what differs."""
    layers, vocab = target.num_hidden_layers, logits_width(target)
    differing = [
        ("hidden size", fit.hidden_size, target.hidden_size),
        ("number of layers", fit.layers, layers),
        ("vocabulary", fit.vocab_size, target.vocab_size if fit.vocab_size != vocab else vocab),
    ]
    for what, wanted, own in differing:
        if wanted is not None and wanted != own:
            raise UsageError(
                f"the drafter in {folder} is for another target: its target's {what} is {wanted}, and this model's is {own}. "
                "Give the drafter that was trained for this very model."
            )
    if far := [tap for tap in fit.taps if not 0 <= tap <= layers]:
        raise UsageError(
            f"the drafter in {folder} reads the hidden states after {far[0]} layers, and this model has {layers} layers."
        )
    if fit.mask_token >= target.vocab_size:
        raise UsageError(
            f"the drafter in {folder} has the mask token {fit.mask_token}, and this model {target.vocab_size} tokens."
        )


def _tapped(reads: tuple[int, ...], options: ExportOptions, layers: int) -> tuple[tuple[int, ...], ExportOptions]:
    """The drafter's taps as the options name them, and the options with those that are missing."""
    given = {index % (layers + 1): index for index in options.tap_layers}
    missing = tuple(tap for tap in reads if tap not in given)
    return tuple(given.get(tap, tap) for tap in reads), replace(options, tap_layers=(*options.tap_layers, *missing))


def _blocks(longest: int, options: ExportOptions) -> tuple[int, ...]:
    """The lengths of the blocks: those asked for, else the drafter's ``longest``, as far as a verify takes it."""
    blocks: Sequence[int] = options.draft_blocks or (min(longest, options.verify_len),)
    if options.verify_len < 2:
        raise UsageError("a drafter needs verify calls of 2 tokens or more; export with a larger --verify-len.")
    if list(blocks) != sorted(set(blocks)) or blocks[0] < 2:
        raise UsageError(f"--draft-block {','.join(map(str, blocks))} should be different lengths from 2 on, in order.")
    if blocks[-1] > options.verify_len:
        raise UsageError(
            f"--draft-block {blocks[-1]} is longer than a verify takes, {options.verify_len} tokens; "
            f"give --verify-len {blocks[-1]}."
        )
    if blocks[-1] > longest:
        raise UsageError(f"--draft-block {blocks[-1]} is longer than the blocks of {longest} that this drafter is made for.")
    return tuple(blocks)
