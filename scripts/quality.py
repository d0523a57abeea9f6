"""Measure roundings and recipes: KL divergence of the embedded model from itself in float32, and bytes.

The model is rounded as an export does and run by PyTorch, so nothing is exported. It is measured on code that it has not seen,
and calibrated on code that it was trained on.
"""

from __future__ import annotations

import hashlib
import random
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from tokenizers import Tokenizer
from torch import Tensor

from hybridge.export.checkpoint.loading import Checkpoint, load_checkpoint
from hybridge.export.cli.embedded import EMBEDDED, HELD_OUT, code_prompts
from hybridge.export.output.description import weight_bytes
from hybridge.export.quantization.bits import with_recipe
from hybridge.export.quantization.calibration import calibrate
from hybridge.export.quantization.quantize import is_quantized, quantize
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.checks.comparison import divergence

LENGTH = 512
PLAIN = {"quantize": "8da4w"}
SMALL = PLAIN | {"embedding_quantize": "4w"}
ROWS: dict[str, tuple[dict[str, object], str]] = {
    "8da4w, to nearest": (PLAIN | {"rounding": "nearest"}, ""),
    "8da4w": (PLAIN, ""),
    "8da4w, calibrated on what it says": (PLAIN, "self"),
    "8da4w, calibrated on code": (PLAIN, "text"),
    "all 4 bits (--recipe small), to nearest": (SMALL | {"rounding": "nearest"}, ""),
    "--recipe small": ({"recipe": "small"}, ""),
    "--recipe balanced": ({"recipe": "balanced"}, ""),
    "--recipe quality": ({"recipe": "quality"}, ""),
    "--recipe balanced, calibrated on code": ({"recipe": "balanced"}, "text"),
    "8w": ({"quantize": "8w", "embedding_quantize": "8w"}, ""),
}


@dataclass(frozen=True)
class Result:
    """Mean KL divergence in nats, the value 99 % stay below, the share of equal best tokens, and bytes of all weights."""

    kl: float
    kl_99: float
    agreement: float
    size: int


def main(
    texts: Annotated[int, typer.Option(min=1, help="Texts of 512 tokens to measure on.")] = 12,
    only: Annotated[str, typer.Option(help="Only rows whose name has this.")] = "",
) -> None:
    """Print a row for each rounding and recipe: KL divergence, and bytes of the weights beside those of all 4 bits."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    held_out = torch.tensor([text[:LENGTH] for text in code_prompts(tokenizer, texts, characters=4 * LENGTH)])
    print(f"The embedded model, {texts} texts of {LENGTH} tokens\n")
    print("| | KL, nats | of to nearest | 99 % | same best token | bytes | of --recipe small |")
    print("|---|---|---|---|---|---|---|")
    first: Result | None = None
    small = size_of({"recipe": "small"})
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder) / "seen.txt"
        seen.write_text("".join(training_code()), encoding="utf-8")
        for name, (choices, source) in ROWS.items():
            if only in name:
                result = measure(choices, str(seen) if source == "text" else source, held_out)
                first = first or result
                share = f"{100 * result.agreement:.2f} %"
                print(
                    f"| {name} | {result.kl:.5f} | {result.kl / first.kl:.2f} | {result.kl_99:.4f} | {share} | "
                    f"{result.size:,} | {result.size / small:.2f} |",
                    flush=True,
                )


def training_code() -> Iterator[str]:
    """Yield parts of modules that the embedded model was trained on, 2,048 characters of each of 200."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts and "test" not in path.parts]
    seen = [path for path in paths if hashlib.sha256(str(path.relative_to(root)).encode()).digest()[0] >= HELD_OUT]
    for path in random.Random(0).sample(seen, 200):
        yield path.read_text(encoding="utf-8", errors="ignore")[2048:4096]


def size_of(choices: dict[str, object]) -> int:
    """Return the bytes of the embedded model's weights."""
    return weight_bytes(rounded(load_checkpoint(EMBEDDED), choices, "").model)


def rounded(checkpoint: Checkpoint, choices: dict[str, object], source: str) -> Checkpoint:
    """Round the weights of a checkpoint in place, as an export with the options ``choices`` does."""
    options = with_recipe(ExportOptions(**choices))  # type: ignore[arg-type]
    rounder = calibrate(checkpoint, options, source).rounder if source else None
    if is_quantized(options):
        quantize(checkpoint.model, options, rounder)
    return checkpoint


@torch.no_grad()
def measure(choices: dict[str, object], source: str, texts: Tensor) -> Result:
    """Round the embedded model and compare it with itself."""
    original, other = load_checkpoint(EMBEDDED), rounded(load_checkpoint(EMBEDDED), choices, source)
    kl, same = [], []
    for text in texts.split(4):
        want, got = (each.model(text, use_cache=False).logits.float() for each in (original, other))
        kl.append(divergence(want, got).flatten())
        same.append((want.argmax(-1) == got.argmax(-1)).float().flatten())
    all_kl = torch.cat(kl)
    return Result(
        kl=float(all_kl.mean()),
        kl_99=float(all_kl.quantile(0.99)),
        agreement=float(torch.cat(same).mean()),
        size=weight_bytes(other.model),
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    typer.run(main)
