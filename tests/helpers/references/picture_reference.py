"""Pictures of odd sizes, and what transformers' own processors make of them, in files that this one writes.

Writing needs torchvision, which the tests do without: .venv/bin/python tests/helpers/references/picture_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageTextToText

from hybridge.export.model.vision import VISION, read_processor
from hybridge.runtime.artifact.pictures import PictureDescription

FILE, OMNI_FILE = (Path(__file__).with_name(f"{name}_pictures.npz") for name in ("lfm2_vl", "nemotron_h_omni"))
COUNT, SAMPLES = 200, 24
UNIT = 8
"""Pixels on each side of a token of the small checkpoints."""
PUBLISHED = PictureDescription(
    model_type="lfm2_vl",
    placeholder=396,
    patch_size=16,
    merge=2,
    position_side=16,
    budgets=(64, 256),
    min_tokens=64,
    max_tokens=256,
    tile_size=512,
    min_tiles=2,
    max_tiles=10,
    tolerance=2.0,
    thumbnail=True,
    marks=True,
)
"""The pictures of LFM2-VL-450M, as its preprocessor_config.json describes them."""
OMNI = replace(
    PUBLISHED,
    model_type="nemotron_h_omni",
    position_side=1024,
    budgets=(256, 512),
    min_tokens=256,
    max_tokens=512,
    tile_size=32,
    min_tiles=1,
    max_tiles=1,
    tolerance=1.0,
    thumbnail=False,
)
"""The pictures of Nemotron-H Omni, as an export of a published checkpoint describes them."""
COMMON = ((1280, 1024), (1024, 1280), (1920, 1080), (1280, 720), (1600, 1200), (1024, 1024), (640, 480), (1, 1), (768, 1))


def rgb(rows: int, columns: int, seed: int = 0, unit: int = UNIT) -> NDArray[np.uint8]:
    """Random pixels of a picture that makes ``rows`` x ``columns`` tokens of a small checkpoint."""
    return np.random.default_rng(seed).integers(0, 256, (rows * unit, columns * unit, 3), dtype=np.uint8)


def whole_logits(folder: Path, text: list[int | NDArray[np.uint8]], unit: int = UNIT) -> NDArray[np.float32]:
    """Logits after the text by transformers' own forward with ``pixel_values``, which places the rows itself."""
    whole: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    family, row = VISION[whole.config.model_type], whole.config.image_token_id
    ids, pictures = list[int](), list[torch.Tensor]()
    for part in text:
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += [row] * (part.shape[0] // unit * (part.shape[1] // unit))
            pictures.append(torch.from_numpy(part))
    inputs, tokens = family.inputs(whole.config, read_processor(folder, family), pictures), torch.tensor([ids])
    if family.rows is not None:
        inputs["token_type_ids" if whole.config.model_type == "gemma3" else "mm_token_type_ids"] = (tokens == row).int()
    with torch.no_grad():
        logits: torch.Tensor = whole(input_ids=tokens, use_cache=False, **inputs).logits
    return logits[0, -1].numpy()


def pictures(seeds: range = range(COUNT)) -> Iterator[NDArray[np.uint8]]:
    """Return pictures uint8 [height, width, 3]: smooth, with noise, small and large, wide and high."""
    return map(_picture, seeds)


@cache
def _picture(seed: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    width, height = COMMON[seed] if seed < len(COMMON) else (int(2 ** random.uniform(0, 10.8)) for _ in range(2))
    while max(width, height) > 900 * min(width, height):
        width, height = (width + 1) // 2, (height + 1) // 2
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [np.sin(x * random.uniform(0, 2) + y * random.uniform(0, 2) + phase) for phase in range(3)]
    noise = random.uniform(-1, 1, (height, width, 3))
    share = random.uniform(0, 1)
    made: NDArray[np.uint8] = ((share * np.stack(waves, -1) + (1 - share) * noise) * 127.5 + 127.5).astype(np.uint8)
    made.flags.writeable = False
    return made


def sampled(part: NDArray[Any], number: int) -> NDArray[Any]:
    """Return SAMPLES values of a part, from places that its number decides."""
    places = np.random.default_rng(number).integers(0, part.size, SAMPLES)
    return part.reshape(-1)[places]


def transformers_parts(picture: NDArray[np.uint8]) -> tuple[tuple[int, int], list[NDArray[np.uint8]]]:
    """Return rows and columns of tiles, and the parts of a picture, by transformers' own processor."""
    from PIL import Image
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor

    plain = Lfm2VlImageProcessor(return_row_col_info=True, image_mean=[0.0] * 3, image_std=[1.0] * 3)
    found = plain([Image.fromarray(picture)], return_tensors="pt")
    parts = []
    for values, shape in zip(found["pixel_values"], found["spatial_shapes"].tolist(), strict=True):
        rows, columns = shape
        patches = (values[: rows * columns].numpy() * 255).round().astype(np.uint8)
        parts.append(patches.reshape(rows, columns, 16, 16, 3).transpose(0, 2, 1, 3, 4).reshape(rows * 16, columns * 16, 3))
    return (found["image_rows"][0], found["image_cols"][0]), parts


def transformers_values(picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return what Nemotron-H Omni's processor makes of a picture: float32 [height, width, 3] of 0 to 255, and beyond."""
    from PIL import Image
    from transformers.models.nemotron_h_omni.image_processing_nemotron_h_omni import NemotronH_Omni_Reasoning_V3ImageProcessor

    most = OMNI.max_tokens * OMNI.merge**2
    plain = NemotronH_Omni_Reasoning_V3ImageProcessor(do_rescale=False, do_normalize=False, max_num_patches=most)
    found = plain([Image.fromarray(picture)], return_tensors="pt")
    rows, columns = found["image_grid_hw"][0].tolist()
    patches = found["pixel_values"].numpy().reshape(rows, columns, 3, 16, 16)
    return patches.transpose(0, 3, 1, 4, 2).reshape(rows * 16, columns * 16, 3)


def write_omni() -> None:
    """Write OMNI_FILE: the shape of each picture and samples of it, in 1/64 of a pixel's values."""
    shapes, samples = np.zeros((COUNT, 2), np.uint16), np.zeros((COUNT, SAMPLES), np.int16)
    for i, values in enumerate(map(transformers_values, pictures())):
        shapes[i], samples[i] = values.shape[:2], (sampled(values, i) * 64).round()
    np.savez_compressed(OMNI_FILE, shapes=shapes, samples=samples)


def write() -> None:
    """Write FILE: the grid of each picture, and the shape and samples of each part."""
    grids, counts, shapes, samples = [], [], [], []
    for picture in pictures():
        grid, parts = transformers_parts(picture)
        grids.append(grid)
        counts.append(len(parts))
        for part in parts:
            samples.append(sampled(part, len(samples)))
            shapes.append(part.shape[:2])
    np.savez_compressed(
        FILE, grids=np.array(grids, np.uint8), counts=np.array(counts, np.uint8), shapes=np.array(shapes, np.uint16),
        samples=np.array(samples, np.uint8),
    )  # fmt: skip


if __name__ == "__main__":
    write()
    write_omni()
