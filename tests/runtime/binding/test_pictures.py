"""A session reads pictures: the whole model's own logits, ids by pixels, and each picture encoded once."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import forge
from numpy.typing import NDArray
from picture_reference import UNIT, rgb, whole_logits

from hybridge.errors import ArtifactError, CapacityError, PictureError, StateFileError, TokenError
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.drafters import DraftModel, PromptLookup
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.prompt_prefill import PromptPrefill, bring_to
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.session import Session

WORDS = [60, 61, 62, 63]


@pytest.fixture(scope="module")
def model(pictures_artifact: Path) -> Model:
    return Session.load(pictures_artifact).model


@pytest.mark.parametrize(
    "sizes", [[(1, 1)], [(3, 2)], [(4, 4)], [(1, 16)], [(16, 1)], [(3, 2), (2, 5)], [(1, 1), (4, 4), (1, 1)]]
)
def test_logits_are_the_whole_models(pictures_checkpoint: Path, session: Session, sizes: list[tuple[int, int]]) -> None:
    pixels = [rgb(*size, seed) for seed, size in enumerate(sizes)]
    pictures = [Picture(session.model, each, prepared=True) for each in pixels]
    text = [1, *pictures[0].ids, *WORDS, *(row for each in pictures[1:] for row in each.ids), 70]
    got = session.prefill(text)
    want = whole_logits(pictures_checkpoint, [1, pixels[0], *WORDS, *pixels[1:], 70])
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())
    assert session.tokens == text
    assert session.length == len(text)


def test_a_picture_at_the_first_position_and_a_verify_behind_it(pictures_checkpoint: Path, session: Session) -> None:
    pixels = rgb(3, 3)
    picture = Picture(session.model, pixels, prepared=True)
    session.prefill_image(picture)
    logits = session.verify(WORDS)
    for count in range(1, 5):
        want = whole_logits(pictures_checkpoint, [pixels, *WORDS[:count]])
        np.testing.assert_allclose(logits[count - 1], want, atol=2e-5 * np.abs(want).max())
    session.commit(2)
    want = whole_logits(pictures_checkpoint, [pixels, *WORDS[:2], 77])
    np.testing.assert_allclose(session.decode(77), want, atol=2e-5 * np.abs(want).max())


def test_other_pixels_are_other_ids(model: Model) -> None:
    pixels = rgb(2, 3)
    other = pixels.copy()
    other[7, 5, 1] ^= 1
    turned = pixels.reshape(3 * UNIT, 2 * UNIT, 3)  # the same bytes in another shape
    ids = [Picture(model, each, prepared=True).ids for each in (pixels, other, turned)]
    assert len({*ids[0], *ids[1], *ids[2]}) == 18
    assert all(row < 0 for each in ids for row in each)
    assert Picture(model, pixels, prepared=True).ids == ids[0]


def test_ids_are_made_of_a_sha256(model: Model) -> None:
    for rows, columns in ((1, 1), (2, 5), (4, 4)):
        pixels = rgb(rows, columns)
        digest = hashlib.sha256(f"{columns * UNIT}x{rows * UNIT} ".encode() + pixels.tobytes()).digest()
        words = struct.unpack("<4Q", digest)
        want = [-1 - ((words[row % 4] + row // 4 * 0x9E3779B97F4A7C15) % 2**64 >> 1) for row in range(rows * columns)]
        assert Picture(model, pixels, prepared=True).ids == want


def test_a_picture_is_encoded_once_while_it_is_open(session: Session) -> None:
    picture = Picture(session.model, rgb(2, 2, 5), prepared=True)
    again = Picture(session.model, rgb(2, 2, 5), prepared=True)
    first = session.prefill(picture.ids)
    session.reset()
    np.testing.assert_array_equal(session.prefill(again.ids), first)
    np.testing.assert_array_equal(Session(session.model).prefill(picture.ids), first)
    assert (picture.encodings, again.encodings) == (1, 1)


def test_checkpoints_know_pictures_by_their_pixels(session: Session) -> None:
    first, second = (Picture(session.model, rgb(2, 2, seed), prepared=True) for seed in (1, 2))
    cache = PrefixCache(session.model)
    texts = [[1, *picture.ids, *WORDS] for picture in (first, second)]
    assert bring_to(session, texts[0], cache) == 0
    assert bring_to(session, texts[1], cache) == 0  # the same tokens around another picture
    session.reset()
    first.close()
    assert bring_to(session, [*texts[0], 80, 81], cache) == len(texts[0])  # read without its picture
    assert second.encodings == 1


def test_no_chunk_ends_inside_a_picture(session: Session) -> None:
    picture = Picture(session.model, rgb(4, 4, 3), prepared=True)
    text = [*([60] * 11), *picture.ids, *([61] * 20)]
    cache = PrefixCache(session.model)
    reading = PromptPrefill(session, text, cache, marks=[13, 30])
    lengths = [session.length for _ in reading.steps()]
    assert all(length <= 11 or length >= 11 + 16 for length in lengths)
    assert lengths[-1] == len(text)
    logits = Session(session.model).prefill(text)
    session.reset()
    np.testing.assert_allclose(session.prefill(text), logits, atol=1e-6)
    assert cache.find(text[:27]) is not None
    assert cache.find(text[:26]) is None


def test_states_come_back_without_their_pictures(session: Session, tmp_path: Path) -> None:
    picture = Picture(session.model, rgb(3, 2, 4), prepared=True)
    text = [1, *picture.ids, *WORDS]
    session.prefill(text)
    session.snapshot(0)
    want = session.decode(70)
    session.save(tmp_path / "state")
    kept = session.checkpoint()
    picture.close()
    session.restore(0)
    np.testing.assert_array_equal(session.decode(70), want)
    other = Session(session.model)
    other.resume(kept)
    assert other.tokens == [*text, 70]
    assert other.load_state(tmp_path / "state") == len(text) + 1
    other.restore(0)
    np.testing.assert_array_equal(other.decode(70), want)
    parts = [kept.part(place) for place in range(len(kept.parts()))]
    assert other.resume(other.read_checkpoint(parts)) == len(text) + 1


@pytest.mark.parametrize("drafter", ["lookup", "model"])
def test_drafters_pass_pictures_by(session: Session, pictures_artifact: Path, drafter: str) -> None:
    picture = Picture(session.model, rgb(2, 2, 6), prepared=True)
    # The text ends as it was before the picture: what came next there are rows, which are none to propose.
    prompt = [*WORDS, *picture.ids, 90, 91, *WORDS]
    options = {"max_new_tokens": 20, "eos_ids": [], "sampling": Sampling(repetition_penalty=1.3)}
    plain = list(session.generate(prompt, **options))
    session.reset()
    chosen = (
        PromptLookup()
        if drafter == "lookup"
        else DraftModel.load(pictures_artifact, open_artifact(pictures_artifact), session.model)
    )
    assert list(session.generate(prompt, drafter=chosen, block_length=4, **options)) == plain


def test_what_is_refused_changes_nothing(session: Session) -> None:
    picture, closed = Picture(session.model, rgb(2, 2, 7), prepared=True), Picture(session.model, rgb(2, 2, 8), prepared=True)
    gone = closed.ids
    closed.close()
    session.prefill([1, 2, 3])
    before = session.state()
    for text in (picture.ids[:-1], picture.ids[1:], [*picture.ids, *picture.ids[:2]], gone, [*picture.ids, *gone]):
        with pytest.raises(PictureError, match="open the picture again"):
            session.prefill(text)
    with pytest.raises(PictureError, match="open the picture again"):
        list(session.generate([*gone, 5], max_new_tokens=3))
    with pytest.raises(TokenError):
        session.verify(picture.ids[:1])
    with pytest.raises(TokenError):
        session.decode(picture.ids[0])
    with pytest.raises(CapacityError):
        session.prefill(picture.ids * 60)
    assert session.tokens == [1, 2, 3]
    for name, buffer in session.state().items():
        np.testing.assert_array_equal(buffer, before[name], err_msg=name)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((0, 8, 3), np.uint8),
        np.zeros((9, 8, 3), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 3), np.float32),
        np.zeros((8 * 17, 8, 3), np.uint8),
        np.zeros((40, 40, 3), np.uint8),
    ],
)
def test_pixels_that_the_encoder_does_not_take(model: Model, pixels: NDArray[Any]) -> None:
    with pytest.raises(PictureError):
        Picture(model, pixels, prepared=True)


def test_a_model_without_pictures(kernels_artifact: Path) -> None:
    session = Session.load(kernels_artifact)
    with pytest.raises(PictureError, match="takes no pictures"):
        Picture(session.model, rgb(1, 1), prepared=True)
    with pytest.raises(TokenError, match="outside the vocabulary"):
        session.prefill([1, -7])


def test_a_saved_state_with_rows_is_refused_by_a_model_without_pictures(
    session: Session, kernels_artifact: Path, tmp_path: Path
) -> None:
    session.prefill_image(Picture(session.model, rgb(1, 1), prepared=True))
    session.save(tmp_path / "state")
    with pytest.raises(StateFileError):
        Session.load(kernels_artifact).load_state(tmp_path / "state")


def test_the_manifest_describes_the_encoder(pictures_artifact: Path) -> None:
    pictures = json.loads((pictures_artifact / "manifest.json").read_text())["pictures"]
    assert (pictures["placeholder"], pictures["patch_size"], pictures["merge"], pictures["budgets"]) == (5, 4, 2, [6, 16])


@pytest.mark.parametrize("change", ["left out", "another unit", "another budget", "no order", "a placeholder beyond"])
def test_a_manifest_that_describes_another_encoder(pictures_artifact: Path, tmp_path: Path, change: str) -> None:
    folder = Path(shutil.copytree(pictures_artifact, tmp_path / "artifact"))

    def forged(content: dict[str, Any]) -> None:
        pictures = content["pictures"]
        match change:
            case "left out":
                content["pictures"] = None
                for name in [name for name in content["methods"] if "vision" in name or "embeddings" in name]:
                    del content["methods"][name]
            case "another unit":
                pictures |= {"patch_size": 8, "merge": 1}
            case "another budget":
                pictures["budgets"] = [6, 17]
            case "no order":
                pictures["budgets"] = [16, 6]
            case "a placeholder beyond":
                pictures["placeholder"] = 340

    forge(folder, forged)
    with pytest.raises(ArtifactError):
        Session.load(folder)
