"""Families that nobody entered, of attention alone: recognized by their layers, and run as the uncached model does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import lively, save_lively_checkpoint, tiny_config, tiny_model
from transformers import PreTrainedConfig, PreTrainedModel
from zoo.untried import UNTRIED

from hybridge.errors import UnsupportedModelError, ValidationError
from hybridge.export import api
from hybridge.export.check import validate as validation
from hybridge.export.check.oracle import disturbed, uncached
from hybridge.export.check.random_program import Oracle
from hybridge.export.check.validate import MOST_ROUNDING, TOLERANCE, validate
from hybridge.export.program.eager import eager_session
from hybridge.export.progress import ExportProgress
from hybridge.export.report import ValidationReport
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

SMALL = ExportOptions(max_seq_len=40, prefill_chunk=5, verify_len=3, snapshot_slots=0)
UNSCALED = tiny_config("granite_swa", attention_multiplier=1.0)
"""Attention's scores are products that nothing divides: with large weights they are in the hundreds."""
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


def scaled(folder: Path, config: PreTrainedConfig, factor: int) -> PreTrainedModel:
    """Return a checkpoint's model whose weights are ``factor`` times as large as a lively one's, but for the embedding."""
    model = lively(tiny_model(config))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "embed" not in name:
                weight.mul_(factor)
    model.save_pretrained(folder)
    return load_checkpoint(folder).model


def validated(model: PreTrainedModel, oracle: Oracle, *, is_sure: bool = False) -> ValidationReport:
    """Validate a session of ``model``; is_sure: as if float32 were sure of all logits."""
    other = None if is_sure else disturbed(model, oracle)
    counts = {"programs": 2, "prompts": 0, "new_tokens": 1, "seed": 0, "same_bits": None}
    return validate(eager_session(model, SMALL), oracle, **counts, notify=lambda *_: None, disturbed=other)  # type: ignore[arg-type]


def test_a_model_of_whose_logits_float32_is_not_sure_is_not_refused(tmp_path: Path) -> None:
    """The reference's logits and ours differ by more than 2e-05 there, and each from those of float64 as much."""
    model = scaled(tmp_path, UNSCALED, 16)
    report = validated(model, uncached(model))
    assert not validated(model, uncached(model), is_sure=True).passed
    assert report.passed
    assert TOLERANCE < report.worst_relative < report.tolerance < MOST_ROUNDING


@pytest.mark.parametrize(("factor", "wrong"), [(16, 3e-3), (1, 3e-5)])
def test_an_error_that_rounding_does_not_explain_is_refused(tmp_path: Path, factor: int, wrong: float) -> None:
    model = scaled(tmp_path, UNSCALED, factor)
    right = uncached(model)

    def other(tokens: Sequence[int]) -> torch.Tensor:
        logits = right(tokens)
        return logits + wrong * logits.abs().max() * (torch.arange(131) % 2)

    report = validated(model, other)
    assert not report.passed
    assert report.tolerance <= MOST_ROUNDING


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
    save_lively_checkpoint(tmp_path / "checkpoint", tiny_config("granite", num_hidden_layers=1))
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
