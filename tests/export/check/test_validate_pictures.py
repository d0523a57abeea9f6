"""An artifact with pictures is compared with the whole eager model, and the comparison finds a wrong encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from assistant_reference import AssistantReference, assistant_config
from drafter_twins import dspark_config, random_tensors, save_drafter
from picture_reference import rgb
from public_folders import (
    GEMMA3_OPTIONS,
    GEMMA_OPTIONS,
    GLM_OPTIONS,
    LFM2_VL_OPTIONS,
    OMNI_OPTIONS,
    QWEN_OPTIONS,
    save_gemma3,
    save_gemma4,
    save_qwen3_5_pictures,
)
from safetensors.torch import load_file, save_file
from store import exported
from transformers import AutoConfig, AutoModelForImageTextToText

from hybridge.export.check.validate import validate_session
from hybridge.export.model.encoders import gemma3
from hybridge.export.model.vision import VISION, read_processor
from hybridge.export.pinned.transformers import block_masks
from hybridge.export.progress import ExportProgress
from hybridge.export.report import ValidationReport
from hybridge.export.source.checkpoint import resolve_checkpoint
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.session import Session

MORE = [pytest.param(form, marks=pytest.mark.thorough) for form in ("canvas", "row", "square", "omni")]
"""Forms whose encoders, processors and rows are compared with transformers' without a program."""


def report_of(artifact: Path, checkpoint: Path) -> ValidationReport:
    return validate_session(artifact, resolve_checkpoint(checkpoint), ExportProgress(), programs=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pictures", "grid", "block", *MORE])
def test_random_programs_with_pictures(request: pytest.FixtureRequest, form: str) -> None:
    report = report_of(request.getfixturevalue(f"{form}_artifact"), request.getfixturevalue(f"{form}_checkpoint"))
    report.check()
    assert report.operations["picture"] > 4
    assert report.worst_relative <= 2e-5
    assert report.generation.rollbacks > 0
    assert report.to_dict()["reader"] == "safetensors"
    if form == "grid":
        assert report.generation.drafted_prompts == report.generation.drafted_matches > 0
        assert report.generation.drafted_accepted > 0


@pytest.mark.slow
def test_rows_of_pictures_at_other_positions_are_found(grid_artifact: Path, grid_checkpoint: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(grid_checkpoint, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["rope_parameters"]["mrope_section"] = [6, 1, 1]
    (other / "config.json").write_text(json.dumps(config))
    report = report_of(grid_artifact, other)
    assert report.first_divergence is not None
    assert any(name.startswith("picture") for name in report.first_divergence.operations)


@pytest.mark.slow
def test_rows_in_blocks_that_see_no_later_ones_are_found(block_artifact: Path, block_checkpoint: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(block_checkpoint, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = None
    (other / "config.json").write_text(json.dumps(config))
    report = report_of(block_artifact, other)
    assert report.first_divergence is not None
    assert any(name.startswith("picture") for name in report.first_divergence.operations)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_rows_that_see_no_later_ones_are_found(
    square_artifact: Path, square_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The whole model is made causal in some layers, as the artifact is in none."""

    def causal(config: Any, ids: torch.Tensor, counts: Sequence[int]) -> dict[str, torch.Tensor | None]:
        return block_masks(config, ids, counts) | {kind: block_masks(config, torch.zeros_like(ids), [])[kind]}

    monkeypatch.setattr(gemma3, "block_masks", causal)
    report = report_of(square_artifact, square_checkpoint)
    assert report.first_divergence is not None
    assert any(name.startswith("picture") for name in report.first_divergence.operations)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [5, 500])
def test_square_pictures_beyond_a_window_and_within_one(tmp_path: Path, window: int) -> None:
    save_gemma3(tmp_path, sliding_window=window)
    report_of(exported(tmp_path, GEMMA3_OPTIONS), tmp_path).check()


CHANGES: tuple[dict[str, Any], ...] = (
    {"kernels": "llm"},
    {"quantize": "8da4w", "group_size": 8},
    {"kernels": "aten"},
    {"quantize": "4w", "group_size": 8, "rounding": "blocks"},
    {"kv_cache": "int8"},
    {"prefill_chunk": 40},
)
FORMS = {
    "pictures": (LFM2_VL_OPTIONS, CHANGES[:3]), "grid": (QWEN_OPTIONS, CHANGES[:3]), "square": (GEMMA3_OPTIONS, CHANGES),
    "block": (GEMMA_OPTIONS, (CHANGES[0], CHANGES[2])), "row": (GEMMA_OPTIONS, CHANGES[:2]),
    "omni": (OMNI_OPTIONS, CHANGES[:4]), "canvas": (GLM_OPTIONS, CHANGES[:4]),
}  # fmt: skip
"""The options of a form's artifact, and what is changed in them."""


@pytest.mark.thorough
@pytest.mark.parametrize(("form", "changes"), [(form, each) for form, (_, changes) in FORMS.items() for each in changes])
def test_other_kernels_and_fewer_bits(request: pytest.FixtureRequest, form: str, changes: dict[str, Any]) -> None:
    checkpoint = request.getfixturevalue(f"{form}_checkpoint")
    report_of(exported(checkpoint, replace(FORMS[form][0], **changes)), checkpoint).check()


@pytest.mark.thorough
def test_fewer_bits_in_blocks(tmp_path: Path) -> None:
    """Validate a model without experts, of which another one may be chosen for a rounding."""
    save_gemma4(tmp_path, enable_moe_block=False)
    report_of(exported(tmp_path, replace(GEMMA_OPTIONS, quantize="8da4w", group_size=8)), tmp_path).check()


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, {"kernels": "llm"}])
def test_layers_that_read_tokens_too(tmp_path: Path, changes: dict[str, object]) -> None:
    save_gemma4(tmp_path, large=False)
    report_of(exported(tmp_path, replace(GEMMA_OPTIONS, **changes)), tmp_path).check()  # type: ignore[arg-type]  # a test's options


@pytest.mark.thorough
def test_experts_read_pictures_on_a_grid(tmp_path: Path) -> None:
    save_qwen3_5_pictures(tmp_path, mtp=False, kind="qwen3_5_moe")
    artifact = exported(tmp_path, replace(QWEN_OPTIONS, mtp=False))
    report_of(artifact, tmp_path).check()


@pytest.mark.slow
def test_another_encoder_is_found(pictures_artifact: Path, pictures_checkpoint: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(pictures_checkpoint, tmp_path / "other"))
    weights = load_file(other / "model.safetensors")
    weights["model.vision_tower.encoder.layers.1.mlp.fc1.bias"] += 0.1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    report = report_of(pictures_artifact, other)
    assert report.first_divergence is not None
    assert report.first_divergence.error > 0


@pytest.mark.thorough
def test_a_drafter_in_the_artifact_reads_the_rows_of_pictures(pictures_checkpoint: Path, tmp_path: Path) -> None:
    text = AutoConfig.from_pretrained(pictures_checkpoint).text_config
    config = dspark_config(text, ["full_attention", "full_attention"], [0, 1])
    drafter = save_drafter(tmp_path / "drafter", config, random_tensors(config))
    artifact = exported(pictures_checkpoint, replace(LFM2_VL_OPTIONS, draft_blocks=(5,)), drafter=drafter)
    report = report_of(artifact, pictures_checkpoint)
    report.check()
    assert report.generation.drafted_prompts == report.generation.drafted_matches > 0
    session = Session.load(artifact)
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    picture = Picture(session.model, noise, prepared=True)
    session.prefill([1, *picture.ids, 60])
    hidden = session.hidden
    assert len(hidden) == 11
    assert np.isfinite(hidden).all()
    drafted = session.draft(hidden, [*picture.ids, 60, 61])
    assert len(drafted.tokens) == 4
    assert all(0 <= token < session.vocab_size for token in drafted.tokens)


@pytest.mark.thorough
@pytest.mark.parametrize("large", [True, False])
def test_an_assistant_reads_the_rows_of_pictures(tmp_path: Path, *, large: bool) -> None:
    """Gemma 4's assistants attend to the target's own keys and values, so to those of a picture's rows."""
    target = tmp_path / "target"
    save_gemma4(target, large=large)
    reference = AssistantReference(assistant_config(AutoConfig.from_pretrained(target).text_config))
    drafter = reference.save(tmp_path / "assistant")
    artifact = exported(target, replace(GEMMA_OPTIONS, draft_blocks=(2, 5)), drafter=drafter)
    report = report_of(artifact, target)
    report.check()
    assert report.operations["picture"] > 4
    assert report.worst_relative <= 2e-5
    assert report.generation.drafted_prompts == report.generation.drafted_matches > 0

    whole: Any = AutoModelForImageTextToText.from_pretrained(target, dtype=torch.float32, attn_implementation="eager").eval()
    session = Session.load(artifact)
    for seed, (rows, columns) in enumerate([(4, 5), (1, 1), (2, 7), (20, 1), (3, 3), (5, 2)]):
        session.reset()
        pixels = rgb(rows, columns, seed, session.model.picture_unit)
        picture = Picture(session.model, pixels, prepared=True)
        row, behind = session.model.placeholder, [60 + seed, 61, 62][: 1 + seed % 3]
        session.prefill([50, *picture.ids, *behind])
        inputs = VISION["gemma4"].inputs(whole.config, read_processor(target, VISION["gemma4"]), [torch.from_numpy(pixels)])
        text = [50, *[row] * len(picture.ids), *behind, 70]
        kinds = torch.tensor([[int(token == row) for token in text[:-1]]])
        drafted = session.draft(session.hidden, text[1:], limit=4)
        assert drafted.tokens == reference.proposals(whole, text, 4, mm_token_type_ids=kinds, **inputs)
