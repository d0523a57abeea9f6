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
from hybridge.export.checkpoint.loading import Checkpoint, logits_width
from hybridge.export.drafters.block_config import BlockDrafterConfig, read_block_config
from hybridge.export.drafters.block_drafter import BlockDrafter
from hybridge.export.drafters.block_weights import COPIES, BlockWeights, load_block_weights
from hybridge.export.drafters.draft_vocabulary import DraftVocabulary, draft_ids
from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.eagle_config import LONGEST, EagleConfig, read_eagle_config
from hybridge.export.drafters.eagle_drafter import EagleDrafter, EagleWeights, load_eagle
from hybridge.export.drafters.mtp_drafter import MtpDrafter
from hybridge.export.drafters.mtp_families import mtp_config
from hybridge.export.drafters.mtp_weights import MtpWeights, check_mtp, load_mtp, mtp_state
from hybridge.export.source.checkpoint_path import find_checkpoint
from hybridge.export.source.reading import check_files, read_object
from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions

OVER_TARGET = ("gemma4_assistant", "gemma4_unified_assistant")
"""Model types of drafters without keys and values of their own."""


class DrafterPlan(Protocol):
    """The drafter of an export, known by its config alone."""

    @property
    def reads_target(self) -> bool:
        """Return whether ``load`` needs the target's embedding and head as they are stored, not packed."""

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
        taps, blocks, options = _fitted(place, fit, block.block, config, options)
        return BlockPlan(place, block, logits_width(config), taps, blocks, vocabulary), options
    if (eagle := read_eagle_config(path, content)) is not None:
        if vocabulary is not None:
            raise UsageError("--draft-vocab is for drafters that share their target's output layer; EAGLE-3's have their own.")
        layers = config.num_hidden_layers
        reads = eagle.taps or (2, layers // 2, layers - 3)
        fit = Fit(eagle.target_width, None, eagle.vocab_size, reads, 0)
        taps, blocks, options = _fitted(place, fit, LONGEST, config, options)
        return EaglePlan(place, eagle, taps, blocks), options
    if content.get("model_type") in OVER_TARGET:
        raise UnsupportedModelError(
            f"{place} is a {content['model_type']}, which attends over its target's own keys and values: hybridge has no such "
            "drafter. Export the model without --drafter; 'hybridge run' then drafts by prompt lookup."
        )
    kind = content.get("architectures") or content.get("model_type")
    raise UnsupportedModelError(
        f"{place} is no drafter that hybridge knows (its config.json says {kind!r}); it knows DFlash, DFlash 2, DSpark and "
        "EAGLE-3. A smaller model of the same vocabulary is exported by itself, and drafts with 'hybridge run --draft'."
    )


@dataclass(frozen=True)
class Fit:
    """What a drafter's config says of its target; none where it says nothing. taps as transformers counts hidden states."""

    hidden_size: int
    layers: int | None
    vocab_size: int | None
    taps: tuple[int, ...]
    mask_token: int


def _open(named: str | Path) -> tuple[Path, Path, dict[str, Any]]:
    """The folder that ``named`` means, its config.json, and what that holds."""
    folder = find_checkpoint(named)
    path = folder / "config.json"
    check_files(folder, [path.name, *(each.name for each in folder.glob("*.safetensors"))])
    return folder, path, read_object(path)


def _fitted(
    folder: Path, fit: Fit, longest: int, target: Any, options: ExportOptions
) -> tuple[tuple[int, ...], tuple[int, ...], ExportOptions]:
    """The drafter's taps and blocks as the options have them, and the options with both; see ``plan_drafter``."""
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
