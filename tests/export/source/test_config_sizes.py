"""A size in config.json that no model has is refused by name, at once, for every family."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint_forms import edit_json, refusal
from tiny import save_checkpoint, tiny_config

from hybridge.cache.families import FAMILIES
from hybridge.errors import HybridgeError
from hybridge.export.check.oracle import uncached
from hybridge.export.program.build import build_cache
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

WRONG: tuple[Any, ...] = (0, -1, -(2**31), 2**20, 2**31, 2**63, 10**30, "x", [], {}, 1.5, True)
SECONDS = 60
OPTIONS = ExportOptions(max_seq_len=48, prefill_chunk=9, verify_len=3)


@contextmanager
def at_once() -> Iterator[None]:
    """Interrupt what takes longer than any refusal."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"not refused within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def whole_numbers(content: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from whole_numbers(value)
        elif type(value) is int:
            yield content, name


def tried(folder: Path, seed: str, count: int) -> None:
    """Change ``count`` numbers, each by itself: the checkpoint loads to what it was, or is refused."""
    rng, text = random.Random(seed), (folder / "config.json").read_text()
    for _ in range(count):
        content = json.loads(text)
        holder, name = rng.choice(list(whole_numbers(content)))
        holder[name] = rng.choice(WRONG)
        (folder / "config.json").write_text(json.dumps(content))
        with at_once():
            try:
                build_cache(load_checkpoint(folder).config, OPTIONS)
            except HybridgeError:
                continue
            except Exception as error:
                raise AssertionError(f"{name} = {holder[name]!r}") from error


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_wrong_size_of_any_family_is_refused(tmp_path: Path, model_type: str) -> None:
    save_checkpoint(tmp_path, tiny_config(model_type))
    tried(tmp_path, model_type, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_many_wrong_sizes_of_any_family_are_refused(tmp_path: Path, model_type: str) -> None:
    save_checkpoint(tmp_path, tiny_config(model_type))
    tried(tmp_path, f"{model_type} many", 60)


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("jamba", "num_hidden_layers", 2**31 - 1),
        ("llama", "num_hidden_layers", 10_000),
        ("llama", "num_key_value_heads", 2**63),
        ("gemma3_text", "num_key_value_heads", 10**30),
        ("mamba2", "conv_kernel", 2**40),
        ("mamba2", "state_size", 2**63),
        ("qwen3_next", "linear_num_value_heads", 10**30),
        ("qwen3_moe", "num_experts", 2**24),
        ("qwen3", "vocab_size", 2**31),
        ("qwen3", "max_position_embeddings", -(2**63)),
    ],
)
def test_a_size_beyond_any_models_is_named(tmp_path: Path, model_type: str, name: str, value: int) -> None:
    """Before, a cache or layers of that size were laid out before anything was checked."""
    save_checkpoint(tmp_path, tiny_config(model_type))
    edit_json(tmp_path / "config.json", **{name: value})
    with at_once():
        assert f"says {name} = {str(value)[:30]}, expected at most" in refusal(tmp_path)


def test_a_head_dim_of_null_is_what_the_heads_leave(tmp_path: Path) -> None:
    """transformers' config class takes it, and its layers do not."""
    width = {"hidden_size": 48, "num_attention_heads": 4}
    save_checkpoint(tmp_path, tiny_config("hunyuan_v1_dense", **width, head_dim=12))
    want = uncached(load_checkpoint(tmp_path).model)([5, 6, 7])
    edit_json(tmp_path / "config.json", head_dim=None)
    assert uncached(load_checkpoint(tmp_path).model)([5, 6, 7]).equal(want)
