"""Pictures of one size, whose rows see each other in every layer: the whole model's own logits, and others are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from picture_reference import rgb, whole_logits
from public_folders import GEMMA3_ROWS, GEMMA3_SPECIAL

from hybridge.errors import PictureError
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Session

BEGIN, END = (GEMMA3_SPECIAL.index(name) for name in ("<start_of_image>", "<end_of_image>"))
UNIT = 12
WORDS = [60, 61, 62, 63]


@pytest.mark.parametrize(("count", "before"), [(1, 1), (2, 3), (1, 70)])
def test_logits_are_the_whole_models(square_artifact: Path, square_checkpoint: Path, count: int, before: int) -> None:
    session = Session.load(square_artifact)
    pixels = [rgb(4, 4, seed, UNIT) for seed in range(count)]
    pictures = [Picture(session.model, each, prepared=True) for each in pixels]
    text = wanted = [40 + i for i in range(before)]
    for each, picture in zip(pixels, pictures, strict=True):
        text = [*text, BEGIN, *picture.ids, END, *WORDS]
        wanted = [*wanted, BEGIN, each, END, *WORDS]  # type: ignore[list-item]  # a picture among tokens
    for got, more in ((session.prefill(text), []), (session.decode(77), [77])):
        want = whole_logits(square_checkpoint, [*wanted, *more], UNIT)
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
    assert session.manifest.methods["prefill_embeddings"].inputs[0].shape[1] == GEMMA3_ROWS


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (2, 8), (1, 16)])
def test_pictures_of_other_sizes_are_refused(square_artifact: Path, size: tuple[int, int]) -> None:
    session = Session.load(square_artifact)
    with pytest.raises(PictureError):
        Picture(session.model, rgb(*size, unit=UNIT), prepared=True)
