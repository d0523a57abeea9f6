"""Ask about a picture by ExecuTorch's own runner: python multimodal_runner.py OUT QUESTION FILE

OUT is an artifact of LFM2.5-VL, exported with --kernels llm. The runner does nothing to a picture and knows no chat template:
this prepares both, by Pillow and by what manifest.json says. The picture is not cut into tiles.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers the operators of --kernels llm
from executorch.extension.llm.runner import GenerationConfig, MultimodalRunner, make_image_input, make_text_input
from PIL import Image, ImageOps

BEFORE = "<|startoftext|><|im_start|>user\n<|image_start|>"
BEHIND = "<|image_end|>{question}<|im_end|>\n<|im_start|>assistant\n"


def size(width: int, height: int, pictures: dict[str, Any]) -> tuple[int, int]:
    """Return the width and height that the encoder takes: multiples of a square, and between the fewest and the most tokens."""
    square = pictures["patch_size"] * pictures["merge"]
    most = min(pictures["max_tokens"], pictures["budgets"][-1])
    across, down = (max(1, round(side / square)) for side in (width, height))
    if across * down > most:
        scale = math.sqrt(width * height / most) / square
        across, down = (max(1, math.floor(side / square / scale)) for side in (width, height))
    elif across * down < pictures["min_tokens"]:
        scale = math.sqrt(pictures["min_tokens"] / (width * height)) * square
        across, down = (math.ceil(side / square * scale) for side in (width, height))
    return across * square, down * square


def main(out: str, question: str, file: str) -> None:
    """Print the answer; the runner does so itself, piece by piece."""
    pictures = json.loads(Path(out, "manifest.json").read_text(encoding="utf-8"))["pictures"]
    image = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
    pixels = np.asarray(image.resize(size(*image.size, pictures), Image.Resampling.BILINEAR))
    runner = MultimodalRunner(str(Path(out, "model.pte")), str(Path(out, "tokenizer.json")))
    inputs = [
        make_text_input(BEFORE),
        make_image_input(torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()),  # channels first
        make_text_input(BEHIND.format(question=question)),
    ]
    runner.generate(inputs, GenerationConfig(max_new_tokens=64, temperature=0.0, echo=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
