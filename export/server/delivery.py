"""How an answer reaches a client: in one object, or in pieces as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import groupby

from starlette.responses import JSONResponse, Response

from hybridge.export.server.answers import Answer, Delta
from hybridge.export.server.errors import ApiError
from hybridge.export.server.job import Chance, Finished, Job, Piece
from hybridge.export.server.responses import DONE, Form, event
from hybridge.runtime.generation.stats import Origin


@dataclass(frozen=True)
class Said:
    """What an answer goes on with; chances: of the tokens, if the job asked for them."""

    deltas: list[Delta]
    chances: list[Chance]


def by_origin(pieces: Sequence[Piece]) -> list[tuple[Origin | None, str]]:
    """Return the texts of pieces, those in a row that come from the same as one."""
    return [(origin, "".join(each.text for each in group)) for origin, group in groupby(pieces, lambda each: each.origin)]


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
    job: Job, form: Form, answer: Answer, first: Said | Finished, heard: AsyncGenerator[Said | Finished, None], *,
    with_usage: bool,
) -> AsyncIterator[str]:  # fmt: skip
    """The answer as server-sent events, the last of them an error where something goes wrong on the way."""
    async with aclosing(heard):
        try:
            if (opening := form.first()) is not None:
                yield event(opening)
            each: Said | Finished = first
            while isinstance(each, Said):
                deltas = each.deltas or ([Delta()] if each.chances else [])
                for i, delta in enumerate(deltas):
                    yield event(form.piece(delta, (each.chances if i == 0 else []) if job.chances is not None else None))
                each = await anext(heard)
            yield event(form.last(answer, each))
            if with_usage:
                yield event(form.usage(each, len(job.prompt)))
            yield DONE
        except ApiError as error:
            yield event(error.to_dict())
