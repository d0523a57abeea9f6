"""Pictures in the forms of families, on three axes of rope or seen as blocks or squares: the whole model's own logits."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from picture_reference import rgb, whole_logits
from public_folders import GEMMA3_ROWS, GEMMA3_SPECIAL, GEMMA_SPECIAL, QWEN_SPECIAL, save_gemma4
from state_files import forge_state
from store import exported

from hybridge.errors import CheckpointError, HybridgeError, PictureError, StateFileError
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.drafters import OwnDrafter, PromptLookup
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.prompt_prefill import bring_to
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats

BEGIN, END, ROW = (QWEN_SPECIAL.index(name) for name in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"))
GEMMA = tuple(GEMMA_SPECIAL.index(name) for name in ("<|image>", "<image|>"))
GEMMA3 = tuple(GEMMA3_SPECIAL.index(name) for name in ("<start_of_image>", "<end_of_image>"))
UNIT, WORDS = 12, [60, 61, 62, 63]
Sizes = list[tuple[int, int]]


def close(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def compare(
    session: Session, checkpoint: Path, sizes: Sizes, marks: tuple[int, ...], before: list[int], unit: int = UNIT
) -> None:
    """Read pictures of these sizes after some tokens, and compare what follows with transformers' own forward."""
    pixels = [rgb(*size, seed, unit) for seed, size in enumerate(sizes)]
    pictures = [Picture(session.model, each, prepared=True) for each in pixels]
    text, wanted = [*before], list[int | NDArray[np.uint8]](before)
    for each, picture in zip(pixels, pictures, strict=True):
        text += [marks[0], *picture.ids, marks[1], *WORDS]
        wanted += [marks[0], each, marks[1], *WORDS]
    close(session.prefill(text), whole_logits(checkpoint, wanted, unit))
    session.verify(WORDS)
    session.commit(2)
    close(session.decode(77), whole_logits(checkpoint, [*wanted, *WORDS[:2], 77], unit))


SIZES: list[Sizes] = [[(1, 1)], [(4, 5)], [(1, 20)], [(20, 1)], [(3, 2), (2, 5)], [(1, 1), (5, 4), (1, 7)]]


@pytest.mark.parametrize("sizes", SIZES)
def test_logits_of_rows_on_three_axes(grid_checkpoint: Path, grid_artifact: Path, sizes: Sizes) -> None:
    session = Session.load(grid_artifact)
    compare(session, grid_checkpoint, sizes, (BEGIN, END), [7], unit=8)
    assert rope_delta(session) == sum(max(size) - size[0] * size[1] for size in sizes)
    assert (session.model.picture_unit, session.model.most_picture_tokens, session.model.placeholder) == (8, 20, ROW)


@pytest.mark.parametrize(("sizes", "before"), [*((sizes, 1) for sizes in SIZES), ([(4, 5), (5, 4)], 70)])
def test_logits_of_rows_that_see_each_other(block_checkpoint: Path, block_artifact: Path, sizes: Sizes, before: int) -> None:
    compare(Session.load(block_artifact), block_checkpoint, sizes, GEMMA, [40 + i for i in range(before)])


@pytest.mark.parametrize(("count", "before"), [(1, 1), (2, 3), (1, 70)])
@pytest.mark.thorough
def test_logits_of_squares(square_artifact: Path, square_checkpoint: Path, count: int, before: int) -> None:
    session = Session.load(square_artifact)
    compare(session, square_checkpoint, [(4, 4)] * count, GEMMA3, [40 + i for i in range(before)])
    assert session.manifest.methods["prefill_embeddings"].inputs[0].shape[1] == GEMMA3_ROWS
    for size in ((1, 1), (3, 4), (2, 8), (1, 16)):
        with pytest.raises(PictureError):
            Picture(session.model, rgb(*size, unit=UNIT), prepared=True)


# Rope positions on three axes: an offset that is a part of the state


@pytest.fixture
def session(grid_artifact: Path) -> Session:
    return Session.load(grid_artifact)


def rope_delta(session: Session) -> float:
    (found,) = (each for name, each in session.state().items() if name.endswith("rope_delta"))
    return float(found.item())


def test_the_offset_comes_and_goes_with_the_state(session: Session, tmp_path: Path) -> None:
    first, second = Picture(session.model, rgb(4, 3), prepared=True), Picture(session.model, rgb(2, 2, 1), prepared=True)
    session.prefill(WORDS)
    before = session.checkpoint()
    session.prefill([*first.ids, *WORDS])
    session.snapshot(0)
    session.prefill([*second.ids, 70])
    want = session.decode(71)
    session.save(tmp_path / "state")
    behind = session.checkpoint()
    assert rope_delta(session) == -8 - 2
    session.restore(0)
    assert rope_delta(session) == -8
    session.resume(before)
    assert rope_delta(session) == 0
    session.prefill([*first.ids, *WORDS, *second.ids, 70])
    np.testing.assert_array_equal(session.decode(71), want)
    other = Session(session.model)
    other.load_state(tmp_path / "state")
    assert (rope_delta(other), other.length) == (-10, session.length)
    other.restore(0)
    assert rope_delta(other) == -8
    other.resume(behind)
    other.reset()
    assert rope_delta(other) == 0
    parts = [behind.part(place) for place in range(len(behind.parts()))]
    other.resume(other.read_checkpoint(parts))
    np.testing.assert_array_equal(other.decode(72), session.decode(72))


def test_a_prefix_that_is_found_again_has_its_offset(session: Session) -> None:
    picture = Picture(session.model, rgb(3, 4, 2), prepared=True)
    cache = PrefixCache(session.model)
    text = [7, BEGIN, *picture.ids, END, *WORDS]
    bring_to(session, text, cache)
    session.reset()
    assert bring_to(session, [*text, 80, 81], cache) == len(text)
    got = session.decode(82)
    other = Session(session.model)
    other.prefill([*text, 80, 81])
    np.testing.assert_allclose(got, other.decode(82), atol=1e-5)
    assert rope_delta(session) == rope_delta(other) == -8


@pytest.mark.parametrize("drafter", ["own", "lookup"])
def test_text_behind_pictures_is_the_same_with_draft_tokens(session: Session, drafter: str) -> None:
    first, second = Picture(session.model, rgb(4, 4, 5), prepared=True), Picture(session.model, rgb(1, 9, 6), prepared=True)
    prompt = [*WORDS, BEGIN, *first.ids, END, *WORDS, BEGIN, *second.ids, END, *WORDS, *WORDS]
    plain = list(session.generate(prompt, max_new_tokens=40, eos_ids=[]))
    session.reset()
    stats = GenerationStats()
    chosen = OwnDrafter(session) if drafter == "own" else PromptLookup()
    drafted = session.generate(prompt, max_new_tokens=40, eos_ids=[], drafter=chosen, block_length=4, stats=stats)
    assert list(drafted) == plain
    assert stats.proposed > 0
    assert rope_delta(session) == -12 - 0


WRONG = [1.0, -1.5, -1000.0, float("nan"), float("-inf")]


@pytest.mark.parametrize("value", WRONG)
def test_an_offset_that_no_text_has_is_refused(session: Session, tmp_path: Path, value: float) -> None:
    picture = Picture(session.model, rgb(4, 5), prepared=True)
    session.prefill([*WORDS, *picture.ids])
    session.save(tmp_path / "state")
    own, forged = struct.pack("<f", -15.0), struct.pack("<f", value)

    def change(content: bytearray) -> None:
        place = content.find(own)
        content[place : place + 4] = forged
        assert content.find(own) < 0

    kept = session.checkpoint()
    forge_state(tmp_path / "state", change)
    with pytest.raises(StateFileError):
        session.load_state(tmp_path / "state")
    *segments, bounded = (kept.part(place) for place in range(len(kept.parts())))
    assert bounded.count(own) == 1
    with pytest.raises((StateFileError, CheckpointError, HybridgeError)):
        session.read_checkpoint([*segments, bounded.replace(own, forged)])
    assert rope_delta(session) == -15


# Rows that see each other, which one call reads


@pytest.mark.thorough
@pytest.mark.parametrize("verify_len", [5, 32])
def test_a_picture_larger_than_the_window(tmp_path: Path, verify_len: int) -> None:
    """Its first rows see all after them, its last ones none of the first; a block of 32 tokens fits into the ring."""
    save_gemma4(tmp_path, sliding_window=7)
    options = ExportOptions(max_seq_len=160, prefill_chunk=16, verify_len=verify_len, snapshot_slots=1)
    compare(Session.load(exported(tmp_path, options)), tmp_path, [(4, 5), (1, 3)], GEMMA, before=[40, 41, 42])


def test_a_picture_is_read_by_one_call_or_changes_nothing(block_artifact: Path) -> None:
    session = Session.load(block_artifact)
    picture, room = Picture(session.model, rgb(4, 5, unit=UNIT), prepared=True), session.max_seq_len
    session.prefill(WORDS)
    before = int(session.state()["operations"].item())
    session.prefill(picture.ids)
    assert session.state()["operations"].item() == before + 1
    session.reset()
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
