"""Memory of zeros that is given back: still zeros, still writable, nothing beside it changed, and not resident."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from memory import measured

from hybridge.runtime import Session
from hybridge.runtime.backends.zero_pages import release_pages


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
def test_zeros_are_not_resident() -> None:
    assert measured("zeros")["given back"] > 60 << 20


def test_zeros_stay_zeros_and_can_be_written_to() -> None:
    memory = torch.ones(1 << 20, dtype=torch.uint8)
    inner = memory[1000:-1000].zero_()
    release_pages(inner)
    assert not inner.any()
    assert memory[:1000].all()
    assert memory[-1000:].all()
    inner.fill_(3)
    assert inner.eq(3).all()


def test_a_state_begins_with_zeros(artifact: Path) -> None:
    """As the runtime clears it, which is why it may be given back; empty slots say so with -1, and the reset is counted."""
    state = Session.load(artifact).state()
    assert [name for name, buffer in state.items() if buffer.any()] == ["slot_length", "operations"]


def test_less_than_a_page_is_left_alone() -> None:
    memory = torch.ones(100)
    release_pages(memory[10:20].zero_())
    assert memory.sum() == 90
