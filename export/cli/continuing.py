"""``hybridge run``: continue a text and show it as it comes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hybridge.export.cli.common import err, print_json
from hybridge.export.cli.generating import Model, plain_seconds, speed_up, stats_rows, stats_table
from hybridge.export.cli.prompt import RunPrompt
from hybridge.export.cli.structure import Constrain
from hybridge.export.pages.page import write_page
from hybridge.export.pages.run import run_page
from hybridge.runtime.chat.text_stream import TextStream
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.generation.sampling import Sampling
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.generation.trace import Trace


def continue_text(
    model: Model, prompt: RunPrompt, most: int, sampling: Sampling, stop: Sequence[str], constrain: Constrain | None, *,
    stats: bool, html: Path | None, json: bool,
) -> None:  # fmt: skip
    """Continue ``prompt`` by at most so many tokens and show what came, and what it took. Raises what generating raises."""
    gc.freeze()
    done, text, new = Trace() if html is not None else GenerationStats(), TextStream(model.tokenizer, stop), list[int]()
    constraint = constrain(prompt.rendered) if constrain is not None else None
    written = _continue(model, prompt, most, sampling, text, done, constraint, new, silent=json)
    measured = plain_seconds(model.session) if stats or json or html is not None else None
    if html is not None and isinstance(done, Trace):
        rows = list(stats_rows(done, measured))
        write_page(html, run_page(model.artifact.folder.name, prompt.text, new, done, model.tokenizer, rows))
    if json:
        speed = {"plain_seconds_per_token": measured, "speed_up": speed_up(done, measured)}
        print_json({"prompt": prompt.text, "text": written, **done.to_dict(), **speed})
    elif stats:
        err.print(stats_table(done, measured))


def _continue(
    model: Model, prompt: RunPrompt, most: int, sampling: Sampling, text: TextStream, done: GenerationStats,
    constraint: Constraint | None, new: list[int], *, silent: bool,
) -> str:  # fmt: skip
    """Generate, writing the text as it comes unless ``silent``; returns what came, whose tokens go into ``new``."""
    pieces = [""]
    tokens = model.session.generate(
        prompt.ids,
        max_new_tokens=most,
        drafter=model.drafter,
        sampling=sampling,
        until=text.push,
        constraint=constraint,
        stats=done,
    )
    write = _nowhere if silent else _show
    write(prompt.shown)
    with closing(tokens):  # type: ignore[type-var]  # a generator
        try:
            for token in tokens:
                new.append(token)
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
