"""Grammars of the core: a JSON schema, a regular expression or calls of tools that a text must follow."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from ctypes import byref, c_int64, c_size_t, cast
from typing import TYPE_CHECKING

from hybridge.runtime.binding.interface import Floats, GrammarHandle, Tokens
from hybridge.runtime.binding.library import load, run

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import NDArray

MOST_FORCED = 256
"""Most forced tokens of one call; the next ones come with the next call."""


class CoreGrammar:
    """A compiled grammar; each text needs a follower of its own."""

    def __init__(self, handle: GrammarHandle, eos_ids: Sequence[int]) -> None:
        """Own an open grammar. eos_ids: tokens that end a text."""
        self.handle, self.eos_ids = handle, tuple(eos_ids)
        weakref.finalize(self, load().hybridge_grammar_close, handle)

    def follow(self, after: str = "") -> Follower:
        """Return a constraint for one text. after: a text such as the end of a reasoning, after which the grammar begins."""
        data, ends, handle = after.encode(), (c_int64 * len(self.eos_ids))(*self.eos_ids), GrammarHandle()
        run("grammar_with", self.handle, data, len(data), ends, len(ends), byref(handle))
        return Follower(handle)


class Follower:
    """A ``Constraint`` that the core follows by itself in a generation; its methods are for callers that choose tokens."""

    def __init__(self, handle: GrammarHandle) -> None:
        """Own an open grammar for one text."""
        self.handle = handle
        weakref.finalize(self, load().hybridge_grammar_close, handle)
        self._text = array("q")

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Make minus infinity of logits [V] for each token that may not come next. Raises GrammarError if none may."""
        run("grammar_mask", self.handle, *self._so_far(), logits.ctypes.data_as(Floats), len(logits))

    def take(self, token: int) -> None:
        """Add a token to the text."""
        self._text.append(token)

    def forced(self) -> list[int]:
        """Return the tokens that come next whatever the model says."""
        tokens, count = (c_int64 * MOST_FORCED)(), c_size_t()
        run("grammar_forced", self.handle, *self._so_far(), tokens, MOST_FORCED, byref(count))
        return tokens[: min(count.value, MOST_FORCED)]

    def fitting(self, tokens: Sequence[int]) -> int:
        """Return how many of ``tokens``, from the first on, may come next."""
        given, count = (c_int64 * len(tokens))(*tokens), c_size_t()
        run("grammar_fitting", self.handle, *self._so_far(), given, len(given), byref(count))
        return count.value

    def _so_far(self) -> tuple[object, int]:
        address, count = self._text.buffer_info()
        return cast(address, Tokens), count
