"""Kernels are tried on one thread and on two, which no open session may hold."""

from __future__ import annotations

import gc

import pytest

from hybridge.runtime import Model, Session


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_open(_collected: None) -> None:
    """Close the sessions and models that other modules' tests have left: with XNNPACK they keep the threads as they are."""
    gc.unfreeze()
    for kind in (Session, Model):
        for each in gc.get_objects():
            if issubclass(type(each), kind):
                each.close()
    gc.collect()
    gc.freeze()
