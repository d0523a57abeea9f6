"""How pictures are prepared is read from a checkpoint's files, and what no such model takes is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from public_folders import GEMMA3_SPECIAL, GLM_SPECIAL, OMNI_SPECIAL, save_gemma4_unified
from transformers import AutoConfig

from hybridge.errors import CheckpointError, HybridgeError, UnsupportedModelError, UsageError
from hybridge.export.model.vision import describe_pictures
from hybridge.export.source.checkpoint import resolve_checkpoint
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.artifact.pictures import PictureDescription
from hybridge.runtime.binding.programs import TextProgram
from hybridge.runtime.binding.session import Session

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(pictures_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pictures_checkpoint, tmp_path / "checkpoint"))


def rewrite(path: Path, change: Change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def described(folder: Path, **options: Any) -> PictureDescription | None:
    return describe_pictures(resolve_checkpoint(folder).config, folder, ExportOptions(**options))


def test_budgets_are_the_models_own_unless_they_are_given(folder: Path) -> None:
    found = described(folder)
    assert found is not None
    assert (found.budgets, found.tile_size, found.min_tiles, found.max_tiles) == ((16,), 32, 2, 4)
    assert described(folder, image_tokens=(4, 32)).budgets == (4, 32)  # type: ignore[union-attr]
    rewrite(folder / "preprocessor_config.json", lambda content: content.update(max_image_tokens=100))
    assert described(folder).budgets == (64, 100)  # type: ignore[union-attr]
    rewrite(folder / "preprocessor_config.json", lambda content: content.update(max_image_tokens=196))
    assert described(folder).budgets == (64, 144, 196)  # type: ignore[union-attr]


def test_newer_checkpoints_have_all_options_in_one_file(folder: Path) -> None:
    options = json.loads((folder / "preprocessor_config.json").read_text())
    want = described(folder)
    (folder / "preprocessor_config.json").unlink()
    rewrite(folder / "processor_config.json", lambda content: content.update(image_processor=options))
    assert described(folder) == want


def test_a_processor_that_cuts_no_tiles(folder: Path) -> None:
    rewrite(folder / "preprocessor_config.json", lambda content: content.update(do_image_splitting=False, tile_size=500))
    found = described(folder)
    assert found is not None
    assert (found.min_tiles, found.max_tiles) == (1, 1)


def test_pictures_that_nobody_wants_are_not_described(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").unlink()
    assert described(folder, images=False) is None
    assert described(folder, format="onnx") is None


# Qwen3.5


@pytest.fixture
def grid_folder(grid_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grid_checkpoint, tmp_path / "qwen3_5"))


def test_sizes_of_qwen3_5_are_its_processors(grid_folder: Path) -> None:
    found = described(grid_folder)
    assert found is not None
    assert (found.model_type, found.budgets, found.min_tokens, found.max_tokens) == ("qwen3_5", (16,), 4, 16)
    assert (found.unit, found.position_side, found.marks, found.max_tiles) == (8, 5, False, 1)
    larger = {"size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}}
    rewrite(grid_folder / "preprocessor_config.json", lambda content: content.update(larger))
    with pytest.raises(UsageError, match="1024 or more"):
        described(grid_folder, image_tokens=(64, 1000))
    found = described(grid_folder, image_tokens=(64, 2000))
    assert found is not None
    assert (found.budgets, found.min_tokens, found.max_tokens) == ((64, 2000), 1024, 2000)
    older = {"min_pixels": 4 * 64, "max_pixels": 3000 * 64}
    rewrite(grid_folder / "preprocessor_config.json", lambda content: content.update(older))
    found = described(grid_folder)
    assert found is not None
    assert (found.budgets, found.min_tokens, found.max_tokens) == ((64, 144, 196, 256), 4, 256)


def test_qwen3_5_without_a_processor_is_exported_as_text(grid_folder: Path) -> None:
    (grid_folder / "preprocessor_config.json").unlink()
    assert described(grid_folder) is None
    with pytest.raises(CheckpointError, match="--no-images"):
        described(grid_folder, image_tokens=(64,))


@pytest.mark.parametrize("sections", [[3, 3], [3, 3, -1], ["a", "b", "c"]])
def test_sections_of_rope_that_are_none(grid_folder: Path, sections: list[Any]) -> None:
    config = AutoConfig.from_pretrained(grid_folder)
    config.text_config.rope_parameters["mrope_section"] = sections
    with pytest.raises(CheckpointError, match="mrope_section"):
        describe_pictures(config, grid_folder, ExportOptions())


# Gemma 4


@pytest.fixture
def block_folder(block_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(block_checkpoint, tmp_path / "gemma4"))


def change_pictures(folder: Path, **changes: Any) -> None:
    """Change options of a processor that are nested in its file, as Gemma 4's are."""
    rewrite(folder / "processor_config.json", lambda content: content["image_processor"].update(changes))


def test_sizes_of_gemma4_are_its_processors(block_folder: Path) -> None:
    found = described(block_folder)
    assert found is not None
    assert (found.model_type, found.budgets, found.min_tokens, found.max_tokens) == ("gemma4", (20,), 1, 20)
    assert (found.unit, found.position_side, found.marks, found.bidirectional) == (12, 60, True, True)
    assert (found.rows(16), replace(found, bidirectional=False).rows(16)) == (20, 16)
    found = described(block_folder, image_tokens=(6, 20))
    assert found is not None
    assert found.budgets == (6, 20)
    with pytest.raises(UsageError, match="20, 70, 140, 280, 560, 1120 tokens"):
        described(block_folder, image_tokens=(64, 256))
    with pytest.raises(CheckpointError, match="needs 210 positions"):
        described(block_folder, image_tokens=(70,))
    rewrite(block_folder / "config.json", lambda content: content["vision_config"].update(position_embedding_size=840))
    change_pictures(block_folder, max_soft_tokens=280)
    found = described(block_folder)
    assert found is not None
    assert (found.budgets, found.max_tokens, found.position_side) == ((280,), 280, 840)


def test_rows_of_gemma4_see_each_other_if_its_config_says_so(block_folder: Path) -> None:
    rewrite(block_folder / "config.json", lambda content: content["text_config"].update(use_bidirectional_attention=None))
    found = described(block_folder)
    assert found is not None
    assert not found.bidirectional


def test_gemma4_without_a_processor_or_an_encoder_is_exported_as_text(block_folder: Path) -> None:
    rewrite(block_folder / "config.json", lambda content: content.update(vision_config=None))
    assert described(block_folder) is None
    with pytest.raises(UsageError, match="--image-tokens is for"):
        described(block_folder, image_tokens=(70,))
    (block_folder / "processor_config.json").unlink()
    assert described(block_folder) is None


# Gemma 3


@pytest.fixture
def square_folder(square_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(square_checkpoint, tmp_path / "gemma3"))


def test_sizes_of_gemma3_are_its_processors(square_folder: Path) -> None:
    found = described(square_folder)
    assert found is not None
    assert (found.model_type, found.budgets, found.min_tokens, found.max_tokens) == ("gemma3", (16,), 16, 16)
    assert (found.placeholder, found.unit, found.position_side, found.tile_size) == (
        GEMMA3_SPECIAL.index("<start_of_image>"), 12, 12, 48,
    )  # fmt: skip
    assert (found.seeing, found.rows(10), found.constants["hybridge_vision_form"]) == ("everywhere", 16, [1, 0, 1, 1, 1, 1])
    assert described(square_folder, image_tokens=(16,)) == found
    with pytest.raises(UsageError, match="takes 16 tokens"):
        described(square_folder, image_tokens=(8, 16))
    (square_folder / "preprocessor_config.json").unlink()
    (square_folder / "processor_config.json").unlink()
    assert described(square_folder) is None


def test_tokens_that_are_no_square_of_patches(square_folder: Path) -> None:
    rewrite(square_folder / "config.json", lambda content: content.update(mm_tokens_per_image=20))
    with pytest.raises(CheckpointError, match="no square"):
        described(square_folder)


def test_patches_of_gemma4_unified_are_rows(tmp_path: Path) -> None:
    save_gemma4_unified(tmp_path)
    found = described(tmp_path)
    assert found is not None
    assert (found.model_type, found.budgets, found.unit, found.merge, found.position_side) == ("gemma4", (20,), 12, 1, 20)
    assert (found.marks, found.bidirectional, found.seeing) == (True, True, "windows")
    with pytest.raises(UsageError, match="20, 70, 140, 280, 560, 1120 tokens"):
        described(tmp_path, image_tokens=(64, 256))
    with pytest.raises(CheckpointError, match="needs 140 positions"):
        described(tmp_path, image_tokens=(140,))
    change_pictures(tmp_path, pooling_kernel_size=2)
    with pytest.raises(CheckpointError, match="patches are not the model's"):
        described(tmp_path)


# GLM5-Next


@pytest.fixture
def canvas_folder(canvas_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(canvas_checkpoint, tmp_path / "glm5_next"))


def test_sizes_of_glm5_next_are_its_processors(canvas_folder: Path) -> None:
    found = described(canvas_folder)
    assert found is not None
    assert (found.model_type, found.budgets, found.min_tokens, found.max_tokens) == ("glm5_next", (16,), 4, 16)
    assert (found.placeholder, found.unit, found.position_side, found.marks) == (GLM_SPECIAL.index("<|image|>"), 8, 1, False)
    change_pictures(canvas_folder, max_image_tokens=8000)
    assert described(canvas_folder).budgets == (64, 144, 196, 256)  # type: ignore[union-attr]
    found = described(canvas_folder, image_tokens=(6, 2000))
    assert found is not None
    assert (found.budgets, found.max_tokens) == ((6, 2000), 2000)
    with pytest.raises(UsageError, match="4 or more"):
        described(canvas_folder, image_tokens=(3,))
    (canvas_folder / "processor_config.json").unlink()
    assert described(canvas_folder) is None


def test_glm5_next_takes_videos_that_are_left_out(canvas_folder: Path) -> None:
    source = resolve_checkpoint(canvas_folder)
    assert (source.config.model_type, source.text_config.model_type) == ("glm5_next", "glm5_next_text")
    assert [each.partition(" takes ")[2].partition(":")[0] for each in source.warnings(pictures=True)] == ["videos, too"]


# Nemotron-H Omni


@pytest.fixture
def omni_folder(omni_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(omni_checkpoint, tmp_path / "nemotron_h_omni"))


def test_sizes_of_nemotron_h_omni_are_its_processors(omni_folder: Path) -> None:
    found = described(omni_folder)
    assert found is not None
    assert (found.model_type, found.budgets, found.min_tokens, found.max_tokens) == ("nemotron_h_omni", (6, 12), 6, 12)
    assert (found.placeholder, found.unit, found.position_side, found.marks) == (OMNI_SPECIAL.index("<image>"), 8, 24, True)
    rewrite(omni_folder / "preprocessor_config.json", lambda content: content.update(max_num_patches=0))
    found = described(omni_folder, image_tokens=(6, 200))
    assert found is not None
    assert (found.budgets, found.max_tokens) == ((6, 200), 156)
    with pytest.raises(UsageError, match="6 or more"):
        described(omni_folder, image_tokens=(5,))
    (omni_folder / "preprocessor_config.json").unlink()
    assert described(omni_folder) is None


def test_nemotron_h_omni_takes_sounds_and_videos_that_are_left_out(omni_folder: Path) -> None:
    """Its config.json names the model and its parts as it was published, before transformers had them."""
    source = resolve_checkpoint(omni_folder)
    assert (source.config.model_type, source.text_config.model_type) == ("nemotron_h_omni", "nemotron_h")
    assert any("takes sounds and videos, too" in each for each in source.warnings(pictures=True))
    assert any("pictures and sounds are left out" in each for each in source.warnings())


REFUSED: list[tuple[str, dict[str, Any], type[HybridgeError], str]] = [
    ("grid", {"resample": 2}, UnsupportedModelError, "bicubic"),  # another filter
    ("grid", {"patch_size": 5}, CheckpointError, "patches are not the model's"),  # other patches
    ("grid", {"temporal_patch_size": 1}, CheckpointError, "patches are not the model's"),  # other films
    ("grid", {"size": {"longest_edge": "many"}}, CheckpointError, "no such model takes"),  # words for numbers
    ("grid", {"size": {"longest_edge": 64, "shortest_edge": 640}}, HybridgeError, "10"),  # no room
    ("grid", {"size": [1, 2]}, CheckpointError, "no such model takes"),  # no numbers
    ("grid", {"max_pixels": float("inf")}, CheckpointError, "no such model takes"),  # endless
    ("block", {"resample": 2}, UnsupportedModelError, "bicubic"),  # another filter
    ("block", {"do_resize": False}, UnsupportedModelError, "bicubic"),  # no resizing
    ("block", {"patch_size": 5}, CheckpointError, "patches are not the model's"),  # other patches
    ("block", {"pooling_kernel_size": 2}, CheckpointError, "patches are not the model's"),  # other squares
    ("block", {"max_soft_tokens": "many"}, CheckpointError, "no such model takes"),  # words for numbers
    ("block", {"max_soft_tokens": 0}, CheckpointError, "no such model takes"),  # no tokens
    ("block", {"max_soft_tokens": 10**9}, CheckpointError, "no such model takes"),  # far too many
    ("square", {"resample": 3}, UnsupportedModelError, "bilinear"),  # another filter
    ("square", {"do_resize": False}, UnsupportedModelError, "bilinear"),  # no resizing
    ("square", {"do_pan_and_scan": True}, UnsupportedModelError, "crops"),  # crops
    ("square", {"size": {"height": 96, "width": 96}}, CheckpointError, "not of the model's size"),  # another size
    ("square", {"size": {"longest_edge": 48}}, CheckpointError, "no such model takes"),  # no size
    ("square", {"image_mean": [0.1] * 4}, CheckpointError, "no such model takes"),  # a mean for four channels
    ("canvas", {"resample": 2}, UnsupportedModelError, "bicubic"),  # another filter
    ("canvas", {"do_resize": False}, UnsupportedModelError, "bicubic"),  # no resizing
    ("canvas", {"merge_size": 1}, CheckpointError, "patches are not the model's"),  # other squares
    ("canvas", {"temporal_patch_size": 1}, CheckpointError, "patches are not the model's"),  # other films
    ("canvas", {"min_image_tokens": "many"}, CheckpointError, "no such model takes"),  # words for numbers
    ("canvas", {"max_image_tokens": 0}, HybridgeError, "4 or more|no such model takes"),  # no tokens
    ("omni", {"resample": 2}, UnsupportedModelError, "bicubic"),  # another filter
    ("omni", {"patch_size": 5}, CheckpointError, "patches are not the model's"),  # other patches
    ("omni", {"downsample_ratio": 1.0}, CheckpointError, "patches are not the model's"),  # other squares
    ("omni", {"min_num_patches": "many"}, CheckpointError, "no such model takes"),  # words for numbers
    ("omni", {"norm_mean": [0.1] * 4}, CheckpointError, "no such model takes"),  # a mean for four channels
    ("omni", {"downsample_ratio": 0}, CheckpointError, "no such model takes"),  # no squares
    ("pictures", {"resample": 3}, UnsupportedModelError, "bilinear interpolation"),  # another filter
    ("pictures", {"encoder_patch_size": 5}, CheckpointError, "patches are not the model's"),  # other patches
    ("pictures", {"max_image_tokens": "many"}, CheckpointError, "no such model takes"),  # words for numbers
    ("pictures", {"min_image_tokens": 0}, CheckpointError, "min_tokens is 0"),  # no tokens
    ("pictures", {"max_tiles": -1}, CheckpointError, "max_tiles is -1"),  # fewer than none
    ("pictures", {"tile_size": 33}, CheckpointError, "33 pixels"),  # a tile between patches
    ("pictures", {"max_pixels_tolerance": float("nan")}, CheckpointError, "tolerance is nan"),  # a number that is none
    ("pictures", {"max_image_tokens": 10**9}, CheckpointError, "max_tokens is 1000000000"),  # far too many
]
"""By form: options of its processor that no such model has."""


@pytest.mark.parametrize(("form", "changes", "error", "reason"), REFUSED)
def test_options_that_no_such_model_has(
    request: pytest.FixtureRequest, tmp_path: Path, form: str, changes: dict[str, Any], error: type[HybridgeError], reason: str
) -> None:
    folder = Path(shutil.copytree(request.getfixturevalue(f"{form}_checkpoint"), tmp_path / form))
    if form in ("block", "canvas"):
        change_pictures(folder, **changes)
    else:
        rewrite(folder / "preprocessor_config.json", lambda content: content.update(changes))
    with pytest.raises(error, match=reason):
        described(folder)


@pytest.mark.parametrize("form", ["grid", "block"])
def test_a_program_in_python_takes_no_such_pictures(request: pytest.FixtureRequest, form: str) -> None:
    pictures = described(request.getfixturevalue(f"{form}_checkpoint"))
    description = ProgramInfo(vocab_size=340, options=ExportOptions(max_seq_len=64), pictures=pictures)
    with pytest.raises(UsageError, match=r"only a \.pte has"):
        Session.over(TextProgram(lambda text: torch.zeros(340).numpy(), 64), description)


def test_files_that_are_missing_or_no_json(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        described(folder)
    for name in ("preprocessor_config.json", "processor_config.json"):
        (folder / name).unlink()
    with pytest.raises(CheckpointError, match="--no-images"):
        described(folder)


@pytest.mark.parametrize(("options", "reason"), [({"image_tokens": (4, 8)}, "must be 16 or more"), ({"images": False}, "")])
def test_budgets_that_do_not_fit(folder: Path, checkpoint: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason or "--no-images"):
        described(folder, **({"image_tokens": (16,)} | options))
    with pytest.raises(UsageError, match="--image-tokens is for"):
        described(checkpoint, image_tokens=(64,))


def test_a_program_in_python_may_take_pictures(folder: Path) -> None:
    """The core reads the encoder's sizes, and refuses impossible ones, whatever program has it."""
    pictures = described(folder)

    def over(description: PictureDescription | None) -> Session:
        options = ExportOptions(max_seq_len=64)
        return Session.over(
            TextProgram(lambda text: torch.zeros(9).numpy(), 64),
            ProgramInfo(vocab_size=9, options=options, pictures=description),
        )

    assert over(pictures).model.picture_unit == 8
    assert over(None).model.picture_unit == 0
