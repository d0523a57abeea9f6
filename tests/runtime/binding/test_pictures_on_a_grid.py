"""Pictures with rope positions on three axes: the whole model's own logits, and an offset that is a part of the state."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from picture_reference import rgb, whole_logits
from public_folders import QWEN_SPECIAL
from state_files import forge_state

from hybridge.errors import CheckpointError, HybridgeError, StateFileError
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.drafters import OwnDrafter, PromptLookup
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.prompt_prefill import bring_to
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats

BEGIN, END, ROW = (QWEN_SPECIAL.index(name) for name in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"))
WORDS = [60, 61, 62, 63]
Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def model(grid_artifact: Path) -> Model:
    return Session.load(grid_artifact).model


@pytest.fixture
def session(model: Model) -> Session:
    return Session(model)


def rope_delta(session: Session) -> float:
    (found,) = (each for name, each in session.state().items() if name.endswith("rope_delta"))
    return float(found.item())


def close(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    "sizes", [[(1, 1)], [(3, 2)], [(4, 5)], [(1, 20)], [(20, 1)], [(3, 2), (2, 5)], [(1, 1), (5, 4), (1, 7)]]
)
def test_logits_are_the_whole_models(grid_checkpoint: Path, session: Session, sizes: list[tuple[int, int]]) -> None:
    pixels = [rgb(*size, seed) for seed, size in enumerate(sizes)]
    pictures = [Picture(session.model, each, prepared=True) for each in pixels]
    text, wanted = [7], list[int | Pixels]([7])
    for each, picture in zip(pixels, pictures, strict=True):
        text += [BEGIN, *picture.ids, END, *WORDS]
        wanted += [BEGIN, each, END, *WORDS]
    close(session.prefill(text), whole_logits(grid_checkpoint, wanted))
    assert rope_delta(session) == sum(max(size) - size[0] * size[1] for size in sizes)
    session.verify(WORDS)
    session.commit(2)
    close(session.decode(77), whole_logits(grid_checkpoint, [*wanted, *WORDS[:2], 77]))


def test_a_picture_at_the_first_position_and_a_verify_behind_it(grid_checkpoint: Path, session: Session) -> None:
    pixels = rgb(4, 5)
    session.prefill_image(Picture(session.model, pixels, prepared=True))
    logits = session.verify(WORDS)
    for count in range(1, 5):
        close(logits[count - 1], whole_logits(grid_checkpoint, [pixels, *WORDS[:count]]))


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


def test_a_prefill_that_is_refused_leaves_the_offset(session: Session) -> None:
    picture, closed = Picture(session.model, rgb(3, 4), prepared=True), Picture(session.model, rgb(3, 3, 4), prepared=True)
    session.prefill([*WORDS, *picture.ids])
    ids = closed.ids
    closed.close()
    for text in ([*picture.ids, *ids], picture.ids[1:], picture.ids * 20):
        with pytest.raises(HybridgeError):
            session.prefill(text)
        assert rope_delta(session) == -8


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


def test_pictures_are_of_the_encoders_sizes(model: Model) -> None:
    assert (model.picture_unit, model.most_picture_tokens, model.placeholder) == (8, 20, ROW)
