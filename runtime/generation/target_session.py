"""The members of a session that generation needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.generation.pace import Pace


class TargetSession(Protocol):
    """A session whose text a generation continues; see ``hybridge.runtime.sessions.session.Session`` for each member."""

    hidden: Tensor

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
    @property
    def verify_lens(self) -> list[int]: ...
    @property
    def tokens(self) -> list[int]: ...
    def pace(self, drafter: Drafter, /) -> Pace: ...
