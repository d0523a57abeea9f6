"""The facts of a model that a session needs, of an artifact or of a program in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.artifact.pictures import PictureDescription


class ModelInfo(Protocol):
    """What a session knows of its model; an artifact's manifest is one."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> list[int]: ...
    @property
    def options(self) -> ExportOptions: ...
    @property
    def drafter(self) -> DrafterDescription | None: ...
    @property
    def pictures(self) -> PictureDescription | None: ...
    @property
    def identity(self) -> str | None:
        """Return a hash that distinguishes this model from every other; None without one."""


@dataclass(kw_only=True)
class ProgramInfo:
    """The ``ModelInfo`` of a program in Python."""

    vocab_size: int
    options: ExportOptions
    bos_id: int | None = None
    eos_ids: list[int] = field(default_factory=list)
    model_type: str = "text"
    drafter: DrafterDescription | None = None
    pictures: PictureDescription | None = None
    identity: str | None = None
