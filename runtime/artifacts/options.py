"""The choices of an export, and what else a session must know of its model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, get_args, get_origin, get_type_hints

from hybridge.cache import DEFAULT_MAX_SEQ_LEN
from hybridge.cache.errors import UsageError

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

    max_seq_len: int = option(2048, f"Tokens that the state can hold; {DEFAULT_MAX_SEQ_LEN} if left out.", least=1)
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
    def pictures(self) -> PictureDescription | None: ...
    @property
    def identity(self) -> str | None:
        """Return a hash that distinguishes this model from every other; None without one."""


DrafterKind = Literal["mtp", "dflash", "dflash2", "dspark", "eagle3", "gemma4_assistant"]
VocabularySource = Literal["first", "self", "text"]
MOST_BLOCKS = 64
LONGEST_BLOCK = 513
MOST_TOKENS = 1 << 31


@dataclass(frozen=True, kw_only=True)
class VocabularyDescription:
    """The tokens that a drafter may propose, if they are not all.

    Attributes:
        tokens: their number.
        source: the first tokens, those of texts that the model sampled, or those of a file.
        coverage: share of the tokens of held-out texts that are among them; None if there were none.
    """

    tokens: int
    source: VocabularySource
    coverage: float | None = None

    __pydantic_config__: ClassVar[Any] = STRICT

    def __str__(self) -> str:
        """Return a description that continues "it proposes"."""
        chosen = {"first": "the first ones", "self": "those that the model says", "text": "those of a text"}[self.source]
        share = "" if self.coverage is None else f", {self.coverage:.1%} of texts that they were not chosen by"
        return f"{self.tokens} tokens ({chosen}{share})"


@dataclass(frozen=True, kw_only=True)
class DrafterDescription:
    """The drafter of an artifact.

    Attributes:
        kind: how it proposes.
        taps: the layers whose hidden states it reads, in its order; all are among the artifact's ``tap_layers``.
        blocks: lengths of the blocks that it proposes, ascending. A block includes the text's last token, so it has one draft
            token less.
        samples: it can draw its draft tokens, and says from which distribution.
        vocabulary: the tokens that it may propose; None for all, or for those of an output layer of its own.
    """

    kind: DrafterKind
    taps: tuple[int, ...]
    blocks: tuple[int, ...]
    samples: bool = False
    vocabulary: VocabularyDescription | None = None

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def methods(self) -> dict[str, int]:
        """Return the methods that propose, with the number of draft tokens that each gives."""
        *shorter, longest = self.blocks
        return {"draft": longest - 1} | {shorter_draft(block): block - 1 for block in shorter}


def shorter_draft(block: int) -> str:
    """Return the name of the method for a block that is not the longest."""
    return f"draft_{block}"


def drafter_constants(drafter: DrafterDescription, tap_layers: tuple[int, ...]) -> dict[str, list[int]]:
    """Return the constant methods that describe a drafter, for a harness that reads no manifest.

    They are the lengths of its blocks, and the places of its hidden states among those that are tapped.
    """
    return {"hybridge_draft_blocks": [*drafter.blocks], "hybridge_draft_taps": [tap_layers.index(tap) for tap in drafter.taps]}


def check_drafter(drafter: DrafterDescription, tap_layers: tuple[int, ...], verify_len: int) -> None:
    """Raise ValueError if an artifact with these taps and this verify length cannot have ``drafter``."""
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
    if (few := drafter.vocabulary) and not (1 <= few.tokens <= MOST_TOKENS and 0.0 <= (few.coverage or 0.0) <= 1.0):
        raise ValueError(f"the drafter's vocabulary of {few.tokens} tokens covers {few.coverage} of a text")


MOST_IMAGE_TOKENS = 4096
"""Most tokens of one picture or tile."""
LARGEST_PATCH, LARGEST_MERGE, LARGEST_SIDE = 64, 8, 256
LARGEST_TABLE = MOST_IMAGE_TOKENS * LARGEST_MERGE
VISION, VISION_FORM = "hybridge_vision", "hybridge_vision_form"
"""The constant methods that describe the encoder of pictures, and the positions of patches and rows if they are unusual."""


@dataclass(frozen=True, kw_only=True)
class PictureForm:
    """The positions of a picture's patches and rows, by the model type.

    Attributes:
        axes: of the rope positions of a picture's rows in the text: 1, as tokens have them, or 3 (time, row and column).
        has_corners: learned positions are interpolated so that the outermost ones lie on the corners of a picture, without
            antialiasing.
        has_rope: the encoder takes the row and column of each patch, and turns it by them unless it looks up positions.
        has_table: it looks up learned positions by row and column, so that nothing is interpolated outside of it.
        is_bidirectional: rows of a picture see each other in layers with a window, so that one call reads all of them.
        in_all_layers: then they do so in layers of full attention, too.
        is_square: every picture is a square of as many tokens as the encoder takes.
    """

    axes: int = 1
    has_corners: bool = False
    has_rope: bool = False
    has_table: bool = False
    is_bidirectional: bool = False
    in_all_layers: bool = False
    is_square: bool = False

    @property
    def constants(self) -> list[int]:
        """Return the numbers of ``hybridge_vision_form``, of which programs that need no more have the first three or five."""
        numbers = [self.axes, int(self.has_corners), int(self.has_rope)]
        numbers += [1, int(self.is_bidirectional)] if self.has_table else []
        return [*numbers, 1] if self.is_square else numbers


FORMS = {
    "lfm2_vl": PictureForm(),
    "lfm3_vl": PictureForm(has_rope=True),
    "qwen3_5": PictureForm(axes=3, has_corners=True, has_rope=True),
    "gemma3": PictureForm(has_rope=True, has_table=True, in_all_layers=True, is_square=True),
    "gemma4": PictureForm(has_rope=True, has_table=True),
    "glm5_next": PictureForm(has_rope=True),
    "nemotron_h_omni": PictureForm(has_rope=True, has_table=True),
}
"""For each model type of ``PictureDescription``, the positions of its pictures."""


@dataclass(frozen=True, kw_only=True)
class PictureDescription:
    """The encoder of pictures in an artifact, and how a picture is prepared for it.

    Attributes:
        model_type: of the whole model, which decides how pictures are cut and written into a text.
        placeholder: the token that stands for a picture in the text of a chat template, and for each of its rows.
        patch_size: pixels along a side of a patch.
        merge: patches along a side of the square that becomes one token.
        position_side: learned positions along a side; they are interpolated to the patches of a picture. If they are looked up:
            the most rows or columns of patches that a picture has.
        budgets: most tokens of each method of the encoder, ascending.
        min_tokens, max_tokens: of a picture that is not cut into tiles, as the model was trained.
        tile_size: pixels along a side of a tile.
        min_tiles, max_tiles: of a large picture; 1 and 1 if none is cut into tiles.
        tolerance: a picture is large if it has this many times the pixels of max_tokens.
        thumbnail: a small copy of the whole picture follows its tiles.
        marks: special tokens are around a picture and before each of its tiles.
        bidirectional: the rows of a picture see each other in attention layers, of some models in those with a window alone.
    """

    model_type: Literal["lfm2_vl", "lfm3_vl", "qwen3_5", "gemma3", "gemma4", "glm5_next", "nemotron_h_omni"]
    placeholder: int
    patch_size: int
    merge: int
    position_side: int
    budgets: tuple[int, ...]
    min_tokens: int
    max_tokens: int
    tile_size: int
    min_tiles: int
    max_tiles: int
    tolerance: float
    thumbnail: bool
    marks: bool
    bidirectional: bool = False

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def unit(self) -> int:
        """Return the pixels along a side of the square that becomes one token."""
        return self.patch_size * self.merge

    @property
    def methods(self) -> dict[str, int]:
        """Return the methods of the encoder, with the most tokens of each."""
        *shorter, longest = self.budgets
        return {"vision_encoder": longest} | {f"vision_encoder_{tokens}": tokens for tokens in shorter}

    @property
    def form(self) -> PictureForm:
        """Return the positions of patches and rows."""
        return replace(FORMS[self.model_type], is_bidirectional=self.bidirectional)

    def rows(self, prefill_chunk: int) -> int:
        """Return the rows of one call of ``prefill_embeddings``: those of a whole picture if they see each other."""
        return self.budgets[-1] if self.bidirectional else prefill_chunk

    @property
    def seeing(self) -> Literal["windows", "everywhere"] | None:
        """Return in which layers the rows of a picture see each other."""
        return ("everywhere" if self.form.in_all_layers else "windows") if self.bidirectional else None

    @property
    def constants(self) -> dict[str, list[int]]:
        """Return the constant methods by which the core prepares pictures."""
        numbers = [self.patch_size, self.merge, self.position_side, self.placeholder, *self.budgets]
        others = {} if self.form == PictureForm() else {VISION_FORM: self.form.constants}
        return {VISION: numbers, **others}


@dataclass(frozen=True)
class StockSizes:
    """The most that the methods for ExecuTorch's MultimodalRunner take in one call.

    tokens: of a text, or rows of a picture. squares: along a side of the largest picture for which memory is planned, each of
    them one token; one that is longer but not larger is taken as well.
    """

    tokens: int
    squares: int

    @classmethod
    def of(cls, options: ExportOptions, pictures: PictureDescription | None) -> StockSizes | None:
        """Return those of an artifact; None if that runner cannot run it.

        It knows positions on one axis alone, gives the text model no ids beside embeddings, and does not say which of them are
        a picture's.
        """
        if pictures is None or options.kernels != "llm" or pictures.model_type not in ("lfm2_vl", "lfm3_vl"):
            return None
        most = pictures.budgets[-1]
        return cls(min(options.max_seq_len, max(MOST_STOCK_TOKENS, most)), 2 * math.isqrt(most - 1) + 2)


MOST_STOCK_TOKENS = 2048
"""Tokens for which memory is planned in one call; a runner's text may be as long as the context in several."""


def check_pictures(pictures: PictureDescription, vocab_size: int) -> None:
    """Raise ValueError for numbers that no encoder has, before anything is allocated by them."""
    limits = {
        "patch_size": (1, LARGEST_PATCH),
        "merge": (1, LARGEST_MERGE),
        "position_side": (1, LARGEST_TABLE if pictures.form.has_table else LARGEST_SIDE),
        "placeholder": (0, vocab_size - 1),
        "min_tokens": (1, MOST_IMAGE_TOKENS),
        "max_tokens": (pictures.min_tokens, MOST_IMAGE_TOKENS),
        "tile_size": (1, 4096),
        "min_tiles": (1, 256),
        "max_tiles": (pictures.min_tiles, 256),
        "tolerance": (0.1, 100),
    }
    for name, (lowest, highest) in limits.items():
        if not lowest <= (value := getattr(pictures, name)) <= highest:
            raise ValueError(f"the pictures' {name} is {value}, not {lowest} to {highest}")
    if pictures.bidirectional and not pictures.form.has_table:
        raise ValueError(f"rows of {pictures.model_type} pictures do not see each other")
    budgets = pictures.budgets
    if not 1 <= len(budgets) <= MOST_LENGTHS or list(budgets) != sorted(set(budgets)):
        raise ValueError("the pictures' budgets are not different numbers in order")
    if not 1 <= budgets[0] <= budgets[-1] <= MOST_IMAGE_TOKENS:
        raise ValueError(f"the pictures' budgets are {list(budgets)}, not 1 to {MOST_IMAGE_TOKENS} tokens")
    tiles = (pictures.tile_size // pictures.unit) ** 2
    if pictures.max_tiles > 1 and (pictures.tile_size % pictures.unit or not tiles or tiles > budgets[-1]):
        raise ValueError(f"a tile of {pictures.tile_size} pixels is none that the encoder takes")
