"""Events of a generation on their way to a client: in order, none lost, and in few hops."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import hybridge.runtime.server.worker as worker_module
from hybridge.runtime import GenerationStats
from hybridge.runtime.server.worker import Event, Finished, Inbox
from hybridge.runtime.text.generate import TextPiece

END = Finished("stop", 0, GenerationStats())
COUNT = 5000


def test_fast_tokens_come_in_order_and_together() -> None:
    async def listen() -> list[list[Event]]:
        inbox, batches = Inbox(), list[list[Event]]()
        events = [*(TextPiece(str(i), [i], []) for i in range(COUNT)), END]
        thread = threading.Thread(target=lambda: [inbox.put(each) for each in events])
        thread.start()
        while not batches or batches[-1][-1] is not END:
            batches.append(await inbox.get())
        thread.join()
        return batches

    batches = asyncio.run(listen())
    events = [each for batch in batches for each in batch]
    assert [each.text for each in events if isinstance(each, TextPiece)] == list(map(str, range(COUNT)))
    assert len(events) == COUNT + 1
    assert len(batches) < COUNT / 10, "a hop for each token is what it is there to avoid"


def test_slow_tokens_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is put in once the one before was heard, whether somebody waits for it by then or not."""
    monkeypatch.setattr(worker_module, "INTERVAL", 0.0)

    async def listen() -> list[list[Event]]:
        inbox, batches = Inbox(), list[list[Event]]()
        for i in range(8):
            waiting = asyncio.create_task(inbox.get())
            await asyncio.sleep(0.02 * (i % 2))
            await asyncio.to_thread(inbox.put, TextPiece(str(i), [i], []) if i < 7 else END)
            batches.append(await asyncio.wait_for(waiting, 60))
        return batches

    batches = asyncio.run(listen())
    assert [len(batch) for batch in batches] == [1] * 8
    assert batches[-1] == [END]


def test_a_verified_block_comes_with_its_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "INTERVAL", 0.0)

    async def listen() -> list[Event]:
        inbox = Inbox()
        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        for origin in ("draft", "forced", "own"):
            await asyncio.to_thread(inbox.put, TextPiece(origin, [1], [], origin))
        return await asyncio.wait_for(waiting, 60)

    assert [each.text for each in asyncio.run(listen()) if isinstance(each, TextPiece)] == ["draft", "forced", "own"]


def test_what_computes_goes_on_once_its_events_were_handed_over_or_nobody_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "INTERVAL", 0.0)
    monkeypatch.setattr(worker_module, "PATIENCE", 0.2)
    order = list[str]()

    def compute(inbox: Inbox) -> None:
        inbox.put(TextPiece("a", [1], []))
        order.append("computes")
        for _ in range(20):  # the one who listened has gone: only the first waits for him
            inbox.put(TextPiece("b", [1], []))

    async def listen() -> float:
        inbox = Inbox()
        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        computing = asyncio.create_task(asyncio.to_thread(compute, inbox))
        await waiting
        order.append("hands over")
        again, began = asyncio.create_task(inbox.get()), time.monotonic()
        await computing
        again.cancel()
        return time.monotonic() - began

    assert asyncio.run(listen()) < 2
    assert order == ["hands over", "computes"]


def test_what_was_there_before_anybody_listened_is_not_lost() -> None:
    async def listen() -> list[Event]:
        inbox = Inbox()
        inbox.put(TextPiece("a", [1], []))
        inbox.put(END)
        return await inbox.get()

    assert len(asyncio.run(listen())) == 2
