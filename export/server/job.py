"""A generation that was asked for: reads its prompt and hands out its text, step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from hybridge.export.server.errors import ApiError
from hybridge.runtime.chat.text_stream import Decoder, TextStream
from hybridge.runtime.core.checkpoint import PrefixCache, Reading
from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.generation import Constraint
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats, Origin


@dataclass(frozen=True)
class Place:
    """A session over the loaded artifact, and its drafter."""

    session: Session
    drafter: Drafter | None

    def known(self, prompt: list[int]) -> int:
        """Return how many tokens of the prompt its session has read, if it has read nothing else."""
        tokens = self.session.tokens
        return len(tokens) if prompt[: len(tokens)] == tokens else 0


@dataclass(frozen=True)
class Chance:
    """The logarithm of a token's probability, and those of the most likely ones at its place."""

    token: int
    logprob: float
    best: list[tuple[int, float]]


@dataclass(frozen=True)
class Piece:
    """Text that became complete, and the tokens since the last piece; they have chances if the job asked for them.

    origin: where the last of the tokens comes from.
    """

    text: str
    tokens: list[int]
    chances: list[Chance]
    origin: Origin = "own"


@dataclass(frozen=True)
class Finished:
    """The end of a text. reason: stop or length; known: tokens of the prompt that were not read again."""

    reason: str
    known: int
    stats: GenerationStats


Event = Piece | Finished | ApiError


@dataclass(eq=False)
class Job:
    """prompt: tokens; marks: lengths of the prompt at which others may go another way; chances: how many best tokens to tell.

    emit: takes each event, on the worker's thread; Finished or an ApiError is the last. deadline: by ``time.monotonic``.
    constrain: makes what the text follows.
    """

    prompt: list[int]
    tokenizer: Decoder
    sampling: Sampling
    max_new_tokens: int
    emit: Callable[[Event], None]
    deadline: float
    stop: tuple[str, ...] = ()
    marks: Collection[int] = ()
    chances: int | None = None
    constrain: Callable[[], Constraint] | None = None
    cancelled: bool = False
    _seen: list[Chance] = field(default_factory=list)

    def given_up(self) -> ApiError | None:
        """Return why nobody waits for the text any more, if that is so."""
        if self.cancelled:
            return ApiError(499, "the client went away.", "cancelled")
        if monotonic() > self.deadline:
            return ApiError(408, "the request took longer than the server allows.", "timeout_error", code="timeout")
        return None

    def fail(self, error: ApiError) -> None:
        """Tell why there is no more text."""
        self.emit(error)

    def steps(self, place: Place, cache: PrefixCache) -> Generator[None, None, None]:
        """Read the prompt, then generate: a chunk or a token at each step."""
        stats = GenerationStats()
        session = place.session
        # A few more tokens cost the generation's first call next to nothing; a call of their own costs as much as many.
        rest = max(0, session.prefill_chunk // 4 - 1)
        reading = Reading(session, self.prompt[:-1], cache, self.marks, rest=rest, drafter=place.drafter)
        for _ in reading.steps():
            yield
        text = TextStream(self.tokenizer, self.stop)
        tokens = session.generate(
            self.prompt[session.length :], max_new_tokens=self.max_new_tokens, drafter=place.drafter, sampling=self.sampling,
            until=text.push, watch=self._watch if self.chances is not None else None,
            constraint=self.constrain() if self.constrain is not None else None,
            stats=stats,
        )  # fmt: skip
        last = -1
        with closing(tokens):  # type: ignore[type-var]  # a generator
            for last in tokens:
                self.emit(Piece(text.read(), [last], self._chances(), stats.origin))
                yield
        if ending := text.finish():
            self.emit(Piece(ending, [], []))
        ended = text.stopped or last in session.manifest.eos_ids
        self.emit(Finished("stop" if ended else "length", reading.known, stats))

    def _watch(self, logits: NDArray[np.float32], token: int) -> None:
        largest = logits.max()
        chances = logits - (largest + np.log(np.exp(logits - largest).sum()))
        most = min(self.chances or 0, len(chances))
        best = np.argsort(-chances, kind="stable")[:most]
        pairs = [(int(each), float(chances[each])) for each in best]
        self._seen.append(Chance(token, max(float(chances[token]), -9999.0), pairs))

    def _chances(self) -> list[Chance]:
        """Those of the token that is handed out now: a block's tokens come at once, and are handed out one by one."""
        return [self._seen.pop(0)] if self._seen else []
