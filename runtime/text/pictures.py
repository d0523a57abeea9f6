"""Prepare pictures for a model: decode a file, resize, cut into tiles, and put the ids of all parts into a prompt.

Decoding and resizing are Pillow's, which is an extra. Sizes and tiles are those of transformers' processor of each model type.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import PictureError
from hybridge.runtime.artifacts.options import PictureDescription
from hybridge.runtime.core.model import Model
from hybridge.runtime.core.pictures import Picture, check_takes_pictures
from hybridge.runtime.core.tokenizer import Tokenizer
from hybridge.runtime.files import read_regular

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Formats that are decoded; of several frames the first one."""
MOST_BYTES = 64 << 20
"""Bytes of a picture's file."""
MOST_PIXELS = 1 << 26
"""Pixels of a picture, which are looked at before any is decoded: 8192 x 8192."""
DATA_URL = "data:"


@dataclass(frozen=True)
class PreparedPicture:
    """A picture for the texts of a model's sessions, open as long as this object lives.

    placeholder: the token that stands for it in the text of a chat template; data: its file; ids: of all its parts, with the
    tokens around them; parts: as the encoder takes them; rows, columns: of its tiles, 1 and 1 for a picture in one part.
    """

    placeholder: int
    data: bytes
    ids: list[int]
    parts: list[Picture]
    rows: int
    columns: int

    @property
    def saved(self) -> bytes:
        """Return its file in base64, by which a saved conversation opens it again."""
        return base64.b64encode(self.data)

    @property
    def encodings(self) -> int:
        """Return how often its parts were encoded, all together."""
        return sum(part.encodings for part in self.parts)


class PictureProcessor:
    """Prepares pictures for one model."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        """Raise PictureError for a model without pictures, or a tokenizer without the tokens around them."""
        check_takes_pictures(model)
        assert model.manifest.pictures is not None
        self.model, self.description = model, model.manifest.pictures
        self._marks = _Marks(tokenizer) if self.description.marks else None

    def prepare(self, data: bytes) -> PreparedPicture:
        """Prepare a picture of a file's bytes.

        Raises PictureError if it cannot be decoded, has too many pixels, or is too long and narrow for the model.
        """
        layout = LAYOUTS[self.description.model_type](decode(data), self.description)
        parts = [Picture(self.model, each) for each in layout.parts]
        ids = list(self._ids(layout, parts))
        return PreparedPicture(self.description.placeholder, data, ids, parts, layout.rows, layout.columns)

    def read(self, path: Path) -> PreparedPicture:
        """Prepare a picture of a file. Raises PictureError as ``prepare`` does, and if it cannot be read."""
        try:
            data = read_regular(path, MOST_BYTES)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PictureError(f"{path} cannot be read ({reason}); give the file of a picture.") from None
        try:
            return self.prepare(data)
        except PictureError as error:
            raise PictureError(f"{path}: {error}") from None

    def _ids(self, layout: Layout, parts: Sequence[Picture]) -> Iterator[int]:
        marks = self._marks
        if marks is None:
            yield from (row for part in parts for row in part.ids)
            return
        yield marks.begin
        for place, part in enumerate(parts):
            if layout.is_tiled:
                row, column = divmod(place, layout.columns)
                yield marks.thumbnail if row == layout.rows else marks.tile(row, column)
            yield from part.ids
        yield marks.end


def with_pictures(tokens: Sequence[int], pictures: Sequence[PreparedPicture]) -> list[int]:
    """Return tokens with the ids of a picture in place of each placeholder, in order.

    Without pictures a placeholder stays a token. Raises PictureError if there are other numbers of placeholders and pictures.
    """
    placeholder = pictures[0].placeholder if pictures else -1
    places = tokens.count(placeholder)
    if places != len(pictures):
        raise PictureError(
            f"the chat template made {places} places for {len(pictures)} pictures: it writes them otherwise, or not at all."
        )
    following, ids = iter(pictures), list[int]()
    for token in tokens:
        ids += next(following).ids if token == placeholder else [token]
    return ids


def expanded(tokens: Sequence[int], pictures: Sequence[PreparedPicture]) -> list[int]:
    """Return for each number of leading tokens, 0 to all, how many ids ``with_pictures`` makes of them."""
    placeholder, lengths = (pictures[0].placeholder if pictures else -1), iter(len(each.ids) for each in pictures)
    return list(accumulate((next(lengths) if token == placeholder else 1 for token in tokens), initial=0))


def data_of_url(url: str) -> bytes:
    """Return the bytes of a ``data:`` URL in base64. Raises PictureError for anything else."""
    head, comma, body = url[len(DATA_URL) :].partition(",") if url[: len(DATA_URL)].lower() == DATA_URL else ("", "", "")
    if not comma or not head.lower().endswith(";base64"):
        raise PictureError("a picture's URL must be its data, such as data:image/jpeg;base64,…; others are not fetched.")
    if len(body) > MOST_BYTES * 4 // 3 + 4:
        raise PictureError(f"a picture has more than {MOST_BYTES >> 20} MB; make it smaller.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise PictureError("a picture's data is not base64; encode its file anew.") from None


def decode(data: bytes) -> Image:
    """Return the first frame of a picture's file upright and in RGB, as transformers' ``load_image`` does.

    Alpha is dropped, and grey and CMYK are converted by Pillow. Raises PictureError.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise PictureError("pictures need Pillow, which is not installed: pip install 'hybridge[images]'.") from None
    if not data:
        raise PictureError("the picture's file is empty.")
    if len(data) > MOST_BYTES:
        raise PictureError(f"the picture's file has more than {MOST_BYTES >> 20} MB; make it smaller.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures, for which there is a limit below
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MOST_PIXELS:
                    raise PictureError(
                        f"the picture has {width} x {height} pixels, and more than {MOST_PIXELS:,} are not decoded; make it "
                        "smaller."
                    )
                opened.load()
                return ImageOps.exif_transpose(opened).convert("RGB")
    except PictureError:
        raise
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise PictureError(f"this is no picture, or of another format than {kinds}; convert it.") from None
    except Exception as error:  # whatever a damaged file makes a decoder run into
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise PictureError(f"the picture is damaged or only a part of it is there ({reason}); get its file again.") from None


# The parts of a picture, by model type


@dataclass(frozen=True)
class Layout:
    """The parts of a picture uint8 [height, width, 3]: one, or the tiles in rows and perhaps a small copy of the whole."""

    parts: list[NDArray[np.uint8]]
    rows: int = 1
    columns: int = 1

    @property
    def is_tiled(self) -> bool:
        return self.rows * self.columns > 1


class _Marks:
    """Ids of the tokens around the parts of a picture."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.begin, self.end = self._id("<|image_start|>"), self._id("<|image_end|>")
        self.thumbnail = self._id("<|img_thumbnail|>")

    def tile(self, row: int, column: int) -> int:
        """Return the token before a tile, counted from 0."""
        return self._id(f"<|img_row_{row + 1}_col_{column + 1}|>")

    def _id(self, text: str) -> int:
        found = self._tokenizer.token_to_id(text)
        if found is None:
            raise PictureError(
                f"the artifact's tokenizer has no {text}, which belongs to its pictures; export the model with its own one."
            )
        return found


def lfm2_vl_layout(image: Image, description: PictureDescription) -> Layout:
    """Cut a picture as LFM2-VL's processor does: a large one into tiles and a small copy, others in one part.

    Source: transformers 5.23 ``Lfm2VlImageProcessor``; its order of equally good grids is kept, too. Raises PictureError.
    """
    width, height = image.size
    whole = _whole_size(width, height, description, least=description.unit)
    if description.max_tiles == 1 or not _is_large(width, height, description):
        return Layout([_resized(image, *whole)])
    columns, rows = _grid(width, height, description)
    side = description.tile_size
    large = _resized(image, columns * side, rows * side)
    tiles = [
        large[row * side : (row + 1) * side, column * side : (column + 1) * side]
        for row in range(rows)
        for column in range(columns)
    ]
    if description.thumbnail and len(tiles) > 1:
        tiles.append(_resized(image, *whole))
    return Layout(tiles, rows, columns)


MOST_UNEQUAL = 200
"""Times that one side of a picture may be the other: Qwen3.5's processor refuses more."""


def merged_layout(image: Image, description: PictureDescription) -> Layout:
    """Resize a picture as Qwen3.5's and LFM3-VL's processor does, to one part. Raises PictureError.

    Source: transformers 5.23 ``Qwen2VLImageProcessorPil``, which lets Pillow resize, too.
    """
    width, height = image.size
    if max(width, height) > MOST_UNEQUAL * min(width, height):
        raise _too_narrow(width, height, f"one side is more than {MOST_UNEQUAL} times the other")
    from PIL.Image import Resampling

    resized = image.resize(_whole_size(width, height, description, least=0), Resampling.BICUBIC)
    return Layout([np.asarray(resized, np.uint8)])


def _whole_size(width: int, height: int, description: PictureDescription, *, least: int) -> tuple[int, int]:
    """Return width and height of a picture in one part, multiples of the encoder's unit. Raises PictureError.

    least: of a side that is not resized to fewer or more pixels; 0 makes such a picture larger.
    """
    unit = description.unit
    fewest, most = (tokens * unit**2 for tokens in (description.min_tokens, description.max_tokens))
    sides = [max(least, round(side / unit) * unit) for side in (width, height)]
    if math.prod(sides) > most:
        shrink = math.sqrt(width * height / most)
        sides = [max(unit, math.floor(side / shrink / unit) * unit) for side in (width, height)]
    elif math.prod(sides) < fewest:
        grow = math.sqrt(fewest / (width * height))
        sides = [math.ceil(side * grow / unit) * unit for side in (width, height)]
    tokens = math.prod(sides) // unit**2
    if tokens > description.budgets[-1]:
        most_tokens = description.budgets[-1]
        raise _too_narrow(width, height, f"it would take {tokens} tokens at once, and the encoder takes {most_tokens}")
    return sides[0], sides[1]


def _too_narrow(width: int, height: int, reason: str) -> PictureError:
    return PictureError(
        f"a picture of {width} x {height} pixels is too long and narrow: {reason}; crop it, or resize it to sides less unequal."
    )


def _is_large(width: int, height: int, description: PictureDescription) -> bool:
    unit = description.unit
    area = math.prod(max(description.patch_size, round(side / unit) * unit) for side in (width, height))
    return area > description.max_tokens * unit**2 * description.tolerance


def _grid(width: int, height: int, description: PictureDescription) -> tuple[int, int]:
    """Return columns and rows of tiles whose shape is nearest to the picture's."""
    fewest, most = description.min_tiles, description.max_tiles
    numbers = range(fewest, most + 1)
    grids = {(w, h) for n in numbers for w in range(1, n + 1) for h in range(1, n + 1) if fewest <= w * h <= most}
    best, nearest = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        away = abs(width / height - columns / rows)
        enough = width * height > 0.5 * description.tile_size**2 * columns * rows
        if away < nearest or (away == nearest and enough):
            best, nearest = (columns, rows), away
    return best


def _resized(image: Image, width: int, height: int) -> NDArray[np.uint8]:
    """Return pixels uint8 [height, width, 3], resized bilinearly with antialiasing, as PyTorch does it by float32.

    Pillow rounds between the two directions, which makes a difference of 2 in some pixels.
    """
    pixels = np.asarray(image, np.uint8)
    across = _interpolated(pixels.transpose(1, 0, 2), width).transpose(1, 0, 2)
    return np.rint(_interpolated(np.ascontiguousarray(across), height)).clip(0, 255).astype(np.uint8)


def _interpolated(lines: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Return float32 [count, n, 3] of lines [L, n, 3]: each a weighted mean of the lines that its place covers."""
    length = len(lines)
    scale = length / count
    reach = max(scale, 1.0)
    centers = (np.arange(count) + 0.5) * scale
    first = np.maximum(centers - reach + 0.5, 0).astype(np.intp)
    behind = np.minimum(centers + reach + 0.5, length).astype(np.intp)
    places = first[:, None] + np.arange((behind - first).max())
    weights = np.maximum(0, 1 - np.abs((places - centers[:, None] + 0.5) / reach)) * (places < behind[:, None])
    weights = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    places = np.minimum(places, length - 1)
    found = np.zeros((count, *lines.shape[1:]), np.float32)
    for tap in range(places.shape[1]):
        found += weights[:, tap, None, None] * lines[places[:, tap]]
    return found


LAYOUTS: Mapping[str, Callable[[Image, PictureDescription], Layout]] = {
    "lfm2_vl": lfm2_vl_layout,
    "lfm3_vl": merged_layout,
    "qwen3_5": merged_layout,
}
"""For each model type of ``PictureDescription``, how a picture is cut."""
