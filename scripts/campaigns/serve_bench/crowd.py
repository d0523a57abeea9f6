"""Many clients at once: every text against the one that is made alone, and the server's memory."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path

from campaigns.serve_bench.running import Row, Running, serving, words
from hybridge.runtime.cli.serve import renderer
from hybridge.runtime.text.generate import open_text_model

TALKS = [[{"role": "user", "content": words(20 + 3 * i, i)}] for i in range(16)]
TOKENS = 24
CACHE = 64 << 20
"""Bytes of checkpoints, few enough to be full soon."""


class Crowd:
    """Clients of one server. alone: the right texts of ``TALKS``; done and wrong: answers; resident: bytes by requests."""

    def __init__(self, one: Running, alone: list[str], looks: list[int]) -> None:
        """looks: numbers of requests behind which memory is measured."""
        self.one, self.alone, self.looks = one, alone, looks
        self.asked, self.done, self.wrong = 0, 0, list[str]()
        self.resident: dict[int, int] = {}
        self._lock = threading.Lock()

    def client(self, number: int, requests: int) -> None:
        """Ask so many times; one in ten requests is dropped at once, and one in ten malformed."""
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
        prompt = model.tokenizer.encode(renderer(model.artifact, {})(talk, {}), add_special_tokens=False).ids
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
    yield "the server's memory behind so many requests", sizes, "flat"
    what = f"{clients} clients, {requests} requests each: answers that are wrong"
    yield what, f"{len(all_of.wrong)} of {all_of.done}", "0"
