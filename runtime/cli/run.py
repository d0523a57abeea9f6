"""``hybridge run``: continue a text and show it as it comes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

from hybridge.runtime.cli.console import ShownReasoning, err, print_json
from hybridge.runtime.cli.generating import Model, RunPrompt, plain_seconds, speed_up, stats_rows, stats_table
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.statistics import GenerationStats, Trace
from hybridge.runtime.html_report import run_sections, write_page
from hybridge.runtime.text.text_stream import Apart, Part, Parts, TextStream, undivided

Constrain = Callable[[str], Constraint]
"""Makes what the answer to a prompt follows, by the text of the prompt."""


def continue_text(
    model: Model, prompt: RunPrompt, most: int, sampling: Sampling, stop: Sequence[str], constrain: Constrain | None, *,
    stats: bool, html: Path | None, json: bool,
) -> None:  # fmt: skip
    """Continue ``prompt`` by at most so many tokens and show what came, and what it took. Raises what generating raises."""
    gc.freeze()
    apart = _taken_apart(model) if prompt.rendered else undivided(model.tokenizer)
    text, parts = TextStream(apart.decoder, stop), apart.parts(prompt.rendered)
    done, new = Trace() if html is not None else GenerationStats(), list[int]()
    constraint = constrain(prompt.rendered) if constrain is not None else None
    _continue(model, prompt, most, sampling, text, parts, done, constraint, new, silent=json)
    measured = plain_seconds(model) if stats or json or html is not None else None
    if html is not None and isinstance(done, Trace):
        rows = list(stats_rows(done, measured))
        write_page(html, model.artifact.folder.name, run_sections(prompt.text, new, done, model.tokenizer, rows))
    if json:
        speed = {"plain_seconds_per_token": measured, "speed_up": speed_up(done, measured)}
        said = {name: value for name, value in parts.message().items() if name not in ("role", "content")}
        print_json({"prompt": prompt.text, "text": parts.message()["content"], **said, **done.to_dict(), **speed})
    elif stats:
        err.print(stats_table(done, measured))


def _continue(
    model: Model, prompt: RunPrompt, most: int, sampling: Sampling, text: TextStream, parts: Parts, done: GenerationStats,
    constraint: Constraint | None, new: list[int], *, silent: bool,
) -> None:  # fmt: skip
    """Generate, writing the text as it comes unless ``silent``; its tokens go into ``new``, and itself into ``parts``."""
    reasoning = ShownReasoning()

    def show(came: Iterable[Part]) -> None:
        for part in came:
            if part.reasoning and not silent:
                reasoning.show(part.reasoning)
            if part.content and not silent:
                reasoning.end()
                _write(part.content)

    tokens = model.session.generate(
        prompt.ids, max_new_tokens=most, drafter=model.drafter, sampling=sampling, until=text.push, constraint=constraint,
        stats=done,
    )  # fmt: skip
    try:
        with closing(tokens):  # type: ignore[type-var]  # a generator
            for token in tokens:
                if not new and not silent:  # not before: a prompt that is refused is not shown
                    _write(prompt.shown)
                new.append(token)
                show(parts.feed(text.read()))
        show((*parts.feed(text.finish()), *parts.finish()))
    finally:
        if new and not silent:
            _write("\n")


def _taken_apart(model: Model) -> Apart:
    from hybridge.runtime.text.chat_template import taken_apart  # transformers takes half a second to import

    return taken_apart(model.artifact, model.tokenizer)


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
