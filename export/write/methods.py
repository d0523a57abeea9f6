"""Define the exported methods, each a module over the one ``State``, and build the cache that they share.

They share one holder because buffers are matched by qualified name. Signatures are those of the artifact
(docs/artifact.md). A method refuses by returning -1 or NaN logits and leaves the state as it was; by arithmetic,
because lowering drops assertions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.block import Block, CacheSizes, Seeing
from hybridge.cache.errors import UsageError
from hybridge.cache.families import text_config
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.rope_delta import RopeDeltaLayer, rope_delta_of
from hybridge.cache.operations.kernels import CoreKernels, Kernels
from hybridge.export.drafters.drafter import ArtifactDrafter, DrafterPlan, TargetModel
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.kernel_sets.hybridge import HybridgeKernels
from hybridge.export.kernel_sets.llm import LlmKernels
from hybridge.export.model.adapt import AdaptedModel, check_taps
from hybridge.export.model.vision import VISION, read_processor
from hybridge.export.quantize.bits import table_factor
from hybridge.export.quantize.quantize import check_quantization, quantize_encoder
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.runtime.artifacts.options import ExportOptions, PictureDescription, check_verify_lens, shorter_verify

Outputs = Tensor | tuple[Tensor, ...]


class State(nn.Module):
    """The model and its cache, the one holder that every method wraps."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: HybridCache,
        tap_layers: Sequence[int] = (),
        drafter: ArtifactDrafter | None = None,
        vision: nn.Module | None = None,
    ) -> None:
        super().__init__()
        embedding = model.get_input_embeddings()
        self.model = AdaptedModel(model, cache, tap_layers)
        self.cache = cache
        self.drafter = drafter
        self.vision = vision
        self._shared = Shared(embedding, model.get_output_embeddings()) if drafter else None
        self.requires_grad_(False)

    @property
    def rope(self) -> RopeDeltaLayer | None:
        """Return the layer that keeps rope positions, if they are not those of the tokens."""
        return rope_delta_of(self.cache.cache_layers())

    def hidden(self, tokens: Tensor, block: Block, grid: Tensor | None = None) -> Tensor:
        """Run tokens [1, T], or embeddings [1, T, hidden], as ``block`` and return hidden states [1, T, hidden].

        grid: int64 [3, T], rope positions from the text's next one on, if they do not follow each other.
        """
        self.cache.block = block if self.rope is None else self.rope.place(block, grid)
        hidden = self.model.hidden(tokens)
        self.cache.close(block)
        return hidden

    def extend(self, tokens: Tensor, count: Tensor, bidirectional: Seeing = None) -> tuple[Tensor, Tensor]:
        """Commit the first ``count`` of tokens [1, T]; return the last one's logits, NaN if they do not fit, and all hidden.

        Embeddings [1, T, hidden] may take the place of tokens. bidirectional: where they see each other.
        """
        block = replace(self.cache.extend(tokens.shape[1], count), bidirectional=bidirectional)
        hidden = self.hidden(tokens, block)
        return self.last_logits(hidden, block), hidden

    def extend_by_picture(self, rows: Tensor, grid: Tensor, advance: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Commit the first ``count`` of embeddings [1, T, hidden] likewise, at the rope positions of ``grid`` (int64 [3, T]).

        The text behind them continues ``advance`` (int64 [1]) positions on.
        """
        assert self.rope is not None
        count = torch.where(self.rope.allows(count, advance), count, 0)
        block = self.cache.extend(rows.shape[1], count)
        hidden = self.hidden(rows, block, grid)
        self.rope.move(block, advance)
        return self.last_logits(hidden, block), hidden

    def last_logits(self, hidden: Tensor, block: Block) -> Tensor:
        """Return the logits [1, 1, V] after the last token that counts, NaN for a refused block."""
        last = hidden.index_select(1, (block.count - 1).clamp(min=0))
        # Select before the head, because the vocabulary is hundreds of times wider.
        return self.model.logits(torch.where(block.count > 0, last, float("nan")))

    @property
    def target(self) -> TargetModel:
        """Return the parts of the model that the drafter shares."""
        shared = self._shared
        assert shared is not None
        few = self.drafter.head if self.drafter is not None else None
        logits = partial(self.model.logits, layer=few)
        return TargetModel(decoder=self.model.decoder, logits=logits, embed=shared.embed, head=few or shared.head)

    def tapped(self, logits: Tensor, hidden: Tensor) -> Outputs:
        """Return logits, with the tapped hidden states of the run that ended with ``hidden`` if there are taps."""
        return (logits, self.model.taps.collect(hidden)) if self.model.taps.places else logits


class Shared:
    """The embedding's rows as they are stored, and the head."""

    def __init__(self, embedding: Any, head: Any) -> None:
        self.embedding, self.head = embedding, head
        self.factor = getattr(embedding, "factor", None) or table_factor(embedding)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return rows [1, T, H] of tokens [1, T]."""
        if self.factor is None:  # more than a table (Inkling's norm), which is then never packed
            return F.embedding(tokens, self.embedding.weight)
        rows: Tensor = self.embedding(tokens)
        return rows if self.factor == 1.0 else rows * (1.0 / self.factor)


class ProgramMethod(nn.Module):
    """A method of the program."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


class Prefill(ProgramMethod):
    """tokens [1, C], n [1] -> logits [1, 1, V] of token n; commits the first n."""

    def forward(self, tokens: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(tokens, n))


class PrefillEmbeddings(ProgramMethod):
    """embeddings [1, C, H], n [1] -> logits [1, 1, V] of row n; commits the first n rows, such as those of a picture.

    If rows of a picture see each other, they are a whole picture's.
    """

    def __init__(self, state: State, bidirectional: Seeing) -> None:
        super().__init__(state)
        self.bidirectional = bidirectional

    def forward(self, embeddings: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(embeddings, n, self.bidirectional))


class PrefillPicture(ProgramMethod):
    """embeddings [1, C, H], grid [3, C], advance [1], n [1] -> logits [1, 1, V] of row n; commits the first n rows.

    Their rope positions are those of the grid from the text's next one on, which moves on by ``advance``.
    """

    def forward(self, embeddings: Tensor, grid: Tensor, advance: Tensor, n: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend_by_picture(embeddings, grid, advance, n))


class EncodePicture(ProgramMethod):
    """pixels [N, P], rows [N, R], columns [N, R], n [1] -> embeddings [1, N / merge², H]; touches no state.

    An encoder with rope takes places [N, 2], the row and column of each patch, before n; rows and columns are left out if it
    looks up positions by them.
    """

    def forward(self, *patches: Tensor) -> Tensor:
        assert self.state.vision is not None
        embeddings: Tensor = self.state.vision(*patches)
        return embeddings


class Decode(ProgramMethod):
    """tokens [1, 1] -> logits [1, 1, V]; commits it."""

    def forward(self, tokens: Tensor) -> Outputs:
        return self.state.tapped(*self.state.extend(tokens, torch.ones(1, dtype=torch.long)))


class Verify(ProgramMethod):
    """tokens [1, S] -> logits [1, S, V]; stages them and commits nothing. S is the longest block's or a shorter one's."""

    def forward(self, tokens: Tensor) -> Outputs:
        hidden = self.state.hidden(tokens, self.state.cache.speculate(tokens.shape[1]))
        return self.state.tapped(self.state.model.logits(hidden), hidden)


class Commit(ProgramMethod):
    """n [1] -> length [1]; commits the first n staged tokens."""

    def forward(self, n: Tensor) -> Tensor:
        return self.state.cache.commit(n)


class SnapshotSlot(ProgramMethod):
    """slot [1] -> length [1]; keeps the committed state."""

    def forward(self, slot: Tensor) -> Tensor:
        return self.state.cache.write_slot(slot)


class RestoreSlot(ProgramMethod):
    """slot [1] -> length [1]; restores the slot's state."""

    def forward(self, slot: Tensor) -> Tensor:
        return self.state.cache.read_slot(slot)


class Reset(ProgramMethod):
    """-> length [1], which is 0."""

    def forward(self) -> Tensor:
        return self.state.cache.clear(torch.ones(1, dtype=torch.bool))


class Forward(ProgramMethod):
    """tokens [1, 1], start_pos [1] -> logits [1, 1, V]; ExecuTorch's stock runners call it. Position 0 resets the state.

    A position other than 0 or the length is refused with NaN, because recurrent state has no earlier positions.
    """

    def forward(self, tokens: Tensor, start_pos: Tensor) -> Tensor:
        self.state.cache.clear(start_pos == 0)
        expected = (start_pos == self.state.cache.length).to(torch.long)
        return self.state.extend(tokens, expected)[0]


class DrafterMethod(ProgramMethod):
    """A method of the drafter, over pairs of tapped hidden states [1, T, F] and the tokens [1, T] that followed them."""

    @property
    def drafter(self) -> ArtifactDrafter:
        assert self.state.drafter is not None
        return self.state.drafter


class DraftTokens(DrafterMethod):
    """hidden [1, S, F], tokens [1, S], n [1] and inputs for sampling -> draft tokens, probabilities, scores and candidates.

    Reads the first n pairs, then proposes ``draft_len`` tokens behind the last one; -1 if refused. See
    ``ArtifactDrafter``.
    """

    def __init__(self, state: State, draft_len: int) -> None:
        super().__init__(state)
        self.draft_len = draft_len

    def forward(self, hidden: Tensor, tokens: Tensor, n: Tensor, *draws: Tensor) -> Outputs:
        return self.drafter.draft(self.state.target, self.draft_len, hidden, tokens, n, *draws)


class DraftPrefill(DrafterMethod):
    """hidden [1, C, F], tokens [1, C], n [1] -> the drafter's length [1]; reads the first n pairs. -1 if refused."""

    def forward(self, hidden: Tensor, tokens: Tensor, n: Tensor) -> Tensor:
        return self.drafter.read(self.state.target, hidden, tokens, n)


def build_methods(
    state: State, shorter_verify_lens: Sequence[int] = (), pictures: PictureDescription | None = None
) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return each method of the artifact with example inputs of its fixed shapes; slots only if the cache has any."""
    sizes = state.cache.sizes
    one = torch.ones(1, dtype=torch.long)
    methods: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "prefill": (Prefill(state), (blank_tokens(sizes.prefill_chunk), one)),
        "decode": (Decode(state), (blank_tokens(1),)),
        "verify": (Verify(state), (blank_tokens(sizes.verify_len),)),
        **{shorter_verify(length): (Verify(state), (blank_tokens(length),)) for length in shorter_verify_lens},
        "forward": (Forward(state), (blank_tokens(1), one)),
        "commit": (Commit(state), (one,)),
        "reset": (Reset(state), ()),
    }
    if sizes.snapshot_slots:
        methods |= {"snapshot": (SnapshotSlot(state), (one,)), "restore": (RestoreSlot(state), (one,))}
    if state.drafter is not None:
        methods |= draft_methods(state, state.drafter)
    if pictures is not None:
        methods |= picture_methods(state, pictures)
    return methods


def picture_methods(state: State, pictures: PictureDescription) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the methods for pictures, with example inputs."""

    def patches(tokens: int) -> tuple[Tensor, ...]:
        count = tokens * pictures.merge**2
        pixels = torch.zeros(count, 3 * pictures.patch_size**2, dtype=torch.uint8)
        weights = torch.full((count, pictures.position_side), 1 / pictures.position_side)
        places = (torch.zeros(count, 2),) if pictures.form.has_rope else ()
        interpolated = () if pictures.form.has_table else (weights, weights.clone())
        return pixels, *interpolated, *places, torch.full((1,), count, dtype=torch.long)

    chunk, one = pictures.rows(state.cache.sizes.prefill_chunk), torch.ones(1, dtype=torch.long)
    embeddings = torch.zeros(1, chunk, state.model.width)
    encoding = {name: (EncodePicture(state), patches(tokens)) for name, tokens in pictures.methods.items()}
    if state.rope is None:
        prefill = PrefillEmbeddings(state, pictures.seeing)
        return {**encoding, "prefill_embeddings": (prefill, (embeddings, one))}
    grid = torch.zeros(3, chunk, dtype=torch.long)
    return {**encoding, "prefill_embeddings": (PrefillPicture(state), (embeddings, grid, one, one.clone()))}


def build_encoder(
    loaded: LoadedModel, options: ExportOptions, pictures: PictureDescription, warn: Callable[[str], None]
) -> nn.Module:
    """Return the encoder of pictures of a loaded model, with the artifact's weights. Raises CheckpointError."""
    assert loaded.whole is not None, "only a multimodal model is described to take pictures"
    family = VISION[loaded.whole.config.model_type]
    quantize_encoder(loaded.whole, family.parts, options, warn)
    return family.encoder(loaded.whole, read_processor(loaded.source.folder, family), pictures, KERNELS[options.kernels]())


def draft_methods(state: State, drafter: ArtifactDrafter) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the methods of the drafter, with example inputs."""

    def pairs(tokens: int) -> tuple[Tensor, ...]:
        return torch.zeros(1, tokens, drafter.width), blank_tokens(tokens), torch.ones(1, dtype=torch.long)

    sizes = state.cache.sizes
    proposing = {
        name: (DraftTokens(state, draft_len), (*pairs(sizes.verify_len), *drafter.draws(draft_len)))
        for name, draft_len in drafter.description.methods.items()
    }
    return {**proposing, "draft_prefill": (DraftPrefill(state), pairs(sizes.prefill_chunk))}


def blank_tokens(count: int) -> Tensor:
    """Return int64 zeros [1, count]."""
    return torch.zeros(1, count, dtype=torch.long)


# The cache of an ExecuTorch export

KERNELS: Mapping[str, type[Kernels]] = {"llm": LlmKernels, "hybridge": HybridgeKernels, "aten": CoreKernels}


def build_cache(
    config: Any, options: ExportOptions, drafter: DrafterPlan | None = None, pictures: PictureDescription | None = None
) -> HybridCache:
    """Check the options, and return the cache of an export of a model, or of its text model, of ``config``.

    drafter: as ``plan_drafter`` planned it with the same options; if left out, one of the model's own weights if asked
    for. pictures: as ``describe_pictures`` described them. Raises UsageError for impossible sizes and
    UnsupportedModelError for layers without a state of ours.
    """
    config = text_config(config)
    drafter = drafter or plan_drafter(config, options)[0]
    with torch.device("meta"):
        size = _cache(config, options, drafter, pictures).state_bytes()
    check_verify_lens(options)
    check_quantization(options)
    check_taps(options.tap_layers, config.num_hidden_layers)
    memory = memory_bytes()
    if size > memory // 2:
        raise UsageError(
            f"the state would take {size / 1e9:.1f} GB of the {memory / 1e9:.1f} GB that this process may have; "
            "lower --max-seq-len or --snapshot-slots."
        )
    cache = _cache(config, options, drafter, pictures)
    check_kv_cache(cache, options)
    return cache


def check_kv_cache(cache: HybridCache, options: ExportOptions) -> None:
    """Raise UsageError if no layer would use the type of keys and values that was asked for."""
    parts = cache.leaves()
    if options.kv_cache not in ("auto", "float32") and not any(part.rounded_to for part in parts):
        kinds = ", ".join(sorted({part.kind for part in parts}))
        raise UsageError(
            f"--kv-cache {options.kv_cache} is for full attention, and this model has none that it could be for: its layers "
            f"are {kinds}. Export without it."
        )


def _cache(
    config: Any, options: ExportOptions, drafter: DrafterPlan | None, pictures: PictureDescription | None
) -> HybridCache:
    sizes = CacheSizes(
        max_seq_len=options.max_seq_len,
        prefill_chunk=options.prefill_chunk,
        verify_len=options.verify_len,
        snapshot_slots=options.snapshot_slots,
        dtype=getattr(torch, options.dtype),
        kv_dtype=None if options.kv_dtype == "float32" else getattr(torch, options.kv_dtype),
        behind_window=drafter.behind_window if drafter else 0,
        picture_rows=pictures.rows(options.prefill_chunk) if pictures and pictures.bidirectional else 0,
    )
    kernels = KERNELS[options.kernels]()
    cache = HybridCache.of_sizes(config, sizes, kernels)
    # A drafter's layers come last: it finds them by their number.
    cache.layers.extend([RopeDeltaLayer(sizes, kernels)] if pictures and pictures.form.axes > 1 else [])
    cache.layers.extend(drafter.layers(sizes, kernels) if drafter else [])
    return cache


# The memory that this process may use: the machine's, or less in a container

VERSION_1, VERSION_2 = "memory.limit_in_bytes", "memory.max"


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of the machine's memory, or the lowest limit of a control group. root: the folder with proc and sys."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    for path in _limit_files(root):
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue  # the container does not see this group of the host, or it has no limit
        if text.isdigit():  # otherwise it is "max"
            yield int(text)


def _limit_files(root: Path) -> Iterator[Path]:
    """Yield the files that may hold limits of this process: of its group, of all groups around it, and of the mount.

    A container may see its own group as the mounted one, whatever path the host has for it.
    """
    mounts = root / "sys" / "fs" / "cgroup"
    for controllers, group in _groups(root):
        if not controllers:
            folders, name = [mounts, mounts / "unified"], VERSION_2
        elif "memory" in controllers.split(","):
            folders, name = [mounts / "memory"], VERSION_1
        else:
            continue
        parts = [part for part in Path(group).parts[1:] if part != ".."]
        yield from (folder.joinpath(*parts[:depth], name) for folder in folders for depth in range(len(parts) + 1))


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """Yield controllers and path of each group of this process; version 2 names no controllers."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return  # not Linux, or without control groups
    for line in filter(None, lines):
        _, controllers, group = line.split(":", 2)
        yield controllers, group
