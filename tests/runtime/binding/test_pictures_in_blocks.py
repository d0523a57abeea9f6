"""Pictures whose rows see each other, which one call reads: the whole model's own logits, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from picture_reference import rgb, whole_logits
from public_folders import GEMMA_SPECIAL, save_gemma4
from store import exported

from hybridge.errors import HybridgeError
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Session

BEGIN, END, ROW = (GEMMA_SPECIAL.index(name) for name in ("<|image>", "<image|>", "<|image|>"))
UNIT = 12
WORDS = [60, 61, 62, 63]
Pixels = NDArray[np.uint8]
Sizes = list[tuple[int, int]]


@pytest.fixture(scope="module")
def model(block_artifact: Path) -> Model:
    return Session.load(block_artifact).model


@pytest.fixture
def session(model: Model) -> Session:
    return Session(model)


def close(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def compare(session: Session, checkpoint: Path, sizes: Sizes, before: list[int]) -> None:
    """Read pictures of these sizes after some tokens, and compare what follows with transformers' own forward."""
    pixels = [rgb(*size, seed, UNIT) for seed, size in enumerate(sizes)]
    pictures = [Picture(session.model, each, prepared=True) for each in pixels]
    text, wanted = [*before], list[int | Pixels](before)
    for each, picture in zip(pixels, pictures, strict=True):
        text += [BEGIN, *picture.ids, END, *WORDS]
        wanted += [BEGIN, each, END, *WORDS]
    close(session.prefill(text), whole_logits(checkpoint, wanted, UNIT))
    session.verify(WORDS)
    session.commit(2)
    close(session.decode(77), whole_logits(checkpoint, [*wanted, *WORDS[:2], 77], UNIT))


SIZES: list[Sizes] = [[(1, 1)], [(3, 2)], [(4, 5)], [(1, 20)], [(20, 1)], [(3, 2), (2, 5)], [(1, 1), (5, 4), (1, 7)]]


@pytest.mark.parametrize("sizes", SIZES)
def test_logits_are_the_whole_models(block_checkpoint: Path, session: Session, sizes: Sizes) -> None:
    compare(session, block_checkpoint, sizes, before=[50])


def test_a_picture_far_past_the_window(block_checkpoint: Path, session: Session) -> None:
    compare(session, block_checkpoint, [(4, 5), (5, 4)], before=[40 + i for i in range(70)])


@pytest.mark.slow
@pytest.mark.parametrize("verify_len", [5, pytest.param(32, marks=pytest.mark.thorough)])
def test_a_picture_larger_than_the_window(tmp_path: Path, verify_len: int) -> None:
    """Its first rows see all after them, its last ones none of the first; a block of 32 tokens fits into the ring."""
    save_gemma4(tmp_path, sliding_window=7)
    options = ExportOptions(max_seq_len=160, prefill_chunk=16, verify_len=verify_len, snapshot_slots=1)
    compare(Session.load(exported(tmp_path, options)), tmp_path, [(4, 5), (1, 3)], before=[40, 41, 42])


@pytest.mark.thorough
def test_a_window_that_no_text_outgrows(tmp_path: Path) -> None:
    save_gemma4(tmp_path, sliding_window=500)
    artifact = exported(tmp_path, ExportOptions(max_seq_len=160, prefill_chunk=16, verify_len=5, kv_cache="float16"))
    layers = open_artifact(artifact).manifest.layers
    assert [layer.kind for layer in layers] == ["sliding_attention", "full_attention"]
    compare(Session.load(exported(tmp_path, ExportOptions(max_seq_len=160))), tmp_path, [(4, 5)], before=[40, 41])


@pytest.mark.thorough
def test_rows_of_small_models_are_causal(tmp_path: Path) -> None:
    """Their layers read one more embedding of each token, which for rows of a picture is the pad token's."""
    save_gemma4(tmp_path, large=False)
    session = Session.load(exported(tmp_path, ExportOptions(max_seq_len=160, prefill_chunk=16, verify_len=5)))
    pictures = session.manifest.pictures
    assert pictures is not None
    assert not pictures.bidirectional
    assert session.manifest.methods["prefill_embeddings"].inputs[0].shape[1] == 16
    compare(session, tmp_path, [(4, 5), (2, 3)], before=[40, 41, 42])


def test_a_picture_is_read_by_one_call(session: Session) -> None:
    assert session.manifest.methods["prefill_embeddings"].inputs[0].shape[1] == 20
    picture = Picture(session.model, rgb(4, 5, unit=UNIT), prepared=True)
    session.prefill(WORDS)
    before = int(session.state()["operations"].item())
    session.prefill(picture.ids)
    assert session.state()["operations"].item() == before + 1


def test_a_picture_that_does_not_fit_changes_nothing(session: Session) -> None:
    picture, room = Picture(session.model, rgb(4, 5, unit=UNIT), prepared=True), session.max_seq_len
    session.prefill([40 + i % 50 for i in range(room - 20)])
    kept = session.checkpoint()
    want = session.decode(70)
    for text in (picture.ids, [71, *picture.ids], picture.ids[1:]):
        with pytest.raises(HybridgeError):
            session.prefill(text)
        assert session.length == room - 19
    session.resume(kept)
    np.testing.assert_array_equal(session.decode(70), want)
    session.resume(kept)
    session.prefill(picture.ids)  # the last rows of the state are free, and a whole call's after them
    assert session.length == room


def test_pictures_are_of_the_encoders_sizes(model: Model) -> None:
    assert (model.picture_unit, model.most_picture_tokens, model.placeholder) == (12, 20, ROW)
