"""Events of a generation on their way to a client: in order, none lost, and in few hops."""

from __future__ import annotations

import asyncio
import threading
import time

from hybridge.export.server.inbox import INTERVAL, Inbox
from hybridge.export.server.job import Event, Finished, Piece
from hybridge.runtime import GenerationStats

END = Finished("stop", 0, GenerationStats())


def heard(count: int, seconds: float) -> tuple[list[list[Event]], float]:
    """What comes of so many pieces from another thread, with a pause behind each; and the seconds from the end to the last."""
    ended = 0.0

    async def listen() -> list[list[Event]]:
        inbox, batches = Inbox(), list[list[Event]]()

        def work() -> None:
            nonlocal ended
            for i in range(count):
                inbox.put(Piece(str(i), [i], []))
                time.sleep(seconds)
            ended = time.perf_counter()
            inbox.put(END)

        thread = threading.Thread(target=work)
        thread.start()
        while not batches or batches[-1][-1] is not END:
            batches.append(await inbox.get())
        thread.join()
        return batches

    return asyncio.run(listen()), time.perf_counter() - ended


def test_fast_tokens_come_in_order_and_together() -> None:
    batches, late = heard(2000, 0.0001)
    events = [each for batch in batches for each in batch]
    assert [each.text for each in events if isinstance(each, Piece)] == list(map(str, range(2000)))
    assert events[-1] is END
    assert batches[0][0] is events[0]
    assert len(batches) < 2000 / 4, "a hop for each token is what it is there to avoid"
    assert late < 1


def test_slow_tokens_come_one_by_one() -> None:
    batches, _ = heard(6, 3 * INTERVAL)
    assert len(batches) >= 6


def test_what_was_there_before_anybody_listened_is_not_lost() -> None:
    async def listen() -> list[Event]:
        inbox = Inbox()
        inbox.put(Piece("a", [1], []))
        inbox.put(END)
        return await inbox.get()

    assert len(asyncio.run(listen())) == 2
