"""An encoder of pictures beside a GGUF file is that of the folder, and one of another model is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import random_model, save_gguf
from gguf_mmproj import FOLDERS, save_mmproj, save_with_pictures
from public_folders import GEMMA3_OPTIONS, save_gemma3, save_lfm2_vl
from store import exported

from hybridge.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.check.validate import validate_session
from hybridge.export.model.vision import describe_pictures
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

SAID_BY_THE_MODEL = ("model_type", "placeholder", "patch_size", "merge", "position_side", "bidirectional")
"""Fields of a description of pictures that are the model's own; a GGUF file has no others."""


def read_processor(folder: Path) -> dict[str, Any]:
    """The options of the picture processor, which newer folders have among those of others."""
    whole = folder / "processor_config.json"
    path = folder / "preprocessor_config.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else json.loads(whole.read_text())["image_processor"]
    return found


def rounded(entries: dict[str, Any]) -> dict[str, Any]:
    """Numbers as a file's float32 has them."""
    return {name: float(np.float32(each)) if isinstance(each, float) else each for name, each in entries.items()}


@pytest.mark.parametrize("model_type", FOLDERS)
def test_encoder_and_text_are_those_of_the_folder(tmp_path: Path, model_type: str) -> None:
    folder, file = tmp_path / "folder", tmp_path / "files" / "model.gguf"
    FOLDERS[model_type](folder)
    want = save_with_pictures(folder, file.parent)
    loaded = load_checkpoint(file, pictures=True)
    assert loaded.whole is not None
    got = loaded.whole.state_dict()
    wanted = {name: each for name, each in want.state_dict().items() if "audio" not in name}
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, msg=name)
    assert rounded(loaded.whole.config.vision_config.to_dict()) == rounded(want.config.vision_config.to_dict())
    sources = [resolve_checkpoint(each) for each in (file, folder)]
    mine, theirs = (describe_pictures(source.config, source.folder, ExportOptions()) for source in sources)
    by_processor = {"position_side"} if model_type.startswith("gemma4") else set()  # as many as its tokens need
    for field in {*SAID_BY_THE_MODEL} - by_processor:
        assert getattr(mine, field) == getattr(theirs, field), field
    processors = [read_processor(source.folder) for source in sources]
    for name in ("image_mean", "image_std"):
        assert processors[0][name] == pytest.approx(processors[1][name])
    text = load_checkpoint(file)
    assert text.whole is None
    assert text.config.model_type == want.config.get_text_config().model_type


@pytest.mark.thorough
def test_a_file_exports_and_validates_with_pictures(tmp_path: Path) -> None:
    save_gemma3(tmp_path / "folder")
    save_with_pictures(tmp_path / "folder", tmp_path / "files")
    file = tmp_path / "files" / "model.gguf"
    artifact = exported(file, replace(GEMMA3_OPTIONS, quantize="none"))
    report = validate_session(artifact, resolve_checkpoint(file), ExportProgress(), programs=2, seed=0)
    report.check()


# Bad input


@pytest.fixture
def pictured(tmp_path: Path) -> Path:
    save_lfm2_vl(tmp_path / "folder")
    save_with_pictures(tmp_path / "folder", tmp_path / "files")
    return tmp_path / "files" / "model.gguf"


def test_an_encoder_of_another_size_is_refused_by_name(pictured: Path) -> None:
    whole = load_checkpoint(pictured, pictures=True).whole
    other = pictured.with_name("mmproj-model.gguf")
    save_mmproj(other, whole, "lfm2", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}, width=64)
    says = f"{other} is the encoder of pictures of another model: it makes embeddings of 64 numbers, the model's have 48"
    with pytest.raises(CheckpointError, match=says):
        resolve_checkpoint(pictured, mmproj=other)
    source = resolve_checkpoint(pictured)
    assert source.config.model_type == "lfm2"
    assert any(f"Pictures are left out: {says}" in text for text in source.warnings())


def test_an_encoder_of_another_kind_is_refused_by_name(pictured: Path, tmp_path: Path) -> None:
    save_gguf(tmp_path / "qwen.gguf", "qwen35", random_model("qwen35"))
    mmproj = pictured.with_name("mmproj-model.gguf")
    with pytest.raises(CheckpointError, match=r"its projector 'lfm2' is for lfm2 and lfm2_moe, the model is 'qwen3_5_text'"):
        resolve_checkpoint(tmp_path / "qwen.gguf", mmproj=mmproj)
    data = mmproj.read_bytes()
    mmproj.write_bytes(data.replace(b"\x04\0\0\0\0\0\0\0lfm2", b"\x04\0\0\0\0\0\0\0ulip"))
    with pytest.raises(UnsupportedModelError, match=r"encodes pictures as llama.cpp's 'ulip' does, which hybridge does not"):
        resolve_checkpoint(pictured, mmproj=mmproj)


def test_other_files_are_no_encoder(pictured: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is a model of llama.cpp's architecture 'lfm2', not an encoder of pictures"):
        resolve_checkpoint(pictured, mmproj=pictured)
    with pytest.raises(CheckpointError, match=r"mmproj-none.gguf is not a file"):
        resolve_checkpoint(pictured, mmproj=tmp_path / "mmproj-none.gguf")
    with pytest.raises(UsageError, match=r"--mmproj is for a GGUF file"):
        resolve_checkpoint(tmp_path / "folder", mmproj=pictured)
    with pytest.raises(UnsupportedModelError, match=r"is the encoder of a model's pictures \(mmproj\)"):
        resolve_checkpoint(pictured.with_name("mmproj-model.gguf"))


def test_a_model_without_a_token_for_pictures_has_none(pictured: Path) -> None:
    pictured.write_bytes(pictured.read_bytes().replace(b"<image>", b"<imige>"))
    with pytest.raises(CheckpointError, match=r"has no token <image> for its pictures"):
        resolve_checkpoint(pictured)
