"""Pictures in hybridge-cli: its decoder beside Pillow, and its texts beside those of ``hybridge``."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import SCRIPT, Run
from native_programs import native_program
from numpy.typing import NDArray
from picture_files import chunk, file_of, noise, sized
from PIL import Image

from hybridge.runtime.text.pictures import decode

pytestmark = pytest.mark.slow
SIDES = (1, 2, 3, 7, 8, 9, 17, 33, 100)
MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")


class Decoder:
    """hybridge-cli's decoder under the sanitizers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    def said(self, data: bytes) -> str:
        """The answer to a file; the pixels follow one that is accepted."""
        self._to.write(struct.pack("<I", len(data)) + data)
        self._to.flush()
        return self._from.readline().decode().strip()

    def pixels(self, data: bytes) -> NDArray[np.uint8]:
        said, *sides = self.said(data).split()
        assert said == "accepted:", sides
        width, height = map(int, sides)
        return np.frombuffer(self._from.read(3 * width * height), np.uint8).reshape(height, width, 3)

    def refusal(self, data: bytes) -> str:
        said = self.said(data)
        assert said.startswith("refused: ")
        return said.removeprefix("refused: ")


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    command = [native_program("picture_files"), "pixels"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Decoder(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def same(decoder: Decoder, data: bytes, apart: int = 0) -> bool:
    mine, wanted = decoder.pixels(data), decode(data)
    return mine.shape == wanted.shape and int(np.abs(mine.astype(int) - wanted).max()) <= apart


def picture(width: int, height: int, mode: str, seed: int) -> Image.Image:
    """Noise, or something smooth, of which a JPEG keeps more."""
    image = noise(width, height, seed=seed)
    if seed % 2:
        image = image.resize((max(1, width // 8), max(1, height // 8))).resize((width, height), Image.Resampling.BICUBIC)
    return image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP"])
def test_lossless_pictures_are_those_of_pillow(decoder: Decoder, kind: str) -> None:
    chance = random.Random(kind)
    for seed, mode in enumerate(MODES * 8):
        if kind == "BMP" and mode in ("LA", "I;16"):  # Pillow does not write these
            continue
        image = picture(chance.choice(SIDES), chance.choice(SIDES), mode, seed)
        options = {"exif": orientation(1 + seed % 8)} if kind == "PNG" and seed % 3 == 0 else {}
        if kind != "BMP" and mode == "P" and seed % 2:
            options["transparency"] = 3
        assert same(decoder, file_of(image, kind, **options)), (mode, image.size, options)


def orientation(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif.tobytes()


def test_jpegs_are_those_of_pillow(decoder: Decoder) -> None:
    """libjpeg does not smooth subsampled colours of a picture that is at most 4 pixels wide, and Wuffs does."""
    chance = random.Random(4)
    for seed in range(120):
        mode = ("RGB", "RGB", "L", "CMYK")[seed % 4]
        size = chance.randint(5, 130), chance.randint(1, 130)
        options = {
            "quality": chance.choice((20, 75, 95)), "subsampling": chance.choice((0, 1, 2)), "exif": orientation(1 + seed % 8),
            "progressive": chance.random() < 0.5,
        }  # fmt: skip
        assert same(decoder, file_of(picture(*size, mode, seed), "JPEG", **options)), (mode, size, options)


CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
TRANSPARENT = {0: struct.pack(">H", 1), 2: struct.pack(">HHH", 1, 2, 3), 3: bytes([0, 100])}
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def png(width: int, height: int, colour: int, depth: int, *, interlaced: bool, see_through: bool) -> bytes:
    """A PNG of a kind that Pillow does not write: of any depth, all filters, interlaced or with a transparent colour."""
    chance = np.random.default_rng(width * 100 + height)

    def lines(width: int, height: int) -> bytes:
        size = (width * CHANNELS[colour] * depth + 7) // 8
        return b"".join(bytes([0 if colour == 3 else chance.integers(5)]) + chance.bytes(size) for _ in range(height))

    raw = lines(width, height)
    if interlaced:
        sizes = ((-((x - width) // across), -((y - height) // down)) for x, y, across, down in PASSES)
        raw = b"".join(lines(columns, rows) for columns, rows in sizes if columns > 0 < rows)
    chunks = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))]
    chunks += [chunk(b"gAMA", struct.pack(">I", 45455))]
    chunks += [chunk(b"PLTE", chance.bytes(3 << depth))] * (colour == 3)
    chunks += [chunk(b"tRNS", TRANSPARENT[colour])] if see_through and colour in TRANSPARENT else []
    return b"".join([b"\x89PNG\r\n\x1a\n", *chunks, chunk(b"IDAT", zlib.compress(raw)), chunk(b"IEND", b"")])


@pytest.mark.parametrize(("colour", "depth"), [(colour, depth) for colour, depths in DEPTHS.items() for depth in depths])
def test_every_kind_of_png_is_that_of_pillow(decoder: Decoder, colour: int, depth: int) -> None:
    for number in range(12):
        interlaced = bool(number & 1)
        data = png(3 + 5 * number, 40 - 3 * number, colour, depth, interlaced=interlaced, see_through=bool(number & 2))
        if interlaced and (colour, depth) == (0, 16):
            assert "does not decode interlaced grey of 16 bits" in decoder.refusal(data)
        else:
            assert same(decoder, data), number


def test_the_first_frame_of_a_film_lies_on_its_canvas(decoder: Decoder) -> None:
    frames = [noise(16, 16, seed=seed) for seed in range(4)]
    for default in (False, True):
        assert same(decoder, file_of(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=default))
    assert same(decoder, file_of(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    for seed in range(30):
        options = {"transparency": seed % 2} if seed % 3 == 0 else {}
        data = bytearray(file_of(noise(20, 30, seed=seed).quantize((2, 7, 256)[seed % 3]), "GIF", **options))
        struct.pack_into("<HH", data, 6, 18 + seed % 9, 28 + seed % 7)
        struct.pack_into("<HH", data, data.index(b"\x2c\0\0\0\0") + 1, seed % 5, seed % 4)
        assert same(decoder, bytes(data)), seed


@pytest.mark.parametrize("masks", [(), (0xF800, 0x7E0, 0x1F)])
def test_bitmaps_of_16_bits_are_almost_those_of_pillow(decoder: Decoder, masks: Sequence[int]) -> None:
    more, pixels = struct.pack(f"<{len(masks)}I", *masks), np.random.default_rng(0).bytes(28 * 7)
    head = struct.pack("<IiiHHIIiiII", 40, 13, 7, 1, 16, 3 if masks else 0, len(pixels), 0, 0, 0, 0)
    before = 14 + len(head) + len(more)
    data = b"BM" + struct.pack("<IHHI", before + len(pixels), 0, 0, before) + head + more + pixels
    assert same(decoder, data, apart=1)


GOOD = file_of(noise(24, 16))
REFUSED = {
    "empty": (b"", "the picture's file is empty."),
    "text": (b"hello", "this is no picture, or of another format than JPEG, PNG, GIF, BMP; convert it."),
    "TIFF": (file_of(noise(4, 4), "TIFF"), "of another format than JPEG, PNG, GIF, BMP"),
    "WebP": (file_of(noise(4, 4), "WEBP"), "does not decode WebP; convert the picture to PNG or JPEG."),
    "cut off": (GOOD[:-40], "the picture is damaged or only a part of it is there (deflate: truncated input)"),
    "a flipped bit": (GOOD[:100] + bytes([GOOD[100] ^ 1]) + GOOD[101:], "the picture is damaged"),
    "half a JPEG": (file_of(noise(64, 64), "JPEG")[:1500], "the picture is damaged or only a part of it is there"),
    "a bomb": (
        sized(8192, 8193),
        "the picture has 8192 x 8193 pixels, and more than 67,108,864 are not decoded; make it smaller.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_good_picture_is_refused_in_a_sentence(decoder: Decoder, name: str) -> None:
    data, message = REFUSED[name]
    assert message in decoder.refusal(data)


# Commands


def start(*words: object, given: bytes = b"", program: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    program = native_program("hybridge_cli_sanitized") if program is None else program
    return subprocess.run([program, *map(str, words)], input=given, check=False, capture_output=True, timeout=120)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A small picture, a large one that lies on its side, and one of a palette."""
    paths = [tmp_path / name for name in ("small.png", "large.png", "palette.gif")]
    written = file_of(noise(20, 20)), file_of(noise(100, 50, seed=1), exif=orientation(6)), file_of(noise(30, 40), "GIF")
    for path, data in zip(paths, written, strict=True):
        path.write_bytes(data)
    return paths


@pytest.mark.parametrize(
    ("artifact", "options"),
    [
        ("pictures_artifact", ("--no-speculation",)),
        ("pictures_artifact", ("--temperature", "0.9", "--seed", "3")),
        ("grid_artifact", ()),
    ],
    ids=str,
)
def test_it_answers_about_pictures_as_hybridge_run_does(
    cli: Run, request: pytest.FixtureRequest, files: Sequence[Path], artifact: str, options: Sequence[str]
) -> None:
    folder = request.getfixturevalue(artifact)
    for chosen in ([files[0]], [files[1]], [files[2], files[0]]):
        words: list[object] = ["run", folder, "--prompt", "What is this?", "--max-new-tokens", 6, *options]
        for path in chosen:
            words += ["--image", path]
        mine, wanted = start(*words), cli(*words)
        assert mine.stdout.decode() == wanted.raw, chosen
        said, expected = json.loads(start(*words, "--json").stdout), json.loads(cli(*words, "--json").raw)
        assert {key: said[key] for key in said.keys() & expected.keys() if key in COUNTS} == {
            key: expected[key] for key in COUNTS
        }


COUNTS = ("prompt", "text", "prompt_tokens", "new_tokens", "proposed", "accepted")


@pytest.mark.parametrize("artifact", ["pictures_artifact", pytest.param("grid_artifact", marks=pytest.mark.thorough)])
def test_a_chat_has_pictures_as_hybridge_chat_has_them(
    request: pytest.FixtureRequest, files: Sequence[Path], artifact: str
) -> None:
    folder = request.getfixturevalue(artifact)
    small, large, palette = (b"/image %b\n" % bytes(path) for path in files)
    lines = small + b"/image nowhere.png\nWhat?\nWhere?\n" + large + b"And?\n/undo\n/retry\n/image\n"
    lines += b"/reset\n" + palette + b"/reset\nWhat?\n"
    words = ("chat", folder, "--max-new-tokens", 4)
    mine, wanted = start(*words, given=lines), start(*words, given=lines, program=SCRIPT)
    assert mine.stdout == wanted.stdout
    assert mine.returncode == wanted.returncode == 0
    assert len(mine.stdout.splitlines()) >= 5
    notes = [line for line in mine.stderr.decode().splitlines() if "before the next message" in line]
    assert [note.removeprefix("> ") for note in notes] == [
        line.removeprefix("> ") for line in wanted.stderr.decode().splitlines() if "before the next message" in line
    ]
    assert b"nowhere.png cannot be read" in mine.stderr
    assert b"/image needs the name of a file" in mine.stderr


def test_a_chat_with_a_picture_is_gone_on_with_by_hybridge_chat(
    pictures_artifact: Path, files: Sequence[Path], tmp_path: Path
) -> None:
    first = b"/image %b\nWhat?\n" % bytes(files[1])
    words = ("chat", pictures_artifact, "--max-new-tokens", 4)
    together = start(*words, given=first + b"And?\n").stdout
    begun = start(*words, given=first + b"/save %b\n" % bytes(tmp_path / "talk")).stdout
    for program in (None, SCRIPT):
        assert begun + start(*words, "--load", tmp_path / "talk", given=b"And?\n", program=program).stdout == together


def test_a_picture_that_cannot_be_taken_is_refused(
    pictures_artifact: Path, kernels_artifact: Path, files: Sequence[Path], tmp_path: Path
) -> None:
    def error(code: int, *words: object) -> str:
        done = start("run", *words, "--prompt", "What?")
        assert (done.returncode, done.stdout) == (code, b""), done.stderr
        return done.stderr.decode()

    (tmp_path / "text").write_bytes(b"hello")
    (tmp_path / "long.png").write_bytes(file_of(noise(20_000, 1)))
    assert "this model takes no pictures" in error(1, kernels_artifact, "--image", files[0])
    assert f"{tmp_path}/none cannot be read" in error(1, pictures_artifact, "--image", tmp_path / "none")
    assert f"{tmp_path} cannot be read" in error(1, pictures_artifact, "--image", tmp_path)
    assert f"{tmp_path}/text: this is no picture" in error(1, pictures_artifact, "--image", tmp_path / "text")
    assert f"Error: {tmp_path}/long.png: " in error(1, pictures_artifact, "--image", tmp_path / "long.png")
    assert b"--image needs a value" in start("run", pictures_artifact, "--image").stderr
    many = [word for _ in range(60) for word in ("--image", files[1])]
    assert "Error: " in error(1, pictures_artifact, *many)
