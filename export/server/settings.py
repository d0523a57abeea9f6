"""What the command line decides for all requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridge.export.server.guard import Limits
from hybridge.runtime.core.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Settings:
    """name: the model's; host: what the server is bound to; key: the API key, if it wants one; origins: those of web pages
    that may ask; sampling: where a request says nothing; queue: requests that may wait.
    """

    name: str
    host: str = "127.0.0.1"
    key: str | None = None
    origins: Sequence[str] = ()
    sampling: Sampling = field(default_factory=Sampling)
    queue: int = 32
    limits: Limits = field(default_factory=Limits)
