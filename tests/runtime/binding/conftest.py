"""Sessions of the artifact that most tests here read; a file that reads another one has a ``model`` of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.runtime import Model, Session, open_artifact


@pytest.fixture(scope="module")
def model(artifact: Path) -> Model:
    return Model.open(open_artifact(artifact))


@pytest.fixture
def session(model: Model) -> Session:
    return Session(model)
