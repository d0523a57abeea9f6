"""What a session must know of its model."""

from __future__ import annotations

from typing import Protocol

from hybridge.runtime.artifacts.options import ExportOptions


class Description(Protocol):
    """A Session's description of its model; an artifact's manifest is one."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_ids(self) -> list[int]: ...
    @property
    def options(self) -> ExportOptions: ...
    @property
    def identity(self) -> str | None:
        """Return what tells it from every other model; none if nothing does."""
