"""What an export makes that says nothing of bits: what one would ship, for every family and every kind of kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quantized_folders import FORMS, save_quantized
from store import exported
from tiny import tiny_config, tiny_model
from zoo import by_kind

from hybridge.export.operators.linear import weights
from hybridge.export.quantize.quantize import quantize, resolve_quantization
from hybridge.export.source.checkpoint import CheckpointSource, load_checkpoint, resolve_checkpoint
from hybridge.export.weights import PackedLinear
from hybridge.export.write.manifest import WeightFigures
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.options import ExportOptions, check_limits

AUTO = ExportOptions(quantize="auto")
HAVE_8_BITS = {"int8", "compressed fp8", "fp8", "fbgemm", "modelopt fp8", "llm.int8"}
ALL_FLOAT = ["no group of 8 columns or more divides this model's weights: they stay float32."]


def source_of(config: Any) -> CheckpointSource:
    return CheckpointSource(path=Path("a folder"), folder=Path("a folder"), config=config)


def options_for(family: str, warned: list[str], **choices: Any) -> ExportOptions:
    return resolve_quantization(ExportOptions(quantize="auto", **choices), source_of(tiny_config(family)), warned.append)


@pytest.mark.parametrize("family", by_kind())
def test_every_family_gets_bits_or_a_warning(family: str) -> None:
    warned: list[str] = []
    options = options_for(family, warned)
    model = tiny_model(tiny_config(family))
    quantize(model, options)
    bits = WeightFigures.of(model).bits
    assert (bits and not warned) or (warned == ALL_FLOAT and not bits)


def test_an_embedding_that_is_more_than_a_table_stays() -> None:
    options = options_for("inkling_text", [])
    assert ("model.embed_tokens", 32) in options.bits


def test_large_groups_come_first() -> None:
    config = tiny_config(
        "llama", hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=2, head_dim=32
    )
    assert resolve_quantization(AUTO, source_of(config), [].append).group_size == 32
    config.intermediate_size = 80
    assert resolve_quantization(AUTO, source_of(config), [].append).group_size == 16


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_of_8_bits_keeps_8(tmp_path: Path, form: str) -> None:
    numbers = save_quantized(tmp_path, form)
    options = resolve_quantization(AUTO, resolve_checkpoint(tmp_path), [].append)
    assert (options.recipe == "none") == (form in HAVE_8_BITS), options
    model = load_checkpoint(tmp_path).model
    quantize(model, options)
    layer = model.get_submodule("model.layers.0.self_attn.q_proj")
    assert isinstance(layer, PackedLinear)
    found = weights(layer.packed, layer.factors, layer.out_features)
    wanted = numbers["model.layers.0.self_attn.q_proj.weight"]
    error = float((found - wanted).norm() / wanted.norm())
    assert error < (0.01 if form in HAVE_8_BITS else 0.1), error


@pytest.mark.parametrize("choices", [{"kernels": "llm"}, {"kernels": "aten"}, {"format": "onnx"}])
def test_other_kernels_get_float32(choices: dict[str, Any]) -> None:
    options = options_for("llama", [], **choices)
    assert (options.quantize, options.recipe) == ("none", "none")


def test_what_was_asked_for_stays() -> None:
    assert options_for("llama", [], recipe="small").recipe == "small"
    assert options_for("llama", [], bits=(("q_proj", 32),)).bits[-1] == ("q_proj", 32)
    assert options_for("llama", [], embedding_quantize="4w").embedding_quantize == "4w"
    asked = ExportOptions(quantize="none")
    assert resolve_quantization(asked, source_of(tiny_config("llama")), [].append) is asked


def test_no_artifact_says_auto() -> None:
    with pytest.raises(ValueError, match="auto"):
        check_limits(replace(AUTO, max_seq_len=64))


@pytest.mark.slow
def test_an_export_without_options_is_what_one_ships(checkpoint: Path) -> None:
    manifest = open_artifact(exported(checkpoint, AUTO)).manifest
    assert (manifest.options.quantize, manifest.options.recipe) == ("8da4w", "balanced")
    assert manifest.bits_per_weight is not None
    assert manifest.bits_per_weight < 32
