"""Patches that make a lowering faster and smaller: each leaves every byte of a program as it is, and does what it is for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.emit import _emitter
from executorch.exir.pass_base import ExportPass
from torch import Tensor, nn
from torch.export import ExportedProgram

from hybridge.cache.quiet import quiet
from hybridge.export.layers.stock_layers import StockLinear, StockWeight
from hybridge.export.lowering.partition import OnceStored
from hybridge.export.lowering.quick_lowering import quick_lowering
from hybridge.export.pinned import emission, torch_export, xnnpack
from hybridge.export.pinned.executorch import backend_config, edge_config

Patch = Callable[[], AbstractContextManager[None]]


class Mixer(nn.Module):
    """Islands around an operator that XNNPACK does not take, a convolution, a norm, a state, and weights of every kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(32, 32, 3, groups=32, bias=False)
        self.up, self.down = nn.Linear(32, 64), StockLinear(StockWeight(torch.randn(32, 64), 4, 32), None)
        self.table, self.norm = nn.Embedding(16, 32), nn.RMSNorm(32)
        self.register_buffer("total", torch.zeros(32))
        self.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens))
        inner = torch.cat([nn.functional.silu(self.up(x)), x.cumsum(0).repeat(1, 2)]) * 2
        mixed = self.conv(self.down(inner).T[None])[0].T
        self.total.add_(mixed.sum(0))
        out: Tensor = torch.relu(mixed + self.total.clone())
        return out


@pytest.fixture(scope="module")
def methods() -> dict[str, ExportedProgram]:
    mixer = Mixer()
    return {
        name: torch.export.export(mixer, (torch.arange(count),), strict=False) for name, count in (("decode", 4), ("verify", 7))
    }


def program(methods: dict[str, ExportedProgram], patch: Patch) -> bytes:
    with quiet(), torch.no_grad(), patch():
        edge = to_edge_transform_and_lower(
            dict(methods), partitioner={name: [OnceStored()] for name in methods}, compile_config=edge_config()
        )
        return bytes(edge.to_executorch(backend_config()).buffer)


@pytest.fixture(scope="module")
def plain(methods: dict[str, ExportedProgram]) -> bytes:
    return program(methods, nullcontext)


@pytest.mark.parametrize(
    "patch",
    [
        torch_export.without_history,
        torch_export.late_code,
        torch_export.known_operators,
        torch_export.fewer_decompositions,
        xnnpack.fewer_passes,
        xnnpack.quick_merges,
        xnnpack.weights_held_once,
        emission.constants_in_place,
        quick_lowering,
    ],
    ids=lambda patch: patch.__name__,
)
def test_a_patch_leaves_every_byte_as_it_is(methods: dict[str, ExportedProgram], plain: bytes, patch: Patch) -> None:
    assert program(methods, patch) == plain


def calls(owner: Any, name: str, methods: dict[str, ExportedProgram], patch: Patch) -> int:
    """How often a method is called in a lowering."""
    count, original = 0, getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **options)

    with mock.patch.object(owner, name, counted):
        program(methods, patch)
    return count


@pytest.mark.parametrize(
    ("patch", "owner", "name", "at_most"),
    [
        (torch_export.fewer_decompositions, ExportedProgram, "run_decompositions", 0.7),
        (xnnpack.fewer_passes, ExportPass, "call", 0.9),
        (xnnpack.quick_merges, GroupBasedPartitioner, "_can_merge_partitions", 0.0),
        (emission.constants_in_place, _emitter._Emitter, "_tensor_spec_to_evalue", 0.95),
    ],
)
def test_a_patch_spares_calls(methods: dict[str, ExportedProgram], patch: Patch, owner: Any, name: str, at_most: float) -> None:
    before, after = calls(owner, name, methods, nullcontext), calls(owner, name, methods, patch)
    assert before > 0, f"{name} is not what is called any more"
    assert after <= at_most * before


def test_a_constant_is_not_copied_and_writes_itself(tmp_path: Any) -> None:
    weight = torch.arange(100, dtype=torch.float32)
    stored = emission.StoredTensor(weight.untyped_storage())
    weight[0] = 7.0
    with (tmp_path / "file").open("wb") as file:
        stored.write_to_file(file)
    assert (tmp_path / "file").read_bytes() == weight.numpy().tobytes() == stored.to_bytes()
    assert (len(stored), stored.prefix(4)) == (400, weight[:1].numpy().tobytes())
