"""Pictures are decoded, resized and cut as transformers does it, and what is no picture is refused."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import picture_reference
import pytest
from picture_files import file_of, noise, sized
from picture_layouts import Layouts, RefusedPictureError
from PIL import Image
from public_folders import GEMMA3_ROWS, GEMMA3_SPECIAL, LFM2_VL_SPECIAL, PICTURE
from transformers import Gemma3Processor, PreTrainedTokenizerFast
from transformers.image_utils import load_image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from hybridge.errors import PictureError
from hybridge.export.model.encoders.nemotron_h_omni import DARKEST, STEP
from hybridge.runtime.artifact.pictures import PictureDescription
from hybridge.runtime.binding.chat import message_content
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text import pictures
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.pictures import PictureProcessor, data_of_url, decode, with_pictures

QWEN = replace(
    picture_reference.PUBLISHED, model_type="qwen3_5", position_side=48, tile_size=32, min_tiles=1, max_tiles=1, marks=False
)
"""The pictures of Qwen3.5-0.8B, as an export with at most 256 tokens describes them."""
GEMMA = replace(
    QWEN, model_type="gemma4", merge=3, position_side=840, budgets=(280,), min_tokens=1, max_tokens=280, tile_size=48,
    marks=True,
)  # fmt: skip
"""The pictures of Gemma 4, as an export of a published checkpoint describes them."""
GEMMA3 = replace(
    GEMMA, model_type="gemma3", patch_size=14, merge=4, position_side=64, budgets=(256,), min_tokens=256, max_tokens=256,
    tile_size=896, bidirectional=True,
)  # fmt: skip
"""The pictures of Gemma 3, as an export of a published checkpoint describes them."""
GLM = replace(QWEN, model_type="glm5_next", patch_size=14, position_side=1, min_tokens=16, tile_size=28)
"""The pictures of GLM-5.3-Flash, as an export with at most 256 tokens describes them."""
THIRD = range(0, picture_reference.COUNT, 3)
DESCRIPTIONS = [picture_reference.PUBLISHED, QWEN, GEMMA3, GEMMA, GLM, picture_reference.OMNI]


@pytest.mark.slow
def test_parts_are_those_of_transformers_processor() -> None:
    want, place, tiled = np.load(picture_reference.FILE), 0, 0
    with Layouts(picture_reference.PUBLISHED) as layouts:
        for picture, grid, count in zip(picture_reference.pictures(), want["grids"], want["counts"], strict=True):
            layout = layouts.of(picture)
            assert (layout.rows, layout.columns, len(layout.parts)) == (*grid, count)
            tiled += layout.rows * layout.columns > 1
            for part in layout.parts:
                assert part.shape[:2] == tuple(want["shapes"][place])
                sample = picture_reference.sampled(part, place).astype(int)
                assert np.abs(sample - want["samples"][place].astype(int)).max() <= 1
                place += 1
    assert place == len(want["samples"]) > picture_reference.COUNT
    assert tiled > 10


def across_first(image: Image.Image, size: tuple[int, int], *options: Any, **others: Any) -> Image.Image:
    """Resize across, then down, as Pillow did until version 12 and PyTorch does; Pillow 13 resizes some pictures down first."""
    return RESIZE(RESIZE(image, (size[0], image.height), *options, **others), size, *options, **others)


RESIZE = Image.Image.resize


@pytest.mark.slow
def test_parts_of_qwen3_5_are_those_of_transformers_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", across_first)
    least, most, unit = 64, 256, 32
    limits = {"shortest_edge": least * unit**2, "longest_edge": most * unit**2}
    processor = Qwen2VLImageProcessorPil(
        size=limits, patch_size=16, merge_size=2, temporal_patch_size=2, do_rescale=False, do_normalize=False
    )
    compared = 0
    with Layouts(QWEN) as layouts:
        for picture in picture_reference.pictures(THIRD):
            longest = 200 * min(picture.shape[:2])
            if max(picture.shape[:2]) > longest:
                with pytest.raises(RefusedPictureError, match="more than 200 times the other"):
                    layouts.of(picture)
            picture = np.ascontiguousarray(picture[:longest, :longest])
            (part,) = layouts.of(picture).parts
            wanted = processor([Image.fromarray(picture)], return_tensors="np")
            rows, columns = wanted["image_grid_thw"][0, 1:]
            assert part.shape == (rows * 16, columns * 16, 3)
            squares = (rows // 2, columns // 2, 2, 2, 3, 2, 16, 16)
            frames = wanted["pixel_values"].reshape(squares).transpose(5, 0, 2, 6, 1, 3, 7, 4).reshape(2, *part.shape)
            np.testing.assert_array_equal(frames[0], frames[1])
            np.testing.assert_array_equal(part, frames[0])
            compared += 1
    assert compared == len(THIRD)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "merge"), [(70, 3), *(pytest.param(280, merge, marks=pytest.mark.thorough) for merge in (3, 1))]
)
def test_parts_of_gemma4_are_those_of_transformers_processor(monkeypatch: pytest.MonkeyPatch, tokens: int, merge: int) -> None:
    """Gemma 4 12B has patches of 48 pixels (merge 1), which its processor makes of those of the others."""
    monkeypatch.setattr(Image.Image, "resize", across_first)
    processor, compared = Gemma4ImageProcessorPil(max_soft_tokens=tokens, do_rescale=False), 0
    with Layouts(replace(GEMMA, max_tokens=tokens, merge=merge, patch_size=48 // merge)) as layouts:
        for picture in picture_reference.pictures(THIRD):
            (part,) = layouts.of(picture).parts
            wanted = processor([Image.fromarray(picture)], return_tensors="np")
            places = wanted["image_position_ids"][0]
            columns, rows = places.max(0) + 1
            assert part.shape == (rows * 16, columns * 16, 3)
            patches = wanted["pixel_values"][0, places[:, 0] >= 0].reshape(rows, columns, 16, 16, 3)
            np.testing.assert_array_equal(part, patches.transpose(0, 2, 1, 3, 4).reshape(part.shape))
            assert wanted["num_soft_tokens_per_image"] == [part.size // 3 // 48**2]
            compared += 1
    assert compared == len(THIRD)


@pytest.mark.slow
@pytest.mark.thorough
def test_parts_of_gemma3_are_those_of_transformers_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "resize", across_first)
    size = {"height": GEMMA3.tile_size, "width": GEMMA3.tile_size}
    processor, compared = Gemma3ImageProcessorPil(size=size, do_rescale=False, do_normalize=False), 0
    with Layouts(GEMMA3) as layouts:
        for picture in picture_reference.pictures():
            (part,) = layouts.of(picture).parts
            (want,) = processor([Image.fromarray(picture)], return_tensors="np")["pixel_values"]
            np.testing.assert_array_equal(part, want.transpose(1, 2, 0))
            compared += 1
    assert compared == picture_reference.COUNT


@pytest.mark.slow
@pytest.mark.parametrize("most", [40, pytest.param(256, marks=pytest.mark.thorough)])
def test_parts_of_glm5_next_are_those_of_transformers_processor(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(Image.Image, "resize", across_first)
    processor, compared, filled = Glm5NextImageProcessorPil(max_image_tokens=most, do_rescale=False, do_normalize=False), 0, 0
    with Layouts(replace(GLM, max_tokens=most)) as layouts:
        lines = (np.full((1, n, 3), 9, np.uint8) for n in (300, 7000, 7200, 20_000))
        for picture in (*picture_reference.pictures(THIRD), *lines):
            (part,) = layouts.of(picture).parts
            wanted = processor([Image.fromarray(picture)], return_tensors="np")
            rows, columns = wanted["image_grid_thw"][0, 1:]
            assert part.shape == (rows * 14, columns * 14, 3)
            squares = (rows // 2, columns // 2, 2, 2, 3, 2, 14, 14)
            frames = wanted["pixel_values"].reshape(squares).transpose(5, 0, 2, 6, 1, 3, 7, 4).reshape(2, *part.shape)
            np.testing.assert_array_equal(part, frames[0])
            filled += not part[-1].any() or not part[:, -1].any()
            compared += 1
    assert compared == len(THIRD) + 4
    assert filled > len(THIRD) / 2


@pytest.mark.slow
def test_parts_of_nemotron_h_omni_are_those_of_transformers_processor() -> None:
    """Its processor keeps what bicubic interpolation makes beyond 0 and 255, so a pixel stands for a wider range."""
    want, beyond = np.load(picture_reference.OMNI_FILE), 0
    with Layouts(picture_reference.OMNI) as layouts:
        for i, picture in enumerate(picture_reference.pictures()):
            (part,) = layouts.of(picture).parts
            assert part.shape[:2] == tuple(want["shapes"][i])
            wanted = want["samples"][i] / 64
            assert np.abs(picture_reference.sampled(part, i) * STEP + DARKEST - wanted).max() <= 1
            beyond += int(((wanted < -1) | (wanted > 256)).sum())
    assert beyond > 5


SIZES: dict[str, list[tuple[int, int]]] = {
    "lfm2_vl": [(20_000, 1), (1, 20_000)],
    "qwen3_5": [(201, 1), (1, 20_000)],
    "gemma3": [],
    "gemma4": [],
    "glm5_next": [],
    "nemotron_h_omni": [(40_000, 1)],
}
"""Sizes of pictures that are too long and narrow."""
TAKEN = {
    "lfm2_vl": {(1, 1): (256, 256)}, "qwen3_5": {(1, 1): (256, 256), (3000, 15): (3648, 32), (1, 200): (32, 3648)},
    "gemma3": {(1, 1): (896, 896), (20_000, 1): (896, 896), (1, 300): (896, 896), (1920, 1080): (896, 896)},
    "gemma4": {
        (1, 1): (768, 768), (20_000, 1): (280 * 48, 48), (1, 300): (48, 280 * 48), (281, 1): (280 * 48, 48),
        (1920, 1080): (22 * 48, 12 * 48),
    },
    "glm5_next": {
        (1, 1): (112, 112), (20_000, 1): (28, 28), (7000, 1): (7000, 28), (30, 200): (56, 224), (1920, 1080): (588, 336),
    },
    "nemotron_h_omni": {(1, 1): (512, 512), (3000, 15): (7040, 64), (640, 480): (640, 480), (1920, 1080): (960, 544)},
}  # fmt: skip
"""Sizes of a picture, and of the one part that becomes of it."""


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda each: each.model_type)
def test_the_smallest_the_longest_and_too_large_ones(description: PictureDescription) -> None:
    with Layouts(description, "picture_layout_sanitized") as layouts:
        for (width, height), wanted in TAKEN[description.model_type].items():
            assert layouts.of(np.zeros((height, width, 3), np.uint8)).parts[0].shape == (*wanted[::-1], 3)
        for width, height in SIZES[description.model_type]:
            with pytest.raises(RefusedPictureError, match="too long and narrow"):
                layouts.of(np.zeros((height, width, 3), np.uint8))
        for width, height, reason in (
            (0, 5, "no pixels"), (8193, 8192, "make it smaller"), (2**63, 2, "make it smaller"), (2**32, 2**32, "smaller"),
        ):  # fmt: skip
            with pytest.raises(RefusedPictureError, match=reason):
                layouts.of_size(width, height)


@pytest.mark.parametrize("description", DESCRIPTIONS, ids=lambda each: each.model_type)
def test_random_sizes_read_no_pixel_that_is_not_there(description: PictureDescription) -> None:
    random, taken = np.random.default_rng(1), 0
    with Layouts(description, "picture_layout_sanitized") as layouts:
        for _ in range(12):
            width, height = (int(2 ** random.uniform(0, 9)) for _ in range(2))
            rgb = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
            try:
                layout = layouts.of(rgb)
            except RefusedPictureError:
                assert max(width, height) > 100 * min(width, height)
                continue
            taken += 1
            most = description.budgets[-1] * description.unit**2
            assert all(each.shape[0] * each.shape[1] <= most for each in layout.parts)
    assert taken > 6


@pytest.mark.thorough
def test_the_reference_is_what_transformers_computes_here() -> None:
    pytest.importorskip("torchvision", reason="needs torchvision: pip install torchvision==0.28.0")
    with Layouts(picture_reference.PUBLISHED) as layouts:
        for number, picture in enumerate(picture_reference.pictures()):
            if number % 20:
                continue
            layout = layouts.of(picture)
            grid, parts = picture_reference.transformers_parts(picture)
            assert (layout.rows, layout.columns) == grid
            assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(layout.parts, parts, strict=True))
    with Layouts(picture_reference.OMNI) as layouts:
        for picture in list(picture_reference.pictures())[::20]:
            values = picture_reference.transformers_values(picture)
            (part,) = layouts.of(picture).parts
            assert part.shape == values.shape
            assert np.abs(part * STEP + DARKEST - values).max() <= 1


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "CMYK", "RGBA", "LA", "YCbCr"])
@pytest.mark.parametrize("turn", [1, 3, 6, 8])
def test_files_are_decoded_as_transformers_does(tmp_path: Path, mode: str, turn: int) -> None:
    image = noise(13, 7, mode if mode != "LA" else "RGBA")
    if mode in ("RGBA", "LA"):
        image.putalpha(noise(13, 7, "L", seed=1))
        image = image.convert(mode)
    exif = Image.Exif()
    exif[274] = turn
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    (tmp_path / "picture").write_bytes(file_of(image, kind, exif=exif))
    want = np.asarray(load_image(str(tmp_path / "picture")))
    np.testing.assert_array_equal(decode((tmp_path / "picture").read_bytes()), want)
    assert want.shape == ((13, 7, 3) if turn in (6, 8) else (7, 13, 3))


def test_of_several_frames_the_first() -> None:
    frames = [noise(9, 9, seed=seed).quantize(16) for seed in range(300)]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(data).shape == (9, 9, 3)


GROWN = """
import resource, sys
from hybridge.runtime.text.pictures import decode
small, large = (open(path, "rb").read() for path in sys.argv[1:])
decode(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
width = decode(large).shape[1]
print(width, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_photo_is_in_memory_once_as_an_image_and_once_as_pixels(tmp_path: Path) -> None:
    """It took 12 bytes for each pixel, as it was turned and converted as a whole, and copied as bytes."""
    large = Image.new("RGB", (4000, 3000), (90, 120, 200))
    files = {"small": file_of(noise(9, 9), "JPEG"), "large": file_of(large, "JPEG", progressive=True)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    command = [sys.executable, "-c", GROWN, *(str(tmp_path / name) for name in files)]
    width, grown = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert width == 4000
    assert grown * (1 if sys.platform == "darwin" else 1024) < 9 * 4000 * 3000


@pytest.mark.parametrize(("width", "height"), [(1 << 21, 2), (3, 700_000), (1025, 1025)])
def test_pictures_are_converted_in_parts(width: int, height: int) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8))
    np.testing.assert_array_equal(decode(file_of(image)), np.asarray(image.convert("RGB")))


WHOLE = file_of(noise(50, 40), "JPEG")
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "a text": (lambda: b"hello, world" * 40, "no picture"),
    "an SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture"),
    "a TIFF": (lambda: file_of(noise(9, 9), "TIFF"), "another format"),
    "truncated": (lambda: WHOLE[: len(WHOLE) // 2], "damaged"),
    "a header alone": (lambda: file_of(noise(50, 40))[:40], "damaged|no picture"),
    "a bomb": (lambda: sized(30_000, 30_000), "900,?000,?000|30000 x 30000 pixels"),
    "too many bytes": (lambda: WHOLE + bytes(pictures.MOST_BYTES), "more than 64 MB"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_picture_is_refused(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(PictureError, match=reason):
        decode(data())


@pytest.mark.parametrize("place", range(0, 400, 7))
def test_damage_anywhere_is_an_error_or_a_picture(place: int) -> None:
    data = bytearray(file_of(noise(20, 20)))
    data[place % len(data)] ^= 0x55
    try:
        assert decode(bytes(data)).shape[2] == 3
    except PictureError as error:
        assert "picture" in str(error)  # noqa: PT017  either is right


def test_pillow_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PictureError, match=r"pip install 'hybridge\[images\]'"):
        decode(WHOLE)


def test_data_urls() -> None:
    encoded = base64.b64encode(WHOLE).decode()
    assert data_of_url(f"data:image/jpeg;base64,{encoded}") == WHOLE
    for url in ("https://example.org/cat.jpg", "file:///etc/passwd", "/etc/passwd", f"data:image/jpeg,{encoded}", "data:,"):
        with pytest.raises(PictureError, match="must be its data"):
            data_of_url(url)
    with pytest.raises(PictureError, match="not base64"):
        data_of_url("data:image/png;base64,@@@")


# In a prompt


def test_ids_are_those_of_transformers_processor(pictures_artifact: Path) -> None:
    session = Session.load(pictures_artifact)
    assert session.model.artifact is not None
    processor = PictureProcessor(session.model, Tokenizer.of(session.model.artifact))
    known = {name: LFM2_VL_SPECIAL.index(text) for name, text in PICTURE.items()}
    small = processor.prepare(file_of(noise(20, 20)))
    assert (small.ids[0], small.ids[-1], small.parts) == (known["begin"], known["end"], 1)
    assert all(row < 0 for row in small.ids[1:-1])
    large = processor.prepare(file_of(noise(100, 50)))
    assert (large.rows, large.columns, large.parts) == (1, 2, 3)
    tiles = [LFM2_VL_SPECIAL.index(f"<|img_row_1_col_{column}|>") for column in (1, 2)]
    whole = large.ids[36:-1]
    assert [token for token in large.ids if token >= 0] == [known["begin"], *tiles, known["thumbnail"], known["end"]]
    assert [large.ids.index(token) for token in (*tiles, known["thumbnail"])] == [1, 18, 35]
    assert all(row < 0 for row in whole)
    assert with_pictures([1, 5, 60, 5], [small, large]) == [1, *small.ids, 60, *large.ids]
    for places in ([1, 60], [1, 5, 5, 5]):
        with pytest.raises(PictureError, match="places for 2 pictures"):
            with_pictures(places, [small, large])
    session.prefill_image(large)
    assert session.length == len(large.ids)
    assert large.encodings == 3


@pytest.mark.parametrize("words", ["What is this?", "", "\n a"])
@pytest.mark.thorough
def test_a_message_of_gemma3_has_the_tokens_of_transformers_processor(
    square_artifact: Path, square_checkpoint: Path, words: str
) -> None:
    """Its processor puts empty lines around a picture, before the text becomes tokens."""
    session, said = Session.load(square_artifact), json.loads((square_checkpoint / "preprocessor_config.json").read_text())
    artifact = session.model.artifact
    assert artifact is not None
    tokenizer, messages = Tokenizer.of(artifact), [{"role": "user", "content": message_content(words, 2)}]
    opened = [PictureProcessor(session.model, tokenizer).prepare(file_of(noise(100, 50, seed=seed))) for seed in range(2)]
    ids = with_pictures(tokenizer.encode(load_template(artifact).render(messages).text, around=False).ids, opened)
    theirs = Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(**{name: each for name, each in said.items() if each is not None}),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(square_checkpoint),
        chat_template=(square_checkpoint / "chat_template.jinja").read_text(),
        image_seq_length=GEMMA3_ROWS,
    )
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    want = theirs(text=text, images=[noise(100, 50, seed=seed) for seed in range(2)], add_special_tokens=False)
    row = GEMMA3_SPECIAL.index("<image_soft_token>")
    assert [row if token < 0 else token for token in ids] == want["input_ids"][0]


def test_a_file_that_cannot_be_read(pictures_artifact: Path, tmp_path: Path) -> None:
    session = Session.load(pictures_artifact)
    assert session.model.artifact is not None
    processor = PictureProcessor(session.model, Tokenizer.of(session.model.artifact))
    for path in (tmp_path / "missing.png", tmp_path):
        with pytest.raises(PictureError, match="cannot be read"):
            processor.read(path)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(PictureError, match=r"text\.png: this is no picture"):
        processor.read(tmp_path / "text.png")
