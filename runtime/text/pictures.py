"""Pictures for a model from files: decoded here, resized and cut by the core, and their ids put into a prompt.

Decoding is Pillow's, which is an extra.
"""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from collections.abc import Sequence
from itertools import accumulate, product
from pathlib import Path
from typing import TYPE_CHECKING

from hybridge.errors import PictureError
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.pictures import Picture, describe_pictures
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.files import read_regular

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Formats that are decoded; of several frames the first one."""
MOST_BYTES = 64 << 20
"""Bytes of a picture's file."""
MOST_PIXELS = 1 << 26
"""Pixels of a picture, which are looked at before any is decoded: 8192 x 8192."""
COPIED_PIXELS = 1 << 20
"""Pixels that are converted at once, which takes some MB beside the picture."""
DATA_URL = "data:"


class PictureProcessor:
    """Prepares pictures for one model."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        """Raise PictureError for a model without pictures, or a tokenizer without the tokens around them."""
        describe_pictures(model, tokenizer)
        self.model = model

    def prepare(self, data: bytes) -> Picture:
        """Prepare a picture of a file's bytes.

        Raises PictureError if it cannot be decoded, has too many pixels, or is too long and narrow for the model.
        """
        return Picture(self.model, decode(data))

    def read(self, path: Path) -> Picture:
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


def with_pictures(tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
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


def expanded(tokens: Sequence[int], pictures: Sequence[Picture]) -> list[int]:
    """Return for each number of leading tokens, 0 to all, how many ids ``with_pictures`` makes of them."""
    placeholder, lengths = (pictures[0].placeholder if pictures else -1), iter(len(each.ids) for each in pictures)
    return list(accumulate((next(lengths) if token == placeholder else 1 for token in tokens), initial=0))


def data_of_url(url: str) -> bytes:
    """Return the bytes of a ``data:`` URL in base64. Raises PictureError for anything else, such as an address."""
    head, comma, body = url[len(DATA_URL) :].partition(",") if url[: len(DATA_URL)].lower() == DATA_URL else ("", "", "")
    if not comma or not head.lower().endswith(";base64"):
        raise PictureError(
            "a picture's URL must be its data, such as data:image/jpeg;base64,…; addresses of http:// and https:// are fetched "
            "by 'hybridge serve --allow-remote-images' alone."
        )
    if len(body) > MOST_BYTES * 4 // 3 + 4:
        raise PictureError(f"a picture has more than {MOST_BYTES >> 20} MB; make it smaller.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise PictureError("a picture's data is not base64; encode its file anew.") from None


def decode(data: bytes) -> NDArray[np.uint8]:
    """Return the first frame of a picture's file upright and in RGB [height, width, 3], as transformers' ``load_image`` does.

    Alpha is dropped, and grey and CMYK are converted by Pillow. It takes 7 bytes for each pixel, and 8 for one that lies on its
    side. Raises PictureError.
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
                ImageOps.exif_transpose(opened, in_place=True)
                return _in_rgb(opened)
    except PictureError:
        raise
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise PictureError(f"this is no picture, or of another format than {kinds}; convert it.") from None
    except Exception as error:  # whatever a damaged file makes a decoder run into
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise PictureError(f"the picture is damaged or only a part of it is there ({reason}); get its file again.") from None


def _in_rgb(image: Image) -> NDArray[np.uint8]:
    """Return the pixels of an image, converted part by part: the whole of it would be there twice more."""
    import numpy as np

    width, height = image.size
    across = max(1, min(width, COPIED_PIXELS))
    down = max(1, COPIED_PIXELS // across)
    rgb = np.empty((height, width, 3), np.uint8)
    for top, left in product(range(0, height, down), range(0, width, across)):
        part = image.crop((left, top, min(left + across, width), min(top + down, height)))
        rgb[top : top + down, left : left + across] = np.asarray(part.convert("RGB"))
    return rgb
