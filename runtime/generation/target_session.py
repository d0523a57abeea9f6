"""The members of a session that generation and validation need: calls that run tokens, and what a target has beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.generation.pace import Pace


class TokenSession(Protocol):
    """A session that runs, verifies and commits tokens; see ``hybridge.runtime.sessions.session.Session`` for each member."""

    @property
    def manifest(self) -> Description: ...
    @property
    def verify_len(self) -> int: ...
    @property
    def room(self) -> int: ...
    def prefill(self, tokens: Sequence[int], /) -> Tensor: ...
    def decode(self, token: int, /) -> Tensor: ...
    def verify(self, tokens: Sequence[int], /) -> Tensor: ...
    def commit(self, count: int, /) -> int: ...


class TargetSession(TokenSession, Protocol):
    """A session whose text a generation continues."""

    hidden: Tensor

    @property
    def verify_lens(self) -> list[int]: ...
    @property
    def tokens(self) -> list[int]: ...
    def pace(self, drafter: Drafter, /) -> Pace: ...
