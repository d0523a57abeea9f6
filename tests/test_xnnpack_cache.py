"""XNNPACK packs every weight once, and not once for each method of each session."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from hybridge.runtime.backends.xnnpack_cache import share_packed_weights
from memory import measured

from hybridge.cache.quiet import quiet
from hybridge.export.lowering.partition import OnceStored
from hybridge.runtime.core.library import executorch_runtime
from hybridge.runtime.kernels import compiling

LAYER = torch.nn.Linear(2048, 2048)
METHODS = {"decode": 1, "verify": 5, "prefill": 17}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of 17 MB in three methods."""
    programs = {name: torch.export.export(LAYER, (torch.ones(count, 2048),)) for name, count in METHODS.items()}
    with quiet():
        lowered = to_edge_transform_and_lower(programs, partitioner={name: [OnceStored()] for name in METHODS}).to_executorch()
    path = tmp_path_factory.mktemp("xnnpack") / "model.pte"
    path.write_bytes(lowered.buffer)
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="for Linux")
def test_three_methods_of_two_programs_take_one_copy(program: Path) -> None:
    grown = measured("xnnpack", program, *METHODS)
    assert LAYER.weight.nbytes < sum(grown.values()) < 1.5 * LAYER.weight.nbytes
    assert grown["second"] < 0.2 * LAYER.weight.nbytes


@pytest.mark.slow
def test_the_copy_is_there_as_long_as_someone_needs_it(program: Path) -> None:
    assert share_packed_weights()
    loaded = [load(program), load(program)]
    for methods in loaded:
        compute(methods)
    del loaded[0], methods
    compute(loaded[0])
    compute(load(program))


def test_without_a_compiler_nothing_is_switched_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    assert not share_packed_weights.__wrapped__()
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "compiler", lambda: "/bin/false")
    assert not share_packed_weights.__wrapped__()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def load(program: Path) -> dict[str, Any]:
    runtime = executorch_runtime()
    opened = runtime._load_program(str(program))
    return {name: opened.load_method(name) for name in METHODS}


def compute(methods: dict[str, Any]) -> None:
    for name, count in METHODS.items():
        x = torch.randn(count, 2048)
        torch.testing.assert_close(methods[name].call((x,))[0], LAYER(x))
