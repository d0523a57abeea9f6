"""What a streamed token costs the server."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from campaigns.serve_bench.running import Row, serving, words
from hybridge.runtime.cli.serve import renderer
from hybridge.runtime.text.chat_template import reasoning_parser
from hybridge.runtime.text.generate import TextModel, generate_text, open_text_model


def overhead(artifact: Path, rounds: int, most: int) -> Iterator[Row]:
    """Yield the row of a streamed token's time against that of ``hybridge run``, of the same text, decoding plainly.

    Of both the time of a short text is taken from that of a long one: what a request costs by itself is no token's.
    """
    model = open_text_model(artifact, plain=True)
    gc.freeze()  # as the command does
    ratios, short = [], most // 4
    with serving(artifact, "--no-speculation") as one:
        for i in range(rounds + 1):
            talk = [{"role": "user", "content": words(60, i)}]
            one.ask(talk)
            prompt = model.tokenizer.encode(renderer(model.artifact, {})(talk, {}), add_special_tokens=False).ids
            times = alone(model, prompt, most)
            less, more = one.ask(talk, short), one.ask(talk, most)
            if more[3]["completion_tokens"] == len(times) > 2 * short:
                ratios.append((more[1] - less[1]) / (times[-1] - times[short - 1]))
    assert ratios, "no text was long enough"
    median = statistics.median(ratios[1:] or ratios)
    yield "overhead of the server a token, decoding plainly", f"{median - 1:.1%}", "≤ 3 %"


def alone(model: TextModel, prompt: list[int], most: int) -> list[float]:
    """Generate and write as ``hybridge run`` does, to nowhere; returns the second at which each token was written."""
    model.session.reset()
    splitter, times = reasoning_parser(model.artifact, model.tokenizer), list[float]()
    pieces = generate_text(model.session, prompt, splitter.decoder, answer=splitter.answer(""), max_new_tokens=most)
    with Path(os.devnull).open("w") as out:
        for piece in pieces:
            out.write(piece.content)
            out.flush()
            times += [time.perf_counter() for _ in piece.tokens]
    return times
