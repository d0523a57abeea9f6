"""The two interfaces of a drafter inside an artifact: its plan, from its config alone, and the module that proposes tokens.

A kind of drafter is a ``DrafterPlan`` and an ``ArtifactDrafter``; ``plan.py`` lists the kinds, and
docs/adding-to-the-export.md walks through one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from hybridge.cache.block import Block, CacheSizes
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.drafter import DrafterLengthLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import UsageError
from hybridge.export.drafters.vocabulary import DraftRows, DraftVocabulary
from hybridge.export.model.families.family import Unregistered
from hybridge.export.source.checkpoint import LoadedModel, logits_width
from hybridge.export.weights import PanelLinear, constant
from hybridge.runtime.artifact.drafter import DrafterDescription, DrafterKind
from hybridge.runtime.artifact.options import ExportOptions

Answers = tuple[Tensor, ...]
"""Draft tokens int64 [1, N], -1 if refused, and their probabilities float32 [1, N]."""

VocabularyName = str | int | Path
"""The tokens that a drafter may propose, as ``DraftVocabulary.named`` takes them."""


class DrafterPlan(Protocol):
    """The drafter of an export, known by its config alone."""

    @property
    def reads_target(self) -> bool:
        """Return whether ``load`` needs the target's embedding and head as they are stored, not packed."""

    @property
    def before_window(self) -> int:
        """Return the number of positions before a window of the target that it attends to; 0 if it reads none of its keys."""

    @property
    def vocabulary(self) -> DraftVocabulary | None:
        """Return the tokens that it may propose, None for all."""

    @property
    def otherwise(self) -> ExportOptions | None:
        """Return the options of the export without it, if it may be left out; None for a drafter that was asked for."""

    @property
    def description(self) -> DrafterDescription:
        """Return the manifest's entry, without its vocabulary."""

    def layers(self, sizes: CacheSizes, kernels: Kernels) -> list[CacheLayer]:
        """Return its state: the layers of the cache after the target's, its length first."""

    def load(self, checkpoint: LoadedModel) -> nn.Module:
        """Read its weights, in float32, for the target in ``checkpoint``. Raises CheckpointError."""

    def build(self, weights: Any, cache: HybridCache, head: Any, rows: DraftRows | None = None) -> ArtifactDrafter:
        """Return the drafter of the weights that ``load`` returned, over ``cache``, which ends with its layers.

        head: the target's output layer, as the artifact has it; rows: the tokens that were chosen for ``vocabulary``.
        """


@dataclass(frozen=True)
class TargetModel:
    """The parts of its target that a drafter shares. Logits and head are those of a draft vocabulary, if the drafter has one.

    Args:
        decoder: the text model.
        logits: the target's own, of hidden states after its final norm.
        embed: rows of its embedding for tokens [1, T], without the factor that some families multiply them by.
        head: its output layer alone.
    """

    decoder: Any
    logits: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor], Tensor]
    head: Any


class ArtifactDrafter(nn.Module):
    """A drafter over ``cache``. place: of its length among the cache's layers; width: of the hidden states that it reads.

    head, ids: the output layer of a draft vocabulary and its tokens int64 [C]; None for the target's own.
    """

    width: int

    def __init__(self, cache: HybridCache, place: int, description: DrafterDescription) -> None:
        super().__init__()
        self._cache, self.place, self.description = Unregistered(cache), place, description
        self.head: nn.Module | None = None
        self.ids: nn.Parameter | None = None

    def restricted_to(self, rows: DraftRows | None, head: Any) -> Self:
        """Propose the tokens of ``rows`` alone, by those rows of the target's ``head``."""
        if rows is not None:
            self.head, self.ids = outputs_of(head, rows), constant(torch.from_numpy(rows.ids))
            self.description = replace(self.description, vocabulary=rows.description)
        return self

    def choose(self, rows: DraftRows) -> None:
        """Propose the tokens of ``rows`` instead of as many others.

        In place: the constants of a program that was lowered are these tensors.
        """
        assert self.ids is not None
        self.ids.copy_(torch.from_numpy(rows.ids))
        for module in self.modules():
            if isinstance(module, PanelLinear):
                module.panels.copy_(torch.from_numpy(rows.panels))
        self.description = replace(self.description, vocabulary=rows.description)

    @property
    def cache(self) -> HybridCache:
        """Return the cache, which is no submodule."""
        return self._cache.cache

    @property
    def length(self) -> DrafterLengthLayer:
        """Return the layer that counts the positions read."""
        return self.cache.part(self.place, DrafterLengthLayer)

    def draws(self, draft_len: int) -> tuple[Tensor, ...]:
        """Return example inputs of what decides the draws of ``draft_len`` tokens."""
        return torch.zeros(1, draft_len, dtype=torch.long), torch.zeros(1)

    def read(self, target: TargetModel, hidden: Tensor, tokens: Tensor, count: Tensor) -> Tensor:
        """Read the first ``count`` pairs of hidden [1, T, F] and the tokens [1, T] after each.

        Returns the length int64 [1] afterwards, -1 if they do not fit.
        """
        raise NotImplementedError

    def draft(
        self, target: TargetModel, draft_len: int, hidden: Tensor, tokens: Tensor, count: Tensor, *draws: Tensor
    ) -> Answers:
        """Read pairs likewise, and propose ``draft_len`` tokens after the last one."""
        raise NotImplementedError

    def close(self, block: Block) -> Tensor:
        """Count a block that was read. Returns the length int64 [1], -1 if it was refused."""
        if self.cache.sizes.snapshot_slots:
            self.cache.forget_slots(self.length.overwritten_slots(block))
        length = self.length.close(block)
        self.cache.count(block.count > 0)
        return length


def outputs_of(head: Any, rows: DraftRows) -> nn.Module:
    """Return a layer with the outputs of the target's output layer, float, quantized or packed, for these tokens alone."""
    some, ids = getattr(head, "some_outputs", None), torch.from_numpy(rows.ids)
    if some is not None:
        layer: nn.Module = some(ids)
        return layer
    with torch.device("meta"):
        part = nn.Linear(head.in_features, len(ids), bias=head.bias is not None)
    part.weight = constant(head.weight.detach()[ids].float())
    if head.bias is not None:
        part.bias = constant(head.bias.detach()[ids].float())
    return part


# Fit a drafter that is a checkpoint of its own to its target


@dataclass(frozen=True)
class CheckpointPlan:
    """The part that plans of drafters with a checkpoint of their own share. taps, blocks: as in ``DrafterDescription``."""

    folder: Path
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    kind: DrafterKind
    vocabulary: DraftVocabulary | None
    otherwise: ClassVar[ExportOptions | None] = None
    reads_target: ClassVar[bool] = True
    before_window: ClassVar[int] = 0

    @property
    def description(self) -> DrafterDescription:
        """Return the manifest's entry."""
        return DrafterDescription(kind=self.kind, taps=self.taps, blocks=self.blocks, samples=True)


CHAIN = 16
"""Longest block of a drafter that feeds its own output back: each step makes its proposals worse."""


@dataclass(frozen=True)
class TargetNeeds:
    """A drafter's requirements for its target; None if its config does not say. taps: as transformers counts hidden states."""

    hidden_size: int
    vocab_size: int | None
    taps: tuple[int, ...]
    layers: int | None = None
    mask_token: int = 0


def fitted(
    folder: Path, needs: TargetNeeds, target: Any, options: ExportOptions, longest: int = CHAIN
) -> tuple[tuple[int, ...], tuple[int, ...], ExportOptions]:
    """Return the drafter's taps and the lengths of its blocks as the options name them, and the options with both.

    longest: tokens of the longest block that the drafter is made for.

    Raises UsageError if the drafter in ``folder`` is another target's, naming what differs, or for other lengths of blocks.
    """
    _check_target(folder, needs, target)
    layers = target.num_hidden_layers
    given = {index % (layers + 1): index for index in options.tap_layers}
    missing = tuple(tap for tap in needs.taps if tap not in given)
    blocks = _blocks(longest, options)
    options = replace(options, tap_layers=(*options.tap_layers, *missing), draft_blocks=blocks)
    return tuple(given.get(tap, tap) for tap in needs.taps), blocks, options


def _check_target(folder: Path, needs: TargetNeeds, target: Any) -> None:
    layers, vocab = target.num_hidden_layers, logits_width(target)
    for what, wanted, own in (
        ("hidden size", needs.hidden_size, target.hidden_size),
        ("number of layers", needs.layers, layers),
        ("vocabulary", needs.vocab_size, target.vocab_size if needs.vocab_size != vocab else vocab),
    ):
        if wanted is not None and wanted != own:
            raise UsageError(
                f"the drafter in {folder} is for another target: its target's {what} is {wanted}, and this model's is {own}. "
                "Give the drafter that was trained for this very model."
            )
    if far := [tap for tap in needs.taps if not 0 <= tap <= layers]:
        raise UsageError(
            f"the drafter in {folder} reads the hidden states after {far[0]} layers, and this model has {layers} layers."
        )
    if needs.mask_token >= target.vocab_size:
        raise UsageError(
            f"the drafter in {folder} has the mask token {needs.mask_token}, and this model {target.vocab_size} tokens."
        )


def _blocks(longest: int, options: ExportOptions) -> tuple[int, ...]:
    """Return the lengths of the blocks: those of the options, else ``longest`` as far as a verify takes it."""
    blocks = options.draft_blocks or (min(longest, options.verify_len),)
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
    return blocks


def refuse_vocabulary(vocabulary: VocabularyName | None, others: str) -> None:
    """Raise UsageError if a draft vocabulary is asked for with a drafter that has its own output layer."""
    if vocabulary is not None:
        raise UsageError(f"--draft-vocab is for drafters that share their target's output layer; {others} have their own.")
