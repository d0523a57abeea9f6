"""Measure the server over an artifact with a long context: a table of figures from one run, each a ratio within it.

Each row is asked of a server in this process over HTTP, but for those of a checkpoint's bytes and of a mask.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hybridge.export.cli.chat_template import answer_format_of
from hybridge.export.cli.checkpoints import kept_checkpoints
from hybridge.export.cli.generating import Model, open_models
from hybridge.export.cli.serve import renderer
from hybridge.export.server.app import Server, Settings
from hybridge.export.server.job import Place
from hybridge.export.server.listening import bound, over
from hybridge.runtime.sessions.session import Session
from hybridge.runtime.structured.grammars import Grammars

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


class Running:
    """A server that answers at ``port``, and the models that compute for it."""

    def __init__(self, port: int, models: list[Model]) -> None:
        self.port, self.models = port, models

    def ask(self, messages: list[dict[str, str]], most: int = 1, **options: Any) -> tuple[float, float, str, dict[str, Any]]:
        """Return the seconds to the first text and in all, the text, and what was counted."""
        body = {"messages": messages, "max_tokens": most, "stream": True, "stream_options": {"include_usage": True}, **options}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        began = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        first, text, usage = 0.0, "", dict[str, Any]()
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            text += delta.get("content") or ""
            if "content" in delta and "role" not in delta:
                first = first or time.perf_counter() - began
            usage = chunk.get("usage") or usage
        connection.close()
        seconds = time.perf_counter() - began
        return first or seconds, seconds, text, usage


@contextmanager
def serving(artifact: Path, folder: Path | None = None, *, plain: bool = False, sessions: int = 2) -> Iterator[Running]:
    """Serve an artifact as ``hybridge serve`` does."""
    models = list(open_models(artifact, sessions, draft=None, lookup=False, own=False, plain=plain, threads=None))
    places = [Place(model.session, model.drafter) for model in models]
    with kept_checkpoints(models[0].session, 1 << 30, folder) as cache, bound("127.0.0.1", 0) as opened:
        form = answer_format_of(models[0].artifact, models[0].tokenizer)
        server = Server(places, models[0].tokenizer, renderer(models[0], {}), cache, Settings(name="bench", queue=64), form)
        runner = over(server.app())
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            while not runner.started:
                time.sleep(0.01)
            yield Running(opened.getsockname()[1], models)
        finally:
            runner.should_exit = True
            thread.join()


def words(tokens: int, seed: int) -> str:
    """Text of about so many bytes."""
    rng = random.Random(seed)
    lines = (f"x{rng.randrange(999)} = f(y{rng.randrange(999)})\n" for _ in range(tokens))
    return "".join(lines)[:tokens]


def conversation(tokens: int, seed: int) -> list[dict[str, str]]:
    """A conversation of about so many bytes, without its last message."""
    part = tokens // 3
    return [
        {"role": "user", "content": words(part, seed)},
        {"role": "assistant", "content": words(part, seed + 1)},
        {"role": "user", "content": words(part, seed + 2)},
    ]


def median(times: int, measure: Callable[[int], float]) -> float:
    """Return the median of several measurements."""
    return statistics.median(measure(i) for i in range(times))


def turns(one: Running, tokens: int, rounds: int) -> Iterator[tuple[str, str, str]]:
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
    yield f"first token of {tokens} tokens that nobody has read", f"{base * 1000:.1f} ms", ""
    yield "the next turn, against reading it again", f"{statistics.median(again) / base:.1%}", "≤ 3 %"
    yield "an edited message and back, against reading it again", f"{statistics.median(edits) / base:.1%}", "≤ 3 %"


def bytes_of_a_checkpoint(session: Session, tokens: int) -> Iterator[tuple[str, str, str]]:
    """Yield the row of a checkpoint's bytes."""
    session.reset()
    session.prefill(list(words(tokens, 5).encode()))
    made, state = session.checkpoint(), session._program.state()
    bounded = sum(each.nbytes for name, each in session._program.bounded().items() if name != "length")
    buffers = session._row_buffers(state, session._program.bounded())
    rows = sum(each.read(0, each.filled(state)).nbytes for each in buffers.values())
    yield (
        f"bytes of a checkpoint at {tokens} tokens ÷ bounded states and rows",
        f"{made.nbytes / (bounded + rows):.3f}",
        "≤ 1.02",
    )
    session.reset()


def restart(artifact: Path, tokens: int, rounds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the row of a restart with a folder of checkpoints."""
    cold, warm = [], []
    for i in range(rounds):
        talk = conversation(tokens, 77 * i)
        with tempfile.TemporaryDirectory() as folder:
            with serving(artifact, Path(folder)) as one:
                one.ask([{"role": "user", "content": "warm"}])
                cold.append(one.ask(talk)[0])
            with serving(artifact, Path(folder)) as one:
                one.ask([{"role": "user", "content": "warm up"}])
                warm.append(one.ask(talk)[0])
    yield (
        "the same conversation after a restart with --cache-dir",
        f"{statistics.median(warm) / statistics.median(cold):.1%}",
        "≤ 10 %",
    )


def structured(artifact: Path, rounds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the row of JSON with speculation and forced tokens, in turns with plain constrained decoding."""
    models = {
        plain: next(open_models(artifact, 1, draft=None, lookup=False, own=False, plain=plain, threads=None))
        for plain in (False, True)
    }
    grammar = Grammars.of(models[True].artifact).json_schema(SCHEMA)
    prompt = list(b'{"items": [')
    texts = set()

    def seconds(plain: bool, forced: bool) -> float:
        model, constraint = models[plain], grammar.follow()
        if not forced:
            constraint.forced = list  # type: ignore[method-assign]  # as a grammar that forces nothing
        model.session.reset()
        began = time.perf_counter()
        new = list(model.session.generate(prompt, max_new_tokens=200, drafter=model.drafter, constraint=constraint))
        texts.add(tuple(new))
        return (time.perf_counter() - began) / len(new)

    ratios = [seconds(True, False) / seconds(False, True) for _ in range(rounds + 1)]
    assert len(texts) == 1, "constrained texts differ"
    yield (
        "JSON: tokens/s with speculation and forced tokens ÷ plain constrained",
        f"{statistics.median(ratios[1:]):.2f}",
        "≥ 1.5",
    )


def mask_of_a_row() -> Iterator[tuple[str, str, str]]:
    """Yield the row of a mask over a vocabulary of 248,320 tokens, made up."""
    size, rng = 248_320, random.Random(1)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = {letters[byte]: byte for byte in range(256)}
    while len(vocabulary) < size - 1:
        word = "".join(rng.choices('etaoinshrdlcumwfgypbvk{}[]":,.0123456789', k=rng.randint(1, 8)))
        vocabulary.setdefault(rng.choice(("Ġ", "")) + word, len(vocabulary))
    tokenizer = {
        "version": "1.0", "added_tokens": [{"id": size - 1, "content": "<end>", "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    grammar = Grammars(json.dumps(tokenizer), size, [size - 1]).json_schema(SCHEMA)
    logits, times = torch.randn(size), []
    for _ in range(5):
        follower = grammar.follow()
        for byte in b'{"identifier": 12, "description": "a bridge", "classification": "bridge", "measurements": [1, 2]}':
            began = time.perf_counter()
            follower.mask(logits)
            times.append(time.perf_counter() - began)
            follower.take(byte)
    yield f"mask of a row of {size} logits, median", f"{statistics.median(times) * 1000:.3f} ms", "≤ 0.1 ms"


def overhead(one: Running, rounds: int) -> Iterator[tuple[str, str, str]]:
    """Yield the row of a streamed token's time against the same generation in this process."""
    model, ratios = one.models[0], []
    for i in range(rounds + 1):
        talk = [{"role": "user", "content": words(60, i)}]
        prompt = model.tokenizer.encode(renderer(model, {})(talk, {}), add_special_tokens=False).ids
        session = Session.of(model.artifact)
        session.prefill(prompt[:-1])
        began = time.perf_counter()
        count = sum(1 for _ in session.generate(prompt[-1:], max_new_tokens=400, eos_ids=[]))
        alone = (time.perf_counter() - began) / count
        first, seconds, _, usage = one.ask(talk, 400)
        if usage["completion_tokens"] > 100:
            ratios.append((seconds - first) / (usage["completion_tokens"] - 1) / alone)
    yield "overhead of the server a token, decoding plainly", f"{statistics.median(ratios) - 1:.1%}" if ratios else "-", "≤ 3 %"


def crowd(artifact: Path, clients: int, requests: int) -> Iterator[tuple[str, str, str]]:
    """Yield the row of clients that ask at once: every text against the one that is made alone."""
    wrong, done = [], []
    asked = [[{"role": "user", "content": words(20 + 3 * i, i)}] for i in range(16)]
    with serving(artifact) as one:
        session, model = Session.of(one.models[0].artifact), one.models[0]
        alone = []
        for talk in asked:
            prompt = model.tokenizer.encode(renderer(model, {})(talk, {}), add_special_tokens=False).ids
            session.reset()
            new = list(session.generate(prompt, max_new_tokens=24))
            alone.append(model.tokenizer.decode(new))

        def client(number: int) -> None:
            rng = random.Random(number)
            for _ in range(requests):
                i, chance = rng.randrange(len(asked)), rng.random()
                if chance < 0.1:  # goes away
                    gone = http.client.HTTPConnection("127.0.0.1", one.port, timeout=60)
                    body = json.dumps({"messages": asked[i], "max_tokens": 200, "stream": True})
                    gone.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                    gone.close()
                elif chance < 0.2:  # asks for what cannot be
                    bad = http.client.HTTPConnection("127.0.0.1", one.port, timeout=60)
                    bad.request("POST", "/v1/chat/completions", "{", {"Content-Type": "application/json"})
                    wrong.extend([] if bad.getresponse().status == 400 else ["a bad request was answered"])
                    bad.close()
                else:
                    text = one.ask(asked[i], 24)[2]
                    done.append(i)
                    wrong.extend([] if text == alone[i] else [text])

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    yield (
        f"{clients} clients, {requests} requests each: texts that differ from those made alone",
        f"{len(wrong)} of {len(done)}",
        "0",
    )


def main() -> int:
    """Print the table; exit code 1 where a text is wrong."""
    parser = argparse.ArgumentParser(prog="scripts/serve-bench", description=__doc__)
    parser.add_argument("artifact", type=Path, help="of a context that holds --tokens, and with a chat template")
    parser.add_argument("--tokens", type=int, default=2000, help="of a conversation")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each figure")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200, help="of each client")
    options = parser.parse_args()
    rows: list[tuple[str, str, str]] = []

    def show(found: Iterator[tuple[str, str, str]]) -> None:
        for row in found:
            rows.append(row)
            print("| " + " | ".join(row) + " |", flush=True)

    print("| what | measured | target |\n|---|---|---|")
    with serving(options.artifact) as one:
        one.ask([{"role": "user", "content": "warm up"}], 20)
        show(turns(one, options.tokens, options.rounds))
        show(bytes_of_a_checkpoint(one.models[0].session, options.tokens))
    show(restart(options.artifact, options.tokens, options.rounds))
    show(structured(options.artifact, options.rounds))
    show(mask_of_a_row())
    with serving(options.artifact, plain=True) as one:
        show(overhead(one, options.rounds))
    show(crowd(options.artifact, options.clients, options.requests))
    return 0 if rows[-1][1].startswith("0 ") else 1


if __name__ == "__main__":
    sys.exit(main())
