"""The choices of an export, and the limits of their values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from hybridge.errors import UsageError
from hybridge.limits import check_sizes
from hybridge.runtime.artifact.delegates import DELEGATED, DELEGATES, TAKEN, DelegateName, Device, Stored, Taken

STRICT: Any = {"extra": "forbid", "strict": True}
"""pydantic's configuration of these dataclasses, without pydantic: the command line imports this file, and starts fast."""
Bits = tuple[tuple[str, int], ...]
"""Patterns of weights' names with the bits that those have."""

NEVER = 1 << 30
"""Tokens that no prompt has: a delegate that reads from there on reads none."""

# Default values that help shows, of a prefix cache in bytes and of a validation in random programs.
DEFAULT_BYTES, DEFAULT_PROGRAMS = 512 << 20, 55
OWN_CONTEXT = 0
"""A ``max_seq_len`` that stands for the model's own."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Every choice of an export; goes into the manifest unchanged. Raises UsageError for a value of the wrong kind.

    Attributes:
        max_seq_len: tokens that the state can hold. 0: as many as the model takes, up to 32,768, and up to 2,048 without
            hybridge's kernels; no manifest has it.
        prefill_chunk: tokens of one prefill call.
        verify_len: most tokens of one verify call.
        shorter_verify_lens: tokens of further verify methods for shorter blocks, ascending and below verify_len.
        snapshot_slots: number of states that can be kept and restored.
        format: the runtime, ExecuTorch (pte) or onnxruntime (onnx).
        backend: computes the dense parts of a .pte, except with hybridge's kernels.
        dtype: the data type of weights and state.
        kernels: hybridge's own, the ``llama::`` operators of the stock runtime (llm), or core operators (aten).
        quantize: bits of linear layers: 4 (8da4w, 4w), 8 (8w), those of a GGUF file (keep), or float32 (none). 8da4w also
            rounds the inputs of layers to 8 bits. auto: keep for a quantized GGUF file and recipe balanced for other
            checkpoints, if hybridge's kernels run it, otherwise none; no manifest has it.
        group_size: columns of a weight that share a scale: 32, 64 or 128.
        embedding_quantize: bits of the embedding, and of an output layer that is tied to it.
        rounding: blocks, a scale and a minimum for each group; search, the scale with the least error; nearest, the scale
            of the largest number.
        calibrate: round weights for a text, or for texts that the model makes itself.
        recipe: bits for each kind of weights; implies quantize 8da4w and quantizes the embedding.
        bits: patterns of weights' names and the bits (4, 5, 6, 8 or 32) of those weights; the last that fits counts.
        kv_cache: the data type of keys and values of full attention. auto: float16 for rounded weights, if hybridge's kernels
            run the model and it is of a family that was found not to mind, otherwise float32; no manifest has it.
        images: with the encoder of pictures, if the checkpoint has one that hybridge exports.
        image_tokens: most tokens of a picture or tile, ascending; the encoder has a method for each number. Empty: those of
            common squares and of the model's training.
        tap_layers: layers whose hidden states are put out too: 0 the embedding, 3 the third layer, -1 the last norm.
        mtp: with the checkpoint's layers for multi-token prediction as its drafter. auto: unless they add more than 12 % to
            the bytes of the weights; no manifest has it.
        draft_len: most tokens that these layers propose at once, as far as a verify takes them.
        draft_blocks: tokens of a drafter's blocks, the last one of the text included, ascending. Empty: the drafter's own
            length, as far as a verify takes it.
        draft_quantize: bits of a drafter's linear layers; same: as quantize.
        delegate: the accelerator that has methods of its own beside the CPU's; needs hybridge's kernels.
        delegate_device: the device to compile for.
        delegate_methods: what it takes: the prefill, the longest encoder of pictures, or both.
        delegate_weights: how its own copy of the weights is stored. auto: float32, or int8 of quantized weights, or the
            delegate's first form if it has not that one; no manifest has it.
        delegate_from: tokens of the shortest prompt that it reads; ``hybridge bench --write-threshold`` measures it.
    """

    max_seq_len: int = OWN_CONTEXT
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
    bits: tuple[tuple[str, int], ...] = ()
    kv_cache: Literal["auto", "float32", "float16", "int8"] = "auto"
    shorter_verify_lens: tuple[int, ...] = ()
    images: bool = True
    image_tokens: tuple[int, ...] = ()
    tap_layers: tuple[int, ...] = ()
    mtp: Literal["auto", True, False] = False
    draft_len: int = 7
    draft_blocks: tuple[int, ...] = ()
    draft_quantize: Literal["same", "none", "8da4w", "4w", "8w"] = "same"
    delegate: DelegateName = "none"
    delegate_device: Device = "CPU"
    delegate_methods: tuple[Taken, ...] = ("prefill",)
    delegate_weights: Stored = "auto"
    delegate_from: int = 64

    __pydantic_config__: ClassVar[Any] = STRICT

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
            if not _fits(getattr(self, name), kind):
                wanted = " or ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else kind
                wanted = wanted.__name__ if type(wanted) is type else wanted
                raise UsageError(f"the option {name} is {getattr(self, name)!r}, but must be {wanted}.")

    @property
    def verify_lens(self) -> list[int]:
        """Return the number of tokens of each verify method, ascending."""
        return [*self.shorter_verify_lens, self.verify_len]

    @property
    def lowered_to(self) -> Literal["xnnpack", "portable"]:
        """Return the backend of the dense parts: portable if ExecuTorch's own loop runs every operator, hybridge's included."""
        return "portable" if self.kernels == "hybridge" else self.backend

    @property
    def kv_dtype(self) -> Literal["float32", "float16", "int8"]:
        """Return the KV-cache dtype; float32 for an ``auto`` that no export has resolved."""
        return "float32" if self.kv_cache == "auto" else self.kv_cache

    @property
    def delegated(self) -> dict[str, str]:
        """Return the delegate's methods, with the CPU's method of the same signature."""
        taken = [] if self.delegate == "none" else [TAKEN[name] for name in self.delegate_methods]
        return {name: like for name, like in DELEGATED.items() if like in taken}

    @property
    def stored_for_delegate(self) -> Stored:
        """Return how the delegate's weights are stored."""
        if self.delegate_weights != "auto" or self.delegate == "none":
            return self.delegate_weights
        wanted: Stored = "float32" if self.quantize == "none" and self.recipe == "none" else "int8"
        known = DELEGATES[self.delegate].weights
        return wanted if wanted in known else known[0]

    @property
    def has_own_kernels(self) -> bool:
        """Return whether hybridge's kernels run the program."""
        return self.format == "pte" and self.kernels == "hybridge"

    @property
    def rounds_inputs(self) -> bool:
        """Return whether inputs of quantized layers are rounded to 8 bits."""
        return self.quantize in ("8da4w", "keep")

    @property
    def fixed_shapes(self) -> bool:
        """Return whether a method takes a fixed number of tokens; otherwise a verify takes fewer too."""
        return self.format == "pte"


@cache
def _kinds() -> dict[str, Any]:
    """Return the type of each option."""
    hints = get_type_hints(ExportOptions)
    return {each.name: hints[each.name] for each in fields(ExportOptions)}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has exactly a type, a choice, or a tuple of such."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in inner
    if origin is not tuple:
        return type(value) is kind
    inner = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is ... else inner
    return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, value, inner))


MOST_LENGTHS = 64
"""Most verify methods, and most tapped layers."""
MOST_PATTERNS = 256
"""Most patterns in ``bits``."""


def check_limits(options: ExportOptions) -> None:
    """Raise ValueError for numbers beyond what any export has, before anything is allocated by them."""
    check_sizes(options)
    check_verify_lens(options)
    check_delegate(options)
    if max(len(options.shorter_verify_lens), len(options.tap_layers), len(options.image_tokens)) > MOST_LENGTHS:
        raise ValueError(f"shorter_verify_lens, tap_layers and image_tokens are lists of at most {MOST_LENGTHS}")
    if len(options.bits) > MOST_PATTERNS or any(len(name) > 255 or bits not in (4, 5, 6, 8, 32) for name, bits in options.bits):
        raise ValueError(f"bits are at most {MOST_PATTERNS} patterns of names with 4, 5, 6, 8 or 32")
    if "auto" in (options.quantize, options.mtp):
        raise ValueError("quantize or mtp is auto, which stands for one of the others")


def shorter_verify(length: int) -> str:
    """Return the name of the verify method for blocks of ``length`` tokens, if it is not the longest."""
    return f"verify_{length}"


def check_delegate(options: ExportOptions) -> None:
    """Raise UsageError for a delegate of a program without hybridge's kernels, which keep the state outside of it.

    Also for a device or a form of weights that it does not have.
    """
    if options.delegate != "none":
        row = DELEGATES[options.delegate]
        if not options.has_own_kernels:
            raise UsageError(f"--delegate {options.delegate} needs --format pte and --kernels hybridge.")
        if options.delegate_device not in row.devices:
            raise UsageError(f"{row.title} has no device {options.delegate_device}; give {' or '.join(row.devices)}.")
        if options.delegate_weights not in ("auto", *row.weights):
            raise UsageError(f"{row.title} has no weights in {options.delegate_weights}; give {' or '.join(row.weights)}.")
        if not options.delegated or len(options.delegated) < len(options.delegate_methods):
            raise UsageError("--delegate-methods takes prefill, encode, or prefill,encode.")
    if not 1 <= options.delegate_from <= NEVER:
        raise UsageError(f"a delegate cannot read prompts from {options.delegate_from} tokens on: give 1 or more.")


def check_verify_lens(options: ExportOptions) -> None:
    """Raise UsageError if the lengths of several verify methods are not ascending and different."""
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise UsageError(
            f"verify lengths {lens} are not ascending, different and 1 or more: "
            "shorter_verify_lens must lie below verify_len and be in order."
        )
