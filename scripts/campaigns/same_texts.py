"""Count greedy tokens that depend on how they came to be: with each drafter, and after a text that was read again.

A text is decoded plainly first. Then the same prompt is continued with prompt lookup, with a drafter that proposes right and
wrong tokens, with the artifact's own drafter, with the model as its own draft model, and once more from the middle of the
text, all of which is then a prompt.
"""

from __future__ import annotations

import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from campaigns import campaign
from campaigns.real_models.models import MODELS, gguf_of
from campaigns.same_bits import WORK, exported
from hybridge.export.check.validate import CorruptingDrafter
from hybridge.export.cli.embedded import EMBEDDED
from hybridge.runtime import Session
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.drafters import Drafter, DraftModel, OwnDrafter, PromptLookup
from hybridge.runtime.binding.tokenizer import Tokenizer

TEXTS = [
    *(Path(__file__).parent / "real_models" / "prose.txt").read_text(encoding="utf-8").split("\n\n"),
    *(Path(__file__).read_text(encoding="utf-8").split("\n\n\n")),
]
THE_EMBEDDED = "the embedded model"
LONGEST, NEW = 200, 160
"""Tokens of the longest prompt, and new ones after each."""


def drafters(session: Session, rng: random.Random) -> Iterator[tuple[str, Drafter, int | None]]:
    """Yield the name of a drafter, the drafter, and the length of its blocks if it is not chosen by speed."""
    yield "prompt lookup", PromptLookup(), None
    yield "right and wrong tokens", CorruptingDrafter(rng, session.vocab_size), rng.randint(2, session.verify_len)
    yield "the model drafts for itself", DraftModel(session.model, session), None
    if session.manifest.drafter is not None:
        yield "its own drafter", OwnDrafter(session), session.verify_len


def count(session: Session, prompt: list[int], rng: random.Random, seen: Counter[str], differ: Counter[str]) -> None:
    """Continue a prompt in each way, and count the tokens and those behind the first that differs."""

    def continued(tokens: list[int], new: int, drafter: Drafter | None = None, block: int | None = None) -> list[int]:
        session.reset()
        return list(session.generate(tokens, max_new_tokens=new, drafter=drafter, block_length=block, eos_ids=()))

    def compare(way: str, got: list[int], want: list[int]) -> None:
        seen[way] += len(want)
        same = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
        differ[way] += len(want) - same

    want = continued(prompt, NEW)
    for way, drafter, block in drafters(session, rng):
        compare(way, continued(prompt, NEW, drafter, block), want)
    middle = rng.randint(1, NEW - 1)
    compare("read again from the middle", continued(prompt + want[:middle], NEW - middle), want[middle:])


def artifact_of(name: str, work: Path) -> Path:
    """Return the artifact of a model by its name in the table; those of ``same-bits`` are taken."""
    if name == THE_EMBEDDED:
        return exported(EMBEDDED, ExportOptions(), "embedded", work)
    model = next(each for each in MODELS if each.name == name)
    return exported(gguf_of(model, work / "real"), ExportOptions(quantize="keep"), model.file, work)


def main(
    tokens: Annotated[int, typer.Option(help="Tokens to compare with each model.")] = 100_000,
    minutes: Annotated[float, typer.Option(help="The most minutes for each model.")] = 600.0,
    only: Annotated[str, typer.Option(help="A part of a model's name.")] = "",
    work: Annotated[Path, typer.Option(help="Where models and artifacts are kept.")] = WORK,
) -> None:
    """Print, for each model and way, the tokens that were compared and those that differ. Exits with 1 if any does."""
    wrong = 0
    print("| model | way | tokens | differ |\n|---|---|---|---|")
    for name in (THE_EMBEDDED, *(model.name for model in MODELS)):
        if only not in name:
            continue
        artifact = open_artifact(artifact_of(name, work))
        rng, seen, differ, end = random.Random(0), Counter[str](), Counter[str](), time.monotonic() + 60 * minutes
        tokenizer = Tokenizer.of(artifact)
        with Session.of(artifact) as session:
            while seen.total() < tokens and time.monotonic() < end:
                ids = tokenizer.encode(rng.choice(TEXTS)).ids
                first = rng.randrange(len(ids))
                count(session, ids[first : first + rng.randint(1, LONGEST)], rng, seen, differ)
        for way, number in seen.items():
            print(f"| {name} | {way} | {number:,} | {differ[way]:,} |", flush=True)
        wrong += differ.total()
    raise typer.Exit(int(wrong > 0))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    campaign.run("same-texts", main)
