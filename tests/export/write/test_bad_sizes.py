"""Sizes that no program can have are refused before anything is allocated, traced or written."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import by_kind

from hybridge.cache.block import CacheSizes
from hybridge.cache.families import FAMILIES, Family, plan
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.attention import FullAttentionLayer
from hybridge.cache.layers.layer import CacheLayer
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError, UsageError
from hybridge.export.api import export_model
from hybridge.export.program.build import build_cache
from hybridge.runtime.artifact.options import ExportOptions

ABSURD = 10**12
IMPOSSIBLE = [
    {name: value}
    for name, lowest in {"max_seq_len": 1, "prefill_chunk": 1, "verify_len": 1, "snapshot_slots": 0}.items()
    for value in (lowest - 1, -5, ABSURD)
]
SMALLEST = {"max_seq_len": 1, "prefill_chunk": 1, "verify_len": 1, "snapshot_slots": 0}


class Devices(TorchDispatchMode):
    """Notes where tensors are made."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.seen.add(result.device.type)
        return result


def refusal_of(sizes: dict[str, int]) -> str:
    (name, value), *_ = sizes.items()
    return rf"{name} is {value}, but must lie between \d+ and \d+"


@pytest.mark.parametrize("sizes", [*IMPOSSIBLE, {"batch_size": 0}, {"batch_size": -1}, {"batch_size": ABSURD}], ids=str)
@pytest.mark.parametrize("model_type", ["llama", "qwen3_5_text"])
def test_a_cache_of_impossible_size_is_refused(model_type: str, sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=refusal_of(sizes)):
        HybridCache.from_config(tiny_config(model_type), **({"max_seq_len": 8} | sizes))


@pytest.mark.parametrize("shorter", [(0,), (-1,), (5,), (6,), (3, 2), (2, 2)], ids=str)
def test_shorter_blocks_must_be_shorter_and_in_order(shorter: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="must lie below verify_len and be in order"):
        build_cache(tiny_config("llama"), ExportOptions(max_seq_len=8, verify_len=5, shorter_verify_lens=shorter))


@pytest.mark.parametrize("sizes", [each for each in IMPOSSIBLE if each != {"max_seq_len": 0}], ids=str)  # the model's own
def test_an_export_of_impossible_size_writes_nothing(checkpoint: Path, tmp_path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=refusal_of(sizes)):
        export_model(checkpoint, tmp_path / "out", ExportOptions(**sizes), force=False, validate=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model_type", ["llama", "qwen3_5_text"])
def test_the_smallest_sizes_are_built(model_type: str) -> None:
    cache = build_cache(tiny_config(model_type), ExportOptions(**SMALLEST))
    assert cache.sizes.rows == 2


def test_a_length_that_was_not_given_is_said_and_not_the_models() -> None:
    config = tiny_config("llama", max_position_embeddings=10_000_000)
    with pytest.warns(UserWarning, match="max_seq_len was not given: the cache holds 2048 tokens"):
        cache = HybridCache.from_config(config)
    assert cache.sizes.max_seq_len == 2048


@pytest.mark.parametrize(
    ("model_type", "overrides", "sizes"),
    [
        ("llama", {"num_key_value_heads": 64, "head_dim": 256}, {"max_seq_len": 1 << 20}),
        (
            "qwen3_5_text",
            {"linear_num_value_heads": 4096, "linear_value_head_dim": 4096},
            {"max_seq_len": 8, "snapshot_slots": 1024},
        ),
    ],
)
def test_a_state_larger_than_memory_is_refused_without_allocating_it(
    model_type: str, overrides: dict[str, int], sizes: dict[str, int]
) -> None:
    config = tiny_config(model_type, **overrides)
    with (
        pytest.raises(UsageError, match=r"the state would take \d+\.\d GB of the \d+\.\d GB that this process may have"),
        Devices() as devices,
    ):
        build_cache(config, ExportOptions(**sizes))
    assert devices.seen == {"meta"}


def test_a_state_takes_at_most_half_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config, options = tiny_config("qwen3_5_text"), ExportOptions(max_seq_len=96)
    with torch.device("meta"):
        size = build_cache(config, options).state_bytes()
    memory = {"SC_PAGE_SIZE": 2, "SC_PHYS_PAGES": size}
    monkeypatch.setattr(os, "sysconf", memory.__getitem__)
    assert build_cache(config, options).state_bytes() == size
    memory["SC_PHYS_PAGES"] -= 1
    with pytest.raises(UsageError, match="lower --max-seq-len or --snapshot-slots"):
        build_cache(config, options)


@pytest.mark.parametrize("model_type", by_kind())
def test_a_bad_number_in_a_config_is_the_configs_fault(model_type: str) -> None:
    """Whatever number is spoilt, and as far as transformers itself takes it: the cache is built, or the config is refused."""
    good = tiny_config(model_type).to_dict()
    names = [name for name, value in good.items() if isinstance(value, int) and not isinstance(value, bool)]
    for name, value in product(names, (0, -1, None, 2.5, "wide")):
        try:
            config = type(tiny_config(model_type)).from_dict(good | {name: value})
            plan(config)
        except Exception:  # refused by transformers, or by the plan: read_config says so
            continue
        with torch.device("meta"), suppress(CheckpointError):
            assert HybridCache.from_config(config, max_seq_len=32).state_bytes() > 0


def test_a_mistake_in_a_family_is_not_the_configs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is called with a keyword it does not have, or a broken operation on tensors: shown as it is."""

    def mistaken(config: Any, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
        return FullAttentionLayer(sizes, kernels, kv_heads=2, head_dimension=8)  # type: ignore[call-arg]

    def broken(config: Any, sizes: CacheSizes, kernels: Kernels, index: int) -> CacheLayer:
        return FullAttentionLayer(sizes, kernels, kv_heads=2, head_dim=torch.zeros(2, 3).view(5).numel())

    for builder, error in ((mistaken, TypeError), (broken, RuntimeError)):
        monkeypatch.setitem(FAMILIES, "llama", Family(layers={"full_attention": builder}))
        with pytest.raises(error, match=r"head_dimension|shape"):
            HybridCache.from_config(tiny_config("llama"), max_seq_len=8)


def test_a_division_by_a_size_of_zero_keeps_its_cause() -> None:
    config = tiny_config("qwen4_exp_text")
    config.indexer_compress_ratio = 0
    with pytest.raises(CheckpointError, match="sizes that no layer can have") as refusal:
        HybridCache.from_config(config, max_seq_len=32)
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)
