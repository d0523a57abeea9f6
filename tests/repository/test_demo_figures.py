"""The figures of the demo are of what they say, whatever else the machine does."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hybridge.export.cli import figures


class Clock:
    """A clock that only the session below moves."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class NoisySession:
    """A session whose verify takes 1 ms at first and 0.4 ms later on, as on a machine that was busy; a commit takes 0.2 ms."""

    verify_len, room, length = 4, 50, 50

    def __init__(self, clock: Clock) -> None:
        self.clock, self.calls = clock, 0

    def state(self) -> dict[str, NDArray[np.float32]]:
        return {"keys": np.ones((1, 60, 2), np.float32)}

    def reset(self) -> None: ...

    def prefill(self, tokens: list[int]) -> None: ...

    def verify(self, tokens: list[int]) -> None:
        self.calls += 1
        self.clock.now += 0.0010 if self.calls <= 51 else 0.0004

    def commit(self, count: int) -> None:
        self.clock.now += 0.0002

    def decode(self, token: int) -> None:
        self.clock.now += 0.0003


def test_a_rejection_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two medians was negative where the first was noisy."""
    clock = Clock()
    monkeypatch.setattr(figures, "time", clock)
    unchanged, *times = figures.rejection(NoisySession(clock))  # type: ignore[arg-type]
    assert unchanged
    assert times == pytest.approx([1.0, 0.2, 0.3])
