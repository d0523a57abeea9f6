"""``hybridge run``"""

from __future__ import annotations

import gc
import sys
from contextlib import closing
from typing import Annotated

import typer

from hybridge.export.cli.common import ArtifactArgument, JsonOption, app, err, print_json
from hybridge.export.cli.generating import (
    DraftOption,
    LookupOption,
    MinPOption,
    Model,
    NewTokensOption,
    OwnDrafterOption,
    PenaltyOption,
    PlainOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    open_model,
    plain_seconds,
    speed_up,
    stats_table,
)
from hybridge.runtime.chat.text_stream import TextStream
from hybridge.runtime.generation.sampling import Sampling
from hybridge.runtime.generation.stats import GenerationStats


@app.command()
def run(
    artifact: ArtifactArgument,
    prompt: Annotated[str, typer.Option("--prompt", help="Text to continue.")],
    max_new_tokens: NewTokensOption = 128,
    draft: DraftOption = None,
    lookup: LookupOption = False,
    own: OwnDrafterOption = False,
    plain: PlainOption = False,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: PenaltyOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    threads: ThreadsOption = None,
    stats: Annotated[bool, typer.Option("--stats", help="Say on stderr what was accepted and how fast it was.")] = False,
    json: JsonOption = False,
) -> None:
    """Continue a text by speculative decoding; greedy output is the same with every drafter and without."""
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    model = open_model(artifact, draft=draft, lookup=lookup, own=own, plain=plain, threads=threads)
    gc.freeze()
    done, text = GenerationStats(), TextStream(model.tokenizer, stop or [])
    written = _continue(model, prompt, max_new_tokens, sampling, text, done, silent=json)
    measured = plain_seconds(model.session) if stats or json else None
    if json:
        speed = {"plain_seconds_per_token": measured, "speed_up": speed_up(done, measured)}
        print_json({"prompt": prompt, "text": written, **done.to_dict(), **speed})
    elif stats:
        err.print(stats_table(done, measured))


def _continue(
    model: Model, prompt: str, most: int, sampling: Sampling, text: TextStream, done: GenerationStats, *, silent: bool
) -> str:
    """Generate, writing the text as it comes unless ``silent``; returns what came."""
    ids, pieces = model.tokenizer.encode(prompt).ids, [""]
    tokens = model.session.generate(
        ids, max_new_tokens=most, drafter=model.drafter, sampling=sampling, until=text.push, stats=done
    )
    write = _nowhere if silent else _show
    write(prompt)
    with closing(tokens):  # type: ignore[type-var]  # a generator
        try:
            for _ in tokens:
                pieces.append(text.read())
                write(pieces[-1])
            pieces.append(text.finish())
            write(pieces[-1])
        finally:
            write("\n")
    return "".join(pieces)


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _nowhere(piece: str) -> None:
    """JSON comes in one piece."""
