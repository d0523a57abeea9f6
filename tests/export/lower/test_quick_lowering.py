"""Patches that make a lowering faster and smaller: they leave every byte of a program as it is, and do what they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.emit import _emitter
from executorch.exir.pass_base import _ExportPassBase
from torch import Tensor, nn

from hybridge.export.lower.lower import OnceStored, quick_lowering
from hybridge.export.pinned.executorch import StoredTensor, backend_config, edge_config
from hybridge.export.pinned.stock_operators import llama
from hybridge.export.pinned.torch_export import check, without_history
from hybridge.export.quantize.rounding import round_to_nearest
from hybridge.export.quantize.stock import StockLinear, StockWeight
from hybridge.export.weights import Grid
from hybridge.imports import quiet

COUNTED: dict[str, Any] = {
    "_decompose_exported_program": torch.export.exported_program,
    "call": _ExportPassBase,
    "_can_merge_partitions": GroupBasedPartitioner,
    "_save_new_const_tensor": _emitter._Emitter,
    "_tensor_spec_to_evalue": _emitter._Emitter,
}
"""Functions that patches spare calls of, and where they are."""


class Mixer(nn.Module):
    """Islands around an operator that XNNPACK does not take, a convolution, a norm, states, and weights of every kind.

    Where rows are written is a number that is read of a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(32, 32, 3, groups=32, bias=False)
        rounded = StockWeight(round_to_nearest("", torch.randn(32, 64), Grid(bits=4, group=32, scale=torch.bfloat16)))
        self.up, self.down = nn.Linear(32, 64), StockLinear(rounded, None)
        self.table, self.norm = nn.Embedding(16, 32), nn.RMSNorm(32)
        self.register_buffer("total", torch.zeros(32))
        self.register_buffer("rows", torch.zeros(1, 16, 1, 32))
        self.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.table(tokens))
        inner = torch.cat([nn.functional.silu(self.up(x)), x.cumsum(0).repeat(1, 2)]) * 2
        mixed = self.conv(self.down(inner).T[None])[0].T
        self.total.add_(mixed.sum(0))
        start = tokens[0].item()
        check(start >= 0)
        check(start + len(x) <= 16)
        llama.update_cache(x[None, :, None], self.rows, start)
        out: Tensor = torch.relu(mixed + self.total.clone() + self.rows.sum(1)[0])
        return out


def lowered(patch: Callable[[], AbstractContextManager[None]]) -> tuple[bytes, Counter[str]]:
    """A program of two methods, and how often the functions in ``COUNTED`` were called for it."""
    counts: Counter[str] = Counter()

    def counted(name: str, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*args, **options)

        return call

    mixer = Mixer()
    with quiet(), torch.no_grad(), ExitStack() as patches:
        methods = {
            name: torch.export.export(mixer, (torch.arange(size),), strict=False)
            for name, size in (("decode", 4), ("verify", 7))
        }
        for name, owner in COUNTED.items():
            patches.enter_context(mock.patch.object(owner, name, counted(name, getattr(owner, name))))
        patches.enter_context(patch())
        edge = to_edge_transform_and_lower(
            methods, partitioner={name: [OnceStored()] for name in methods}, compile_config=edge_config()
        )
        return bytes(edge.to_executorch(backend_config()).buffer), counts


@pytest.fixture(scope="module")
def plain_program() -> tuple[bytes, Counter[str]]:
    return lowered(without_history)  # whose numbers for debuggers come from histories


@pytest.fixture(scope="module")
def quick_program() -> tuple[bytes, Counter[str]]:
    return lowered(quick_lowering)


@pytest.mark.slow
def test_every_byte_stays_as_it_is(plain_program: tuple[bytes, Any], quick_program: tuple[bytes, Any]) -> None:
    assert quick_program[0] == plain_program[0]


@pytest.mark.parametrize(
    ("name", "at_most"),
    [("_decompose_exported_program", 0.5), ("call", 0.3), ("_can_merge_partitions", 0.0), ("_tensor_spec_to_evalue", 0.98)],
)
def test_calls_are_spared(
    name: str, at_most: float, plain_program: tuple[Any, Counter[str]], quick_program: tuple[Any, Counter[str]]
) -> None:
    assert plain_program[1][name] > 0, f"{name} is not what is called any more"
    assert quick_program[1][name] <= at_most * plain_program[1][name]


def test_a_constant_is_stored_as_often_as_before(
    plain_program: tuple[Any, Counter[str]], quick_program: tuple[Any, Counter[str]]
) -> None:
    assert quick_program[1]["_save_new_const_tensor"] == plain_program[1]["_save_new_const_tensor"] > 0


def test_a_constant_is_not_copied_and_writes_itself(tmp_path: Path) -> None:
    weight = torch.arange(100, dtype=torch.float32)
    stored = StoredTensor(weight.untyped_storage())
    weight[0] = 7.0
    with (tmp_path / "file").open("wb") as file:
        stored.write_to_file(file)
    assert (tmp_path / "file").read_bytes() == weight.numpy().tobytes() == stored.to_bytes()
    assert (len(stored), stored.prefix(4)) == (400, weight[:1].numpy().tobytes())
