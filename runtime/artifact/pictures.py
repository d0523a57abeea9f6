"""The pictures that an artifact takes, as its manifest describes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from hybridge.runtime.artifact.options import MOST_LENGTHS, STRICT, ExportOptions

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
