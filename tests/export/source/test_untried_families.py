"""Families that nobody entered, of attention alone: recognized by their layers, and run as the uncached model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import save_lively_checkpoint, tiny_config
from transformers import AutoConfig
from zoo.sizes import SIZES
from zoo.untried import UNTRIED

from hybridge.cache.errors import UnsupportedModelError, ValidationError
from hybridge.export import api
from hybridge.export.check import validate as validation
from hybridge.export.check.oracle import eager_session, uncached
from hybridge.export.check.random_program import Oracle
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.runtime.artifacts.options import ExportOptions

SMALL = ExportOptions(max_seq_len=40, prefill_chunk=5, verify_len=3, snapshot_slots=0)
VARIANTS = [(family, variant) for family, sizes in UNTRIED.items() for variant in range(len(sizes))]


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_a_session_gives_the_uncached_logits(tmp_path: Path, family: str, variant: int) -> None:
    save_lively_checkpoint(tmp_path, tiny_config(family, variant))
    model = load_checkpoint(tmp_path).model
    tokens = torch.randint(3, 127, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    want = uncached(model)(tokens)
    session = eager_session(model, ExportOptions(max_seq_len=64, prefill_chunk=9, verify_len=5))
    atol = 2e-5 * float(want.abs().max())
    torch.testing.assert_close(torch.from_numpy(session.prefill(tokens[:30])), want[29], rtol=0, atol=atol)
    torch.testing.assert_close(torch.from_numpy(session.verify(tokens[30:35])), want[30:35], rtol=0, atol=atol)
    session.commit(3)
    torch.testing.assert_close(torch.from_numpy(session.decode(tokens[33])), want[33], rtol=0, atol=atol)


def test_a_head_dim_of_null_is_what_the_heads_leave(tmp_path: Path) -> None:
    """transformers' config class takes it, and its layers do not."""
    sizes = {**SIZES, "head_dim": SIZES["hidden_size"] // SIZES["num_attention_heads"]}
    save_lively_checkpoint(tmp_path, AutoConfig.for_model("hunyuan_v1_dense", **sizes))
    config = json.loads((tmp_path / "config.json").read_text())
    want = uncached(load_checkpoint(tmp_path).model)([5, 6, 7])
    (tmp_path / "config.json").write_text(json.dumps(config | {"head_dim": None}))
    assert uncached(load_checkpoint(tmp_path).model)([5, 6, 7]).equal(want)


@pytest.mark.parametrize("model_type", ["bert", "deepseek_v3", "mpt", "rwkv", "made_up"])
def test_what_is_more_than_attention_is_refused(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "{model_type}", "num_hidden_layers": 2}}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnsupportedModelError, match="is not supported"):
        resolve_checkpoint(tmp_path)


class Warned(ExportProgress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.slow
def test_an_artifact_that_is_wrong_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody asked for a validation."""
    save_lively_checkpoint(tmp_path / "checkpoint", tiny_config("granite"))
    uncached = validation.uncached

    def other_oracle(*arguments: Any) -> Oracle:
        right = uncached(*arguments)
        return lambda tokens: right(tokens) + torch.arange(131)

    monkeypatch.setattr(validation, "uncached", other_oracle)
    monkeypatch.setattr(validation, "PROMPTS", 1)
    monkeypatch.setattr(api, "DEFAULT_PROGRAMS", 1)
    progress = Warned()
    with pytest.raises(ValidationError):
        api.export_model(tmp_path / "checkpoint", tmp_path / "artifact", SMALL, progress=progress)
    assert not (tmp_path / "artifact").exists()
    assert any("nobody has tried 'granite' models" in text for text in progress.warnings)
