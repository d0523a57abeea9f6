"""Pictures that a model has taken in: ids for a text, one for each of their rows, and pixels until these are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int64, c_size_t
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import TypeAdapter

from hybridge.errors import PictureError
from hybridge.runtime.artifact.pictures import PictureDescription
from hybridge.runtime.binding.interface import EncodedStruct, PicturedStruct, PictureHandle
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.model import Owned

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray

    from hybridge.runtime.binding.model import Model
    from hybridge.runtime.binding.tokenizer import Tokenizer


@runtime_checkable
class HasIds(Protocol):
    """A picture as a session reads it: its ids, with the tokens around it if there are any."""

    @property
    def ids(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class EncodedPart:
    """A part of a picture. rgb: uint8 [height, width, 3], as the encoder takes it; embeddings: float32 [rows, hidden]."""

    rgb: NDArray[np.uint8]
    embeddings: NDArray[np.float32] | None


class Picture(Owned):
    """A picture for the texts of all sessions of a model, until it is closed.

    ids: below 0 and made of the SHA-256 of its prepared pixels, with tokens before and between them for a picture that is cut
    into tiles. They go among the tokens of a prompt, all of them together. rows, columns: of its tiles, 1 and 1 for a picture
    in one part; parts: how many it has, with the small copy of the whole. The first prefill encodes the parts; while the
    picture is open they are encoded once, and not at all for a text that a session or a checkpoint has read.
    """

    handle: PictureHandle

    def __init__(self, model: Model, rgb: NDArray[np.uint8], *, prepared: bool = False) -> None:
        """Take in pixels uint8 [height, width, 3], which the core resizes and cuts as the model's processor does.

        Args:
            model: it was told how its pictures are prepared (``describe_pictures``).
            rgb: of any size.
            prepared: take them as they are, in one part with nothing around it; sides are multiples of the model's unit.

        Raises:
            PictureError: the model takes no pictures, or none of this size.
        """
        import numpy as np

        check_takes_pictures(model)
        if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
            raise PictureError(f"pixels of {rgb.dtype} {list(rgb.shape)} are no picture; give uint8 [height, width, 3].")
        height, width = rgb.shape[:2]
        handle, pixels = PictureHandle(), np.ascontiguousarray(rgb)
        call = "picture_open_prepared" if prepared else "picture_open"
        run(call, model.handle, pixels.ctypes.data, width, height, byref(handle))
        super().__init__(handle, "picture_close")
        self.placeholder = model.placeholder
        self.ids, opened = self._read()
        self.parts, self.rows, self.columns = opened.parts, opened.rows, opened.columns

    @property
    def encodings(self) -> int:
        """Return how often its parts were encoded, all together."""
        encodings: int = self._read()[1].encodings
        return encodings

    def part(self, number: int) -> EncodedPart:
        """Return a part, with its embeddings once it was encoded. Raises UsageError if there is none of this number."""
        from numpy.ctypeslib import as_array

        found = EncodedStruct()
        run("picture_part", self.handle, number, byref(found))
        rgb = as_array(found.rgb, (found.height, found.width, 3)).copy()
        if not found.hidden:
            return EncodedPart(rgb, None)
        return EncodedPart(rgb, as_array(found.embeddings, (found.rows, found.hidden)).copy())

    def _read(self) -> tuple[list[int], PicturedStruct]:
        count, pictured = c_size_t(), PicturedStruct()
        run("picture_ids", self.handle, None, 0, byref(count), byref(pictured))
        ids = (c_int64 * count.value)()
        run("picture_ids", self.handle, ids, count.value, byref(count), None)
        return list(ids), pictured


def describe_pictures(model: Model, tokenizer: Tokenizer) -> None:
    """Tell a model how its pictures are prepared, as its manifest says.

    Raises PictureError for a model without pictures, or a tokenizer without the tokens around them.
    """
    check_takes_pictures(model)
    assert model.manifest.pictures is not None
    json = TypeAdapter(PictureDescription).dump_json(model.manifest.pictures)
    run("model_pictures", model.handle, tokenizer.handle, json, len(json))


def check_takes_pictures(model: Model) -> None:
    """Raise PictureError for a model without an encoder of pictures."""
    if not model.picture_unit:
        raise PictureError(
            "this artifact takes no pictures: it has the text model alone. Export a checkpoint with an encoder that hybridge "
            "exports (docs/images.md), without --no-images."
        )


def behind_picture(tokens: Sequence[int], end: int) -> int:
    """Return ``end``, or the end of a picture's rows around it: a text is not to be cut inside a picture."""
    while 0 < end < len(tokens) and tokens[end - 1] < 0 and tokens[end] < 0:
        end += 1
    return end
