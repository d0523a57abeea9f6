"""Pictures that a model has taken in: ids for a text, one for each of their rows, and pixels until these are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int64, c_size_t
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import PictureError
from hybridge.runtime.core.interface import Handle, Status
from hybridge.runtime.core.library import failure, load, run
from hybridge.runtime.core.model import Owned

if TYPE_CHECKING:
    from hybridge.runtime.core.model import Model


class HasIds(Protocol):
    """What a session reads as a picture: its ids, with the tokens around it if there are any."""

    @property
    def ids(self) -> Sequence[int]: ...


class Picture(Owned):
    """A picture of sides that the model's encoder takes, for the texts of all sessions of the model until it is closed.

    Its ids are below 0 and made of the SHA-256 of its pixels. They go among the tokens of a prompt, all of them together.
    The first prefill encodes the picture; while it is open it is encoded once, and not at all for a text that a session or
    a checkpoint has read.
    """

    def __init__(self, model: Model, rgb: NDArray[np.uint8]) -> None:
        """Take in pixels uint8 [height, width, 3]. Raises PictureError for other sides or a model without pictures."""
        check_takes_pictures(model)
        unit, most = model.picture_unit, model.most_picture_tokens
        if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
            raise PictureError(f"pixels of {rgb.dtype} {list(rgb.shape)} are no picture; give uint8 [height, width, 3].")
        height, width = rgb.shape[:2]
        handle, pixels = Handle(), np.ascontiguousarray(rgb).tobytes()
        if status := load().hybridge_picture_open(model.handle, pixels, width, height, byref(handle)):
            if status != Status.INVALID_ARGUMENT:
                raise failure("picture_open", status)
            raise PictureError(
                f"a picture of {width} x {height} pixels is none that this model's encoder takes: sides are multiples of "
                f"{unit}, and it has at most {most} squares of {unit} x {unit} pixels."
            )
        super().__init__(handle.value, "picture_close")
        self.ids = self._read()[0]

    @property
    def encodings(self) -> int:
        """Return how often the picture was encoded."""
        return self._read()[1]

    def _read(self) -> tuple[list[int], int]:
        count, encodings = c_size_t(), c_size_t()
        run("picture_ids", self.handle, None, 0, byref(count), byref(encodings))
        ids = (c_int64 * count.value)()
        run("picture_ids", self.handle, ids, count.value, byref(count), None)
        return list(ids), encodings.value


def check_takes_pictures(model: Model) -> None:
    """Raise PictureError for a model without an encoder of pictures."""
    if not model.picture_unit:
        raise PictureError(
            "this artifact takes no pictures: it has the text model alone. Export a checkpoint with an encoder that hybridge "
            "exports (docs/images.md), without --no-images."
        )


def check_open(tokens: Sequence[int]) -> None:
    """Raise PictureError for tokens that the core refused although each could be in a text, if a picture is among them."""
    if any(token < 0 for token in tokens):
        raise PictureError(
            "the text has rows of a picture that is closed, or not all of a picture's rows; open the picture again, and give "
            "all of its ids together."
        )


def behind_picture(tokens: Sequence[int], end: int) -> int:
    """Return ``end``, or the end of a picture's rows around it: a text is not to be cut inside a picture."""
    while 0 < end < len(tokens) and tokens[end - 1] < 0 and tokens[end] < 0:
        end += 1
    return end
