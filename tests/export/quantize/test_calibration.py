"""Calibrated exports: less error than rounding without data, weights that a validation finds again, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from store import exported
from tiny import lively, save_lively_checkpoint, save_tokenizer, tiny_config, tiny_model
from zoo import VARIANTS

from hybridge.errors import UsageError
from hybridge.export.api import export_model
from hybridge.export.check.evaluate import divergence
from hybridge.export.check.validate import validate_session
from hybridge.export.operators.linear import weights
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.bits import untied_linears, with_recipe
from hybridge.export.quantize.gptq import LENGTH, WINDOWS, calibrate, round_on, sampled_tokens
from hybridge.export.quantize.quantize import quantize, rounder_of
from hybridge.export.quantize.rounding import round_by_search
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.weights import Grid
from hybridge.export.write.manifest import WeightFigures
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.artifact.options import ExportOptions

SIZES = {"hidden_size": 64, "intermediate_size": 96}
LAYERS = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
TEXT = "for each in range(10):\n    print(each, end=' ')\n" * (WINDOWS * LENGTH // 40)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated") / "checkpoint"
    save_lively_checkpoint(folder, tiny_config("qwen3_5_text", **SIZES, **LAYERS))
    save_tokenizer(folder)
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


@pytest.mark.slow
def test_calibrated_weights_are_nearer_on_texts_like_those(checkpoint: Path) -> None:
    loaded, options = load_checkpoint(checkpoint), ExportOptions(quantize="4w")
    calibrated = calibrate(loaded, options, checkpoint.parent / "text.txt")
    tokens = calibrated.tokens[:4]
    before = [weight.clone() for weight in loaded.model.parameters()]
    want = loaded.model(tokens, use_cache=False).logits
    assert all(weight.equal(kept) for weight, kept in zip(loaded.model.parameters(), before, strict=True))
    found = []
    for rounder in (calibrated.rounder, round_by_search):
        model = load_checkpoint(checkpoint).model
        quantize(model, options, rounder)
        found.append(float(divergence(want, model(tokens, use_cache=False).logits).mean()))
    assert found[0] < 0.7 * found[1]


@pytest.mark.parametrize(
    "family", ["qwen3_5_text", "kimi_linear", "mamba2", "jamba", "lfm2", "recurrent_gemma", "minimax", "falcon_h1"]
)
def test_every_linear_layer_is_reached_whatever_the_family(family: str) -> None:
    assert family in VARIANTS
    model = lively(tiny_model(tiny_config(family)))
    grids = {
        name: Grid(bits=4, group=8, signed_scales=True) for name, layer in untied_linears(model) if layer.in_features % 8 == 0
    }
    tokens = torch.randint(0, model.config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))
    assert set(round_on(model, tokens, grids)) == set(grids)


def test_a_model_makes_the_same_texts_every_time(checkpoint: Path) -> None:
    loaded = load_checkpoint(checkpoint)
    made = sampled_tokens(loaded)
    assert made.equal(sampled_tokens(loaded))
    assert made.shape[0] == WINDOWS
    assert len({tuple(row) for row in made.tolist()}) == WINDOWS


@pytest.mark.slow
def test_groups_with_minima_are_calibrated_too(checkpoint: Path) -> None:
    """5 and 6 bits among them, a weight that was quantized before, and an embedding, which calibration does not reach."""
    options = with_recipe(ExportOptions(recipe="balanced", rounding="blocks"))
    text, loaded = checkpoint.parent / "text.txt", load_checkpoint(checkpoint)
    name = "model.layers.1.self_attn.k_proj"
    quantized = loaded.model.get_submodule(name)
    torch.manual_seed(0)
    numbers = torch.randint(-8, 8, quantized.weight.shape).float() * 2.0**-5
    quantized.weight.data = numbers
    calibrated, found = calibrate(loaded, options, text), []
    tokens = calibrated.tokens[:4]
    want = loaded.model(tokens, use_cache=False).logits
    for rounder in (calibrated.rounder, rounder_of(options)):
        model = load_checkpoint(checkpoint).model
        model.get_submodule(name).weight.data = numbers.clone()
        quantize(model, options, rounder)
        kept = model.get_submodule(name)
        assert weights(kept.packed, kept.factors, kept.out_features).equal(numbers)
        bits = WeightFigures.of(model).bits
        assert (bits[name], bits["model.embed_tokens"], bits["model.layers.1.self_attn.v_proj"]) == (4, 5, 6)
        found.append(float(divergence(want, model(tokens, use_cache=False).logits).mean()))
    assert found[0] < 0.9 * found[1], found


@pytest.mark.slow
@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"embedding_quantize": "8w", "bits": (("o_proj", 8),)}, marks=pytest.mark.thorough),
        {"embedding_quantize": "5w", "bits": (("o_proj", 8), ("v_proj", 6)), "rounding": "blocks"},
    ],
    ids=["scales", "minima"],
)
@pytest.mark.thorough
def test_an_artifact_validates_against_the_weights_that_it_holds(checkpoint: Path, choices: dict[str, Any]) -> None:
    options = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, quantize="4w", **choices)
    artifact = exported(checkpoint, options, calibrate=checkpoint.parent / "text.txt")
    manifest = read_manifest(artifact)
    assert manifest.options.calibrate == "text"
    assert manifest.calibration is not None
    assert set(manifest.calibration.stored) == set(manifest.bits) - {"model.embed_tokens"}
    report = validate_session(artifact, resolve_checkpoint(checkpoint), ExportProgress(), programs=4, seed=0)
    report.check()
    assert report.worst_relative < 2e-5


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        (ExportOptions(), TEXT, "--calibrate is for rounded weights; give --quantize, --recipe or --bits too"),
        (ExportOptions(quantize="8da4w", kernels="llm"), TEXT, "--calibrate needs --format pte and --kernels hybridge"),
        (ExportOptions(quantize="4w"), "short", f"has 5 tokens, and one window is {LENGTH}; give a longer text."),
        (ExportOptions(quantize="4w"), None, "cannot be read"),
        (ExportOptions(quantize="4w", group_size=40), TEXT, "groups of 40 do not divide"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    options: ExportOptions, text: str | None, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "text.txt").write_text(text)
    with pytest.raises(UsageError, match=re.escape(message)):
        export_model(checkpoint, tmp_path / "out", options, calibrate=tmp_path / "text.txt")
    assert not (tmp_path / "out").exists()
