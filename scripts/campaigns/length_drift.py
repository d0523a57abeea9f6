"""Measure whether what rounding costs grows with the text: KL divergence by position, for a family of each recurrence.

Weights and activations are rounded as by 8da4w, and then keys and values to 8 bits too; the uncached model runs in PyTorch, so
nothing is exported. Models are small and random, texts random: the embedded model on code is in docs/quality.md.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from campaigns import campaign
from campaigns.soak.subjects import EXPERTS, FAMILIES, GROUP, WIDER
from hybridge.errors import UsageError
from hybridge.export.check.evaluate import divergence
from hybridge.export.check.oracle import round_as
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

FIRST = 1024
REFUSED: dict[str, tuple[type[Exception], ...]] = {"float32": (), "int8": (UsageError,)}
"""By what keys and values are: some models have none to round."""


def main(
    families: Annotated[list[str] | None, typer.Argument(help="Model types; one of each recurrence if left out.")] = None,
    tokens: Annotated[int, typer.Option(min=2 * FIRST, help="Length of each text.")] = 8192,
    texts: Annotated[int, typer.Option(min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Of the texts.")] = 0,
) -> None:
    """Print the divergence over the first 1,024 positions, over the others, and how one is to the other."""
    if unknown := set(families or []) - set(FAMILIES):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    print(f"{texts} texts of {tokens:,} random tokens; KL in nats\n")
    print(f"| family | rounded | 0–{FIRST - 1:,} | {FIRST:,}–{tokens - 1:,} | later ÷ first | same best token, later |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for family in families or FAMILIES:
            for name, kl, same in measured(family, Path(folder) / family, tokens, texts, seed):
                first, later = float(kl[:, :FIRST].mean()), float(kl[:, FIRST:].mean())
                print(
                    f"| {family} | {name} | {first:.2e} | {later:.2e} | {later / first:.2f} | {100 * same:.2f} % |", flush=True
                )


@torch.no_grad()
def measured(family: str, folder: Path, tokens: int, texts: int, seed: int) -> Iterator[tuple[str, Tensor, float]]:
    """Yield for each rounding its name, the divergence [texts, tokens], and the share of equal best tokens behind the first."""
    from tiny import save_lively_checkpoint, tiny_config

    save_lively_checkpoint(folder, tiny_config(family, **WIDER.get(family, {})))
    original = load_checkpoint(folder)
    text = torch.randint(original.vocab_size, (texts, tokens), generator=torch.Generator().manual_seed(seed))
    want = logits(original.model, text)
    weights = "4w" if family in EXPERTS else "8da4w"
    for kv_cache in REFUSED:
        other = load_checkpoint(folder)
        name = f"{weights}, 8-bit keys and values" if kv_cache == "int8" else weights
        options = {"max_seq_len": tokens, "quantize": weights, "group_size": GROUP, "kv_cache": kv_cache}
        with suppress(*REFUSED[kv_cache]):
            round_as(other, ExportOptions(kernels="hybridge", **options))
            yield name, *compared(want, logits(other.model, text))


def compared(want: Tensor, got: Tensor) -> tuple[Tensor, float]:
    """Return the divergence [N, T] of logits [N, T, V], and the share of equal best tokens behind the first positions."""
    same = (want.argmax(-1) == got.argmax(-1))[:, FIRST:].float().mean()
    return torch.stack([divergence(*each) for each in zip(want, got, strict=True)]), float(same)


def logits(model: torch.nn.Module, texts: Tensor) -> Tensor:
    """[N, T, V] of texts, each by itself."""
    return torch.cat([model(text[None], use_cache=False).logits.float() for text in texts])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    campaign.run("length-drift", main)
