"""The choices of an export, and what else a session must know of its model."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from hybridge.cache.errors import UsageError
from hybridge.runtime.defaults import LONG_TEXT

STRICT = ConfigDict(extra="forbid", strict=True)
Bits = tuple[tuple[str, int], ...]
"""Patterns of weights' names with the bits that those have."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExportOptions:
    """Every choice of an export; goes into the manifest unchanged.

    format says who runs it: ExecuTorch (pte) or onnxruntime; backend and kernels are for the first alone. hybridge's kernels
    leave no backend anything to compute: see ``lowered_to``.
    max_seq_len, prefill_chunk and the verify lengths are in tokens. quantize is for linear layers, embedding_quantize for the
    embedding and a head that is tied to it; group_size columns share a scale. quantize keep has the blocks of a GGUF file as
    they are, its embedding included; auto, which no manifest has, is what the checkpoint's kind asks for. rounding says how a
    weight's scales are found without data, calibrate on what texts it was rounded instead: the model's own or somebody's.
    recipe and bits give weights other bits by their names. kv_cache is for keys and values of full attention, see ``kv_dtype``.
    shorter_verify_lens, ascending and below verify_len, are further verify methods for shorter blocks. tap_layers are indices
    into transformers' ``hidden_states`` (0 the embeddings, i after i layers, -1 the last, after the final norm), put out beside
    the logits. mtp: with the checkpoint's own layers of multi-token prediction, which propose draft_len tokens. draft_blocks:
    lengths of the blocks that a drafter of its own checkpoint proposes, the text's last token included, ascending.
    draft_quantize: the drafter's linear layers; as quantize says if it is same.
    """

    max_seq_len: int = 2048
    prefill_chunk: int = 64
    verify_len: int = 8
    snapshot_slots: int = 2
    format: Literal["pte", "onnx"] = "pte"
    backend: Literal["xnnpack", "portable"] = "xnnpack"
    dtype: Literal["float32"] = "float32"
    kernels: Literal["hybridge", "llm", "aten"] = "hybridge"
    quantize: Literal["auto", "none", "keep", "8da4w", "4w", "8w"] = "none"
    group_size: int = 32
    embedding_quantize: Literal["none", "4w", "5w", "6w", "8w"] = "none"
    rounding: Literal["nearest", "search", "blocks"] = "search"
    calibrate: Literal["none", "self", "text"] = "none"
    recipe: Literal["none", "small", "balanced", "quality"] = "none"
    bits: Bits = ()
    kv_cache: Literal["auto", "float32", "float16", "int8"] = "auto"
    shorter_verify_lens: tuple[int, ...] = ()
    tap_layers: tuple[int, ...] = ()
    mtp: bool = False
    draft_len: int = 4
    draft_blocks: tuple[int, ...] = ()
    draft_quantize: Literal["same", "none", "8da4w", "4w", "8w"] = "same"

    @property
    def verify_lens(self) -> list[int]:
        """Return the number of tokens of each verify method, ascending."""
        return [*self.shorter_verify_lens, self.verify_len]

    @property
    def lowered_to(self) -> Literal["xnnpack", "portable"]:
        """The backend that has the dense parts; portable where ExecuTorch's own loop runs every operator, hybridge's too."""
        return "portable" if self.kernels == "hybridge" else self.backend

    @property
    def kv_dtype(self) -> Literal["float32", "float16", "int8"]:
        """What keys and values are kept in: by itself float16 where a text may be long and the weights are rounded as well."""
        if self.kv_cache != "auto":
            return self.kv_cache
        is_rounded = self.has_own_kernels and (self.quantize != "none" or bool(self.bits))
        return "float16" if is_rounded and self.max_seq_len > LONG_TEXT else "float32"

    @property
    def has_own_kernels(self) -> bool:
        """Return whether hybridge's kernels run it."""
        return self.format == "pte" and self.kernels == "hybridge"

    @property
    def rounds_inputs(self) -> bool:
        """Return whether what goes into layers of few bits is rounded to 8 bits."""
        return self.quantize in ("8da4w", "keep")

    @property
    def fixed_shapes(self) -> bool:
        """Return whether a method takes a fixed number of tokens; else a verify takes fewer too."""
        return self.format == "pte"


LIMITS = {
    "max_seq_len": (1, 1 << 20),
    "prefill_chunk": (1, 4096),
    "verify_len": (1, 512),
    "snapshot_slots": (0, 1024),
    "group_size": (1, 1 << 16),
    "draft_len": (1, 512),
}
"""Lowest and highest value of each number, as ``hybridge.cache`` has them where it allocates by them."""
MOST_LENGTHS = 64
"""Verify methods, and tapped layers."""
MOST_PATTERNS = 256
"""Of ``bits``."""


def check_limits(options: ExportOptions) -> None:
    """Raises ValueError for numbers beyond what any export has, before anything is made of that size."""
    for name, (lowest, highest) in LIMITS.items():
        if not lowest <= (value := getattr(options, name)) <= highest:
            raise ValueError(f"{name} is {value}, not {lowest} to {highest}")
    if max(len(options.shorter_verify_lens), len(options.tap_layers)) > MOST_LENGTHS:
        raise ValueError(f"shorter_verify_lens and tap_layers are lists of at most {MOST_LENGTHS}")
    if len(options.bits) > MOST_PATTERNS or any(len(name) > 255 or bits not in (4, 5, 6, 8, 32) for name, bits in options.bits):
        raise ValueError(f"bits are at most {MOST_PATTERNS} patterns of names with 4, 5, 6, 8 or 32")
    if options.quantize == "auto":
        raise ValueError("quantize is auto, which stands for one of the others")
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise ValueError("shorter_verify_lens are not different lengths in order below verify_len")


def shorter_verify(length: int) -> str:
    """Return the name of the verify method for blocks of ``length`` tokens, where that is not the longest."""
    return f"verify_{length}"


def check_verify_lens(options: ExportOptions) -> None:
    """Raises UsageError where the lengths of several verify methods are not different ones in order."""
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise UsageError(
            f"verify lengths {lens} are not ascending, different and 1 or more: "
            "shorter_verify_lens must lie below verify_len and be in order."
        )


class Description(Protocol):
    """A Session's description of its model; an artifact's manifest is one."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_ids(self) -> list[int]: ...
    @property
    def options(self) -> ExportOptions: ...
    @property
    def drafter(self) -> DrafterDescription | None: ...
    @property
    def identity(self) -> str | None:
        """Return what tells it from every other model; none if nothing does."""


# What a reader must know of the drafter inside an artifact.


DrafterKind = Literal["mtp", "dflash", "dflash2", "dspark", "eagle3", "gemma4_assistant"]
MOST_BLOCKS = 64
LONGEST_BLOCK = 513


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class DrafterDescription:
    """The drafter of an artifact.

    taps: the tapped layers whose hidden states it reads, in its order, a part of the artifact's ``tap_layers``. blocks: tokens
    of the blocks that it proposes, ascending, the last token of the text included, so one less are draft tokens. samples: it
    can draw its draft tokens, and says from which distribution.
    """

    kind: DrafterKind
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    samples: bool = False

    @property
    def methods(self) -> dict[str, int]:
        """Return the methods that propose, and how many draft tokens each gives."""
        *shorter, longest = self.blocks
        return {"draft": longest - 1} | {shorter_draft(block): block - 1 for block in shorter}

    def method_for(self, limit: int) -> str:
        """Return the method that gives the fewest draft tokens from ``limit`` on, or the most."""
        enough = [name for name, count in self.methods.items() if count >= limit]
        return min(enough, key=lambda name: self.methods[name], default="draft")


def shorter_draft(block: int) -> str:
    """Return the name of the method for a block that is not the longest."""
    return f"draft_{block}"


OF_DRAFTERS = frozenset({"hybridge_draft_blocks", "hybridge_draft_taps"})
"""Constant methods that programs with a drafter have since 2026-11-22, for harnesses that read no manifest."""


def drafter_constants(drafter: DrafterDescription, tap_layers: tuple[int, ...]) -> dict[str, list[int]]:
    """Return what the program itself says of its drafter, for a harness that reads no manifest, by constant method.

    The lengths of its blocks, and the places of its hidden states among those that are tapped.
    """
    return {"hybridge_draft_blocks": [*drafter.blocks], "hybridge_draft_taps": [tap_layers.index(tap) for tap in drafter.taps]}


def check_drafter(drafter: DrafterDescription, tap_layers: tuple[int, ...], verify_len: int) -> None:
    """Raises ValueError where an artifact with these taps and this verify length cannot have ``drafter``."""
    blocks = list(drafter.blocks)
    if (
        not 1 <= len(blocks) <= MOST_BLOCKS
        or blocks != sorted(set(blocks))
        or not 2 <= blocks[0] <= blocks[-1] <= LONGEST_BLOCK
    ):
        raise ValueError(f"the drafter's blocks {blocks[:MOST_BLOCKS]} are not different lengths in order")
    if drafter.kind != "mtp" and blocks[-1] > verify_len:
        raise ValueError(f"the drafter's blocks of {blocks[-1]} are longer than a verify takes")
    if not drafter.taps or not {*drafter.taps} <= {*tap_layers}:
        raise ValueError(f"the drafter reads hidden states that are not tapped: {list(drafter.taps)[:MOST_BLOCKS]}")
