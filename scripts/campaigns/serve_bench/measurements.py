"""Measure a server: many clients at once, cached texts, schemas, and streamed tokens."""

from __future__ import annotations

import gc
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from campaigns.serve_bench.server import Row, Running, conversation, serving, words
from hybridge.export.check.validate import tolerance
from hybridge.runtime.binding.session import Session
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.generate import TextModel, generate_text, open_text_model, open_text_models
from hybridge.runtime.text.grammars import Grammar, Grammars

TALKS = [[{"role": "user", "content": words(20 + 3 * i, i)}] for i in range(16)]
TOKENS = 24
CACHE = 64 << 20
"""Bytes of checkpoints, few enough to be full soon."""


class Crowd:
    """Clients of one server. alone: the right texts of ``TALKS``; done and wrong: answers; resident: bytes by requests."""

    def __init__(self, one: Running, alone: list[str], looks: list[int]) -> None:
        """Note memory after each number of requests in ``looks``."""
        self.one, self.alone, self.looks = one, alone, looks
        self.asked, self.done, self.wrong = 0, 0, list[str]()
        self.resident: dict[int, int] = {}
        self._lock = threading.Lock()

    def client(self, number: int, requests: int) -> None:
        """Ask ``requests`` times; one in ten requests is dropped at once, and one in ten malformed."""
        rng = random.Random(number)
        for _ in range(requests):
            chance = rng.random()
            if chance < 0.1:
                talk = [{"role": "user", "content": words(rng.randint(20, 80), rng.randrange(1 << 30))}]
                self.one.send(json.dumps({"messages": talk, "max_tokens": 200, "stream": True})).close()
            elif chance < 0.2:
                refused = self.one.send("{")
                self._check(refused.getresponse().status == 400, "a malformed request was answered")
                refused.close()
            else:
                i = rng.randrange(len(TALKS))
                text = self.one.ask(TALKS[i], TOKENS)[2]
                self._check(text == self.alone[i], text)
            self._count()

    def _check(self, right: bool, said: str) -> None:
        with self._lock:
            self.done += 1
            self.wrong += [] if right else [said]

    def _count(self) -> None:
        with self._lock:
            self.asked += 1
            if self.asked in self.looks:
                self.resident[self.asked] = self.one.resident()


def crowd(artifact: Path, clients: int, requests: int) -> Iterator[Row]:
    """Yield the rows of clients that ask at once."""
    model = open_text_model(artifact)
    alone = []
    for talk in TALKS:
        model.session.reset()
        prompt = model.tokenizer.encode(load_template(model.artifact).render(talk).text, around=False).ids
        alone.append(model.tokenizer.decode(list(model.session.generate(prompt, max_new_tokens=TOKENS))))
    total = clients * requests
    with serving(artifact, "--cache-bytes", CACHE) as one:
        all_of = Crowd(one, alone, sorted({max(1, total // 8), max(1, total // 2), total}))
        threads = [threading.Thread(target=all_of.client, args=(i, requests)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sizes = ", ".join(f"{resident / 1e6:.0f} MB after {asked}" for asked, resident in sorted(all_of.resident.items()))
    yield "the server's memory after some requests", sizes, "flat"
    what = f"{clients} clients, {requests} requests each: answers that are wrong"
    yield what, f"{len(all_of.wrong)} of {all_of.done}", "0"


def turns(one: Running, tokens: int, rounds: int) -> Iterator[Row]:
    """Yield the rows of a conversation's next turn, an edit, and a branch."""
    cold, again, edits = [], [], []
    for i in range(rounds):
        talk = conversation(tokens, 1000 * i)
        cold.append(one.ask(talk)[0])
        answer = {"role": "assistant", "content": one.ask(talk)[2]}
        again.append(one.ask([*talk, answer, {"role": "user", "content": f"go on {i}"}])[0])
        edits.append(one.ask([*talk[:2], {"role": "user", "content": f"something else {i}"}])[0])
        edits.append(one.ask([*talk, answer, {"role": "user", "content": f"back {i}"}])[0])
    base = statistics.median(cold)
    yield f"first token of {tokens} tokens that are not cached", f"{base * 1000:.1f} ms", ""
    yield "the next turn, against reading it again", f"{statistics.median(again) / base:.1%}", "≤ 3 %"
    yield "an edited message and back, against reading it again", f"{statistics.median(edits) / base:.1%}", "≤ 3 %"


def restart(artifact: Path, tokens: int, rounds: int) -> Iterator[Row]:
    """Yield the row of a restart with a folder of checkpoints."""
    cold, warm = [], []
    for i in range(rounds):
        talk = conversation(tokens, 77 * i)
        with tempfile.TemporaryDirectory() as folder:
            for seconds in (cold, warm):
                with serving(artifact, "--cache-dir", folder) as one:
                    one.ask([{"role": "user", "content": f"warm up {i}"}])
                    seconds.append(one.ask(talk)[0])
    share = statistics.median(warm) / statistics.median(cold)
    yield "the same conversation after a restart with --cache-dir", f"{share:.1%}", "≤ 10 %"


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
            prompt = model.tokenizer.encode(load_template(model.artifact).render(talk).text, around=False).ids
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
    splitter, times = load_template(model.artifact).splitter(model.tokenizer), list[float]()
    pieces = generate_text(model.session, prompt, splitter.decoder, answer=splitter.answer(""), max_new_tokens=most)
    with Path(os.devnull).open("w") as out:
        for piece in pieces:
            out.write(piece.content)
            out.flush()
            times += [time.perf_counter() for _ in piece.tokens]
    return times
