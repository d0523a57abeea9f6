"""The choices of an export, and the limits of their values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from hybridge.errors import UsageError

STRICT: Any = {"extra": "forbid", "strict": True}
"""pydantic's configuration of these dataclasses, without pydantic: the command line imports this file, and starts fast."""
Bits = tuple[tuple[str, int], ...]
"""Patterns of weights' names with the bits that those have."""

# Default values that help shows, of a prefix cache in bytes and of a validation in random programs.
DEFAULT_BYTES, DEFAULT_PROGRAMS = 512 << 20, 55
LONG_TEXT = 4096
"""Tokens at which a decode of LFM2-350M reads 100 MB of float32 keys and values beside 200 MB of weights of 4 bits."""


def option(default: Any, text: str, *, least: int | None = None, flag: str | None = None, command: bool = True) -> Any:
    """Return a field of ``ExportOptions``, from which ``hybridge export`` makes an option, too.

    text: help for both. least: lowest value on the command line. flag: the option, if it is named otherwise. command: False
    leaves it out of the command line.
    """
    return field(default=default, metadata={"help": text, "min": least, "flag": flag, "command": command})


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Every choice of an export; goes into the manifest unchanged. Raises UsageError for a value of the wrong kind.

    On the command line, verify_len with shorter_verify_lens, bits, image_tokens, tap_layers and draft_blocks are lists with
    commas, verify_len is 4,8 by default, and quantize and mtp are auto, which no manifest has.
    """

    max_seq_len: int = option(2048, "Tokens that the state can hold; 2048 if left out.", least=1)
    prefill_chunk: int = option(64, "Tokens of one prefill call.", least=1)
    verify_len: int = option(8, "Most tokens of one verify call; 4,8,16 gives shorter blocks methods of their own.")
    snapshot_slots: int = option(2, "States that can be kept to come back to.", least=0)
    format: Literal["pte", "onnx"] = option("pte", "The runtime: ExecuTorch (pte) or onnxruntime (onnx).")
    backend: Literal["xnnpack", "portable"] = option(
        "xnnpack", "Who computes the dense parts of a .pte, unless hybridge's kernels do; xnnpack if left out."
    )
    dtype: Literal["float32"] = option("float32", "Of weights and state.")
    kernels: Literal["hybridge", "llm", "aten"] = option(
        "hybridge",
        "hybridge's own (fastest; left out, these), the stock runtime's llama:: ones, or core operators that any build has.",
    )
    quantize: Literal["auto", "none", "keep", "8da4w", "4w", "8w"] = option(
        "none",
        "Linear layers in 4 or 8 bits; 8da4w also rounds what goes into them to 8 bits; keep has a GGUF file's own bits, its "
        "embedding's too; none is float32. auto: what one would ship, which with hybridge's kernels is keep for a quantized "
        "GGUF file and --recipe balanced for all else, with others none.",
    )
    group_size: int = option(32, "Columns of a weight that share a scale: 32, 64, 128.")
    embedding_quantize: Literal["none", "4w", "5w", "6w", "8w"] = option(
        "none", "The embedding, and the output layer where it is tied to it."
    )
    rounding: Literal["nearest", "search", "blocks"] = option(
        "search",
        "How weights are rounded: blocks have a scale and a minimum for each group, search a scale by the least error, nearest "
        "one by the largest number. blocks if left out, where there are kernels for them, else search.",
    )
    calibrate: Literal["none", "self", "text"] = option(
        "none", "Round weights for this file of text, or 'self' for texts that the model makes itself; slower."
    )
    recipe: Literal["none", "small", "balanced", "quality"] = option(
        "none", "Bits by what their rounding costs; implies --quantize 8da4w and bits of the embedding."
    )
    bits: tuple[tuple[str, int], ...] = option(
        (),
        "Bits (4, 5, 6, 8 or 32) of weights by patterns of their names, such as 'out_proj=8,self_attn.*=8'; the last counts.",
    )
    kv_cache: Literal["auto", "float32", "float16", "int8"] = option(
        "auto",
        "Keys and values of full attention; fewer bits make long contexts cheap. auto: float16 for quantized weights and more "
        f"than {LONG_TEXT} tokens, else float32.",
    )
    shorter_verify_lens: tuple[int, ...] = option(
        (), "Further verify methods for shorter blocks, ascending and below verify_len.", command=False
    )
    images: bool = option(
        True, "With the encoder of pictures, if the checkpoint has one that hybridge exports.", flag="--images/--no-images"
    )
    image_tokens: tuple[int, ...] = option(
        (),
        "Most tokens of one picture or tile, ascending: each number gives the encoder a method of its own, and a picture takes "
        "the smallest that holds it. If left out, those of common squares and what the model was trained with.",
    )
    tap_layers: tuple[int, ...] = option(
        (), "Layers whose hidden states are put out too: 0 the embeddings, 3 after 3 layers, -1 after the last norm."
    )
    mtp: Literal["auto", True, False] = option(
        False,
        "With the checkpoint's own layers of multi-token prediction. auto, which is left out on the command line: with those "
        "that it has, unless they add more than 12 % of the weights' bytes.",
        flag="--mtp/--no-mtp",
    )
    draft_len: int = option(3, "Tokens that this drafter proposes at once; a verify of one more is cheapest.", least=1)
    draft_blocks: tuple[int, ...] = option(
        (),
        "Tokens of its blocks, the text's last one included; 4,8 gives shorter ones methods of their own. Left out, the "
        "drafter's own length, as far as a verify takes it.",
        flag="--draft-block",
    )
    draft_quantize: Literal["same", "none", "8da4w", "4w", "8w"] = option(
        "same", "A drafter's linear layers; same: as --quantize."
    )

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
        """Return the KV-cache dtype; ``auto``: float16 for quantized weights with a context over LONG_TEXT, else float32."""
        if self.kv_cache != "auto":
            return self.kv_cache
        is_rounded = self.has_own_kernels and (self.quantize != "none" or bool(self.bits))
        return "float16" if is_rounded and self.max_seq_len > LONG_TEXT else "float32"

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


ExportOptions.__doc__ = "\n".join([
    f"{ExportOptions.__doc__}\n    Attributes:",
    *(f"        {each.name}: {each.metadata['help']}" for each in fields(ExportOptions)),
])  # fmt: skip


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


LIMITS = {
    "max_seq_len": (1, 1 << 20),
    "prefill_chunk": (1, 4096),
    "verify_len": (1, 512),
    "snapshot_slots": (0, 1024),
    "group_size": (1, 1 << 16),
    "draft_len": (1, 512),
}
"""Lowest and highest value of each number; ``hybridge.cache`` allocates by them."""
MOST_LENGTHS = 64
"""Most verify methods, and most tapped layers."""
MOST_PATTERNS = 256
"""Most patterns in ``bits``."""


def check_limits(options: ExportOptions) -> None:
    """Raise ValueError for numbers beyond what any export has, before anything is allocated by them."""
    for name, (lowest, highest) in LIMITS.items():
        if not lowest <= (value := getattr(options, name)) <= highest:
            raise ValueError(f"{name} is {value}, not {lowest} to {highest}")
    if max(len(options.shorter_verify_lens), len(options.tap_layers), len(options.image_tokens)) > MOST_LENGTHS:
        raise ValueError(f"shorter_verify_lens, tap_layers and image_tokens are lists of at most {MOST_LENGTHS}")
    if len(options.bits) > MOST_PATTERNS or any(len(name) > 255 or bits not in (4, 5, 6, 8, 32) for name, bits in options.bits):
        raise ValueError(f"bits are at most {MOST_PATTERNS} patterns of names with 4, 5, 6, 8 or 32")
    if "auto" in (options.quantize, options.mtp):
        raise ValueError("quantize or mtp is auto, which stands for one of the others")
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise ValueError("shorter_verify_lens are not different lengths in order below verify_len")


def shorter_verify(length: int) -> str:
    """Return the name of the verify method for blocks of ``length`` tokens, if it is not the longest."""
    return f"verify_{length}"


def check_verify_lens(options: ExportOptions) -> None:
    """Raise UsageError if the lengths of several verify methods are not ascending and different."""
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise UsageError(
            f"verify lengths {lens} are not ascending, different and 1 or more: "
            "shorter_verify_lens must lie below verify_len and be in order."
        )
