"""How an answer reaches a client: in one object, or in pieces as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response

from hybridge.export.server.answers import Answer, Delta
from hybridge.export.server.errors import ApiError
from hybridge.export.server.job import Chance, Finished, Job, Piece
from hybridge.runtime.core.statistics import Origin


@dataclass(frozen=True)
class Said:
    """What an answer goes on with; chances: of the tokens, if the job asked for them."""

    deltas: list[Delta]
    chances: list[Chance]


def by_origin(pieces: Sequence[Piece]) -> list[tuple[Origin | None, str]]:
    """Return the texts of pieces, those in a row that come from the same as one."""
    return [(origin, "".join(each.text for each in group)) for origin, group in groupby(pieces, lambda each: each.origin)]


class Form(Protocol):
    """Makes the objects and the events of one answer."""

    def whole(self, answer: Answer, chances: Sequence[Chance] | None, end: Finished, prompt: int) -> dict[str, Any]: ...
    def first(self) -> Iterator[str]: ...
    def piece(self, delta: Delta, chances: Sequence[Chance] | None) -> Iterator[str]: ...
    def last(self, answer: Answer, end: Finished, prompt: int) -> Iterator[str]: ...
    def error(self, error: ApiError) -> Iterator[str]: ...


async def whole(job: Job, form: Form, answer: Answer, heard: AsyncGenerator[Said | Finished, None]) -> Response:
    """Return the answer once it is there."""
    chances: list[Chance] = []
    async with aclosing(heard):
        async for each in heard:
            if isinstance(each, Finished):
                return JSONResponse(form.whole(answer, chances if job.chances is not None else None, each, len(job.prompt)))
            chances += each.chances
    raise AssertionError("a job ends with an event that says so")


async def streamed(
    job: Job, form: Form, answer: Answer, first: Said | Finished, heard: AsyncGenerator[Said | Finished, None]
) -> AsyncIterator[str]:
    """The answer as server-sent events, the last of them an error where something goes wrong on the way."""
    async with aclosing(heard):
        try:
            for event in form.first():
                yield event
            each: Said | Finished = first
            while isinstance(each, Said):
                deltas = each.deltas or ([Delta()] if each.chances else [])
                for i, delta in enumerate(deltas):
                    for event in form.piece(delta, (each.chances if i == 0 else []) if job.chances is not None else None):
                        yield event
                each = await anext(heard)
            for event in form.last(answer, each, len(job.prompt)):
                yield event
        except ApiError as error:
            for event in form.error(error):
                yield event
