"""What a schema costs: a mask of a row, and the tokens of a text."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from campaigns.serve_bench.made import VOCABULARY, made_up_tokenizer
from campaigns.serve_bench.running import Row
from hybridge.export.check.validate import tolerance
from hybridge.runtime.core.session import Session
from hybridge.runtime.text.generate import open_text_models
from hybridge.runtime.text.grammars import Grammar, Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 0, "maximum": 9999},
        "description": {"type": "string", "maxLength": 24},
        "classification": {"enum": ["abacus", "bridge", "compass"]},
        "measurements": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4},
    },
    "required": ["identifier", "description", "classification", "measurements"],
    "additionalProperties": False,
}
FITTING = b'{"identifier": 12, "description": "a bridge", "classification": "bridge", "measurements": [1, 2]}'


def structured(artifact: Path, rounds: int) -> Iterator[Row]:
    """Yield the row of JSON with speculation and forced tokens, in turns with plain constrained decoding."""
    models = {plain: open_text_models(artifact, 1, plain=plain)[0] for plain in (False, True)}
    grammar = Grammars.of(models[True].artifact).json_schema(SCHEMA)
    prompt = list(b'{"items": [')
    texts = dict[bool, set[tuple[int, ...]]]({True: set(), False: set()})

    def seconds(plain: bool, forced: bool) -> float:
        model, constraint = models[plain], grammar.follow()
        if not forced:
            constraint.forced = list  # type: ignore[method-assign]  # as a grammar that forces nothing
        model.session.reset()
        began = time.perf_counter()
        new = list(model.session.generate(prompt, max_new_tokens=200, drafter=model.drafter, constraint=constraint))
        texts[plain].add(tuple(new))
        return (time.perf_counter() - began) / len(new)

    ratios = [seconds(True, False) / seconds(False, True) for _ in range(rounds + 1)]
    what = "JSON: tokens/s with speculation and forced tokens ÷ plain constrained"
    yield what, f"{statistics.median(ratios[1:]):.2f}", "≥ 1.5"
    (own,) = texts[True]
    gaps = [gap(models[True].session, grammar, prompt, own, other) for other in texts[False] - {own}]
    tie = tolerance(models[True].artifact.manifest.options)
    ties = f" (ties: two best logits {max(gaps):.0e} of the largest apart, {tie:.0e} is rounding)" if gaps else ""
    wrong = sum(each > tie for each in gaps)
    yield "JSON: texts other than plain decoding's, ties aside", f"{wrong} of {len(texts[False])}{ties}", "0"


def gap(session: Session, grammar: Grammar, prompt: list[int], plain: Sequence[int], other: Sequence[int]) -> float:
    """Return how far apart the two best of the logits that the grammar allows are where two texts part, of the largest one."""
    parts = next(i for i, pair in enumerate(zip(plain, other, strict=False)) if pair[0] != pair[1])
    session.reset()
    logits, follower = session.prefill([*prompt, *plain[:parts]]), grammar.follow()
    for token in plain[:parts]:
        follower.take(token)
    follower.mask(logits)
    allowed = logits[np.isfinite(logits)]
    second, best = np.sort(allowed)[-2:].tolist()
    return (best - second) / float(np.abs(allowed).max())


def mask_of_a_row(size: int = VOCABULARY) -> Iterator[Row]:
    """Yield the row of a mask over a made-up vocabulary."""
    grammar = Grammars(made_up_tokenizer(size, random.Random(1)), size, [size - 1]).json_schema(SCHEMA)
    logits, times = np.random.default_rng(0).standard_normal(size, np.float32), []
    for _ in range(5):
        follower = grammar.follow()
        for byte in FITTING:
            began = time.perf_counter()
            follower.mask(logits)
            times.append(time.perf_counter() - began)
            follower.take(byte)
    yield f"mask of a row of {size} logits, median", f"{statistics.median(times) * 1000:.3f} ms", "≤ 0.1 ms"
