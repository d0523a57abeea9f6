"""Calls of a program that keep its state and the text that it is the state of in step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import torch

from hybridge.cache.errors import ArtifactError, NumericalError
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.backends.methods import Methods, number
from hybridge.runtime.sessions.committed_text import Change, CommittedText
from hybridge.runtime.sessions.token_runner import Answer, TokenRunner
from hybridge.runtime.sessions.unfinished import Calls, PutBack, Reset, Unfinished


class Transactions:
    """A program, and the text whose state it holds: each change happens to both of them or to neither.

    A change is begun, run and ended; what an interrupt leaves of it is settled before anything else is done. Whether a change
    is allowed is for the caller to know.
    """

    def __init__(self, program: Methods, options: ExportOptions) -> None:
        self.program = program
        self._runner = TokenRunner(options)
        self._text = CommittedText()
        self._unfinished: Unfinished | None = None

    def text(self) -> CommittedText:
        """Return the text, once nothing is unfinished."""
        while self._unfinished is not None:
            self._unfinished = self._unfinished.settle(self.program, self._text)
        return self._text

    def become(self, state: Unfinished) -> CommittedText:
        """Return the text of ``state`` once the program holds that, whatever it held before."""
        self._unfinished = state
        return self.text()

    def extend(self, ids: list[int]) -> Answer:
        """Commit tokens in chunks; returns the logits [1, V] after the last, and the hidden states of all.

        Raises NumericalError, saying whether the state is as it was: only calls of several chunks can be taken back.
        """
        text = self.text()
        chunks = self._runner.chunks(ids)
        calls = sum(map(self._runner.calls, chunks))
        undo = self._undo(text, len(chunks), calls)
        self._begin(Change(base=len(text.tokens), tokens=ids), calls, undo)
        try:
            starts = accumulate(map(len, chunks[:-1]), initial=len(text.tokens))
            answers = [self._runner.extend(self.program, *each) for each in zip(chunks, starts, strict=True)]
        except NumericalError as error:
            raise self._taken_back(error, undo) from None
        self._end()
        return answers[-1][0], answers[0][1] if len(answers) == 1 else torch.cat([hidden for _, hidden in answers])

    def verify(self, ids: list[int]) -> Answer:
        """Stage a block; returns logits and hidden states after each token. Raises NumericalError, with the state as it was."""
        text = self.text()
        self._begin(Change(base=len(text.tokens), staged=ids))
        try:
            answer = self._runner.verify(self.program, ids, len(text.tokens))
        except NumericalError as error:
            raise self._taken_back(error, PutBack({}, replace(text, staged=[]))) from None
        self._end()
        return answer

    def move(self, name: str, argument: int, change: Change, refused: Exception) -> int:
        """Run a method that answers with a length, and return that. Raises ``refused`` for its -1."""
        self._begin(change)
        answer = int(self.program.call(name, number(argument))[0])
        self._end(refused)
        if answer != change.length:
            raise ArtifactError(f"the program answered a {name} with {answer}, not {change.length}; export the model again.")
        return answer

    @contextmanager
    def drafting(self, calls: int) -> Iterator[None]:
        """Run so many calls of a drafter inside, which change its own state and no text; too few of them are taken back.

        A single call happens as a whole. A drafter that is full refuses one, and keeps what it has read.
        """
        text = self.text()
        kept = {name: each.clone() for name, each in self.program.bounded().items() if calls > 1 and name != "length"}
        self._begin(Change(base=len(text.tokens), staged=text.staged), calls, PutBack(kept, replace(text)))
        yield
        self._unfinished = None

    def _begin(self, change: Change, calls: int = 1, undo: Unfinished | None = None) -> None:
        """Announce so many calls that make ``change``."""
        before = self.program.operations()
        self._unfinished = Calls(change=change, before=before, after=before + calls, undo=undo)

    def _end(self, refused: Exception | None = None) -> None:
        """Settle the calls that came back. Raises ``refused`` where the program refused."""
        calls = self._unfinished
        self.text()
        if isinstance(calls, Calls) and self.program.operations() != calls.after:
            raise refused or ArtifactError("the program refused tokens that fit; export the model again.")

    def _taken_back(self, error: NumericalError, undo: Unfinished | None) -> NumericalError:
        """Let ``undo`` be done next, where there is one; the error, saying how the state is left."""
        if undo is None:
            return NumericalError(f"{error} The tokens are committed: reset, restore a slot or load a state to go on.")
        self._unfinished = undo
        return NumericalError(f"{error} The state is as it was.")

    def _undo(self, text: CommittedText, chunks: int, calls: int) -> Unfinished | None:
        """How to take back some calls of a prefill: rows behind the length do not count, so bounded buffers are enough.

        For a single call nothing is copied: that would cost every token that is decoded a copy of the state.
        """
        if not text.tokens and not text.slots:
            return Reset()
        if calls == 1:
            return None
        kept = self.program.bounded() if chunks > 1 else {}  # a single chunk is verified and then committed at once
        return PutBack({name: buffer.clone() for name, buffer in kept.items()}, replace(text, staged=[]))
