"""A GGUF file's weights are packed in NumPy to the bytes that the export makes of them with PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_files import MODELS, TYPES, random_model, save_gguf

from hybridge.export.program.build import build_cache
from hybridge.export.program.state import State
from hybridge.export.quantize.quantize import packer, quantize, resolve_quantization
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.source.gguf.file import open_gguf
from hybridge.export.write.kept import CONFIG, file_sources
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.pack.programs import UnfitProgramError
from hybridge.runtime.pack.weights import GgufWeights

OPTIONS = ExportOptions(max_seq_len=40, prefill_chunk=9, verify_len=3, snapshot_slots=0, quantize="auto")


def usual_mix(name: str) -> TYPES:
    """Return a type as llama.cpp's own mixes have several of: values in more bits than the rest."""
    return TYPES.Q8_0 if "attn_v" in name else TYPES.Q4_0


def state_of(path: Path) -> State:
    source = resolve_checkpoint(path)
    options = resolve_quantization(OPTIONS, source, lambda text: None)
    cache = build_cache(source.config, options)
    model = load_checkpoint(source, packer(options)).model
    quantize(model, options)
    return State(model, cache)


@pytest.mark.parametrize("architecture", MODELS)
def test_every_constant_is_the_exports(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(path, architecture, random_model(architecture), usual_mix)
    state, weights = state_of(path), GgufWeights(open_gguf(path).tensors)
    tensors = dict((*state.named_parameters(), *state.named_buffers()))
    sources = dict(file_sources(state))
    state_names = {name for name in tensors if name.startswith("cache.")}
    different = []
    for name in tensors.keys() - state_names:
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
