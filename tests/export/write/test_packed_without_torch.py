"""A GGUF file's weights are packed in NumPy to the bytes that the export makes of them with PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf_files import MODELS, TYPES, random_model, save_gguf
from gguf_mmproj import FOLDERS, save_with_pictures
from public_folders import GEMMA_LIMITS, save_gemma4, save_lfm2_vl

from hybridge.export.model.vision import describe_pictures
from hybridge.export.program.build import build_cache, build_encoder
from hybridge.export.program.state import State
from hybridge.export.quantize.quantize import packer, quantize, resolve_quantization
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.source.gguf.file import open_gguf
from hybridge.export.write import packed
from hybridge.export.write.kept import CONFIG, file_sources
from hybridge.export.write.packed import PackingShape, missing_program
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.pack.programs import KeptProgram, UnfitProgramError
from hybridge.runtime.pack.weights import GgufWeights

OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=9, verify_len=3, snapshot_slots=0, quantize="auto")


def usual_mix(name: str) -> TYPES:
    """Return a type as llama.cpp's own mixes have several of: values in more bits than the rest."""
    return TYPES.Q8_0 if "attn_v" in name else TYPES.Q4_0


def state_of(path: Path) -> State:
    source = resolve_checkpoint(path)
    options = resolve_quantization(OPTIONS, source, lambda text: None)
    pictures = describe_pictures(source.config, source.folder, options)
    cache = build_cache(source.config, options, pictures=pictures)
    loaded = load_checkpoint(source, packer(options), pictures=pictures is not None)
    quantize(loaded.model, options)
    encoder = None if pictures is None else build_encoder(loaded, options, pictures, lambda text: None)
    return State(loaded.model, cache, vision=encoder)


@pytest.mark.parametrize("architecture", MODELS)
def test_every_constant_is_the_exports(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(path, architecture, random_model(architecture), usual_mix)
    check_constants(path)


@pytest.mark.parametrize("model_type", FOLDERS)
def test_every_constant_of_an_encoder_is_the_exports(model_type: str, tmp_path: Path) -> None:
    FOLDERS[model_type](tmp_path / "folder")
    matrices = TYPES.Q8_0 if model_type == "lfm2_vl" else TYPES.F16
    save_with_pictures(tmp_path / "folder", tmp_path / "files", kind=TYPES.Q8_0, matrices=matrices)
    check_constants(tmp_path / "files" / "model.gguf", only="vision.")


def test_a_file_whose_text_alone_is_kept_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_lfm2_vl(tmp_path / "folder")
    save_with_pictures(tmp_path / "folder", tmp_path / "files", kind=TYPES.Q8_0)
    file, hint = tmp_path / "files" / "model.gguf", "Its text opens alone, without mmproj-model.gguf beside it: --no-images."
    assert hint not in missing_program(file, OPTIONS)
    monkeypatch.setattr(packed, "_find", lambda shape: None if shape.whole.projector else KeptProgram(parts=[], methods={}))
    assert hint in missing_program(file, OPTIONS)
    assert hint not in missing_program(file, replace(OPTIONS, images=False))


def test_limits_of_layers_are_of_the_shape_because_they_are_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set[str]()
    for most in (2.0, 3.0):
        monkeypatch.setitem(GEMMA_LIMITS, "input_max", most)
        folder = tmp_path / str(most)
        save_gemma4(folder, large=False)
        save_with_pictures(folder, folder / "files", kind=TYPES.Q8_0)
        names.add(PackingShape.of(open_gguf(folder / "files" / "model.gguf"), OPTIONS).name)
    assert len(names) == 2


def check_constants(path: Path, only: str = "") -> None:
    """Compare the constants of a file's model whose names begin with ``only``."""
    state, shape = state_of(path), PackingShape.of(open_gguf(path), OPTIONS)
    weights = GgufWeights(shape.tensors)
    tensors = dict((*state.named_parameters(), *state.named_buffers()))
    sources = dict(file_sources(state))
    names = {name for name in tensors if name.startswith(only) and not name.startswith("cache.")}
    assert names
    different = []
    for name in names:
        if sources.get(name) is CONFIG:
            continue
        want = tensors[name].detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        try:
            same = name in sources and weights.fill(sources[name]) == want
        except UnfitProgramError as error:
            different.append((name, str(error)))
            continue
        if not same:
            different.append((name, "no source" if name not in sources else "other bytes"))
    assert not different
