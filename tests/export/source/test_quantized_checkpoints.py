"""Checkpoints that others quantized are read as the very numbers that they stand for; four bits of theirs stay in ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_forms import assert_same_weights, edit_json, refusal
from quantized_folders import FORMS, save_mxfp4, save_quantized, save_torchao
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, save_tokenizer, tiny_config
from torch import Tensor

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.cli.progress import plain_rows
from hybridge.export.operators.linear import weights
from hybridge.export.quantize.quantize import pack_weights
from hybridge.export.report import ValidationReport
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.weights import PackedLinear
from hybridge.runtime.artifact.options import ExportOptions

FITS_4_BITS = {"gptq sym", "auto-round", "int4"}
FITS_8_BITS = FITS_4_BITS | {"gptq", "awq", "auto-round awq", "int4 asymmetric"}


def assert_numbers(folder: Path, numbers: dict[str, Tensor]) -> None:
    model = load_checkpoint(folder).model
    ours = model.state_dict()
    assert numbers.keys() <= ours.keys()
    for name, weight in numbers.items():
        torch.testing.assert_close(ours[name], weight, rtol=1e-6, atol=0)  # for the order of two products


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read_as_the_numbers_it_stands_for(tmp_path: Path, form: str) -> None:
    assert_numbers(tmp_path, save_quantized(tmp_path, form))


def test_gpt_oss_is_read_as_it_is_published(tmp_path: Path) -> None:
    assert_numbers(tmp_path, save_mxfp4(tmp_path))


def test_torchao_is_read_with_its_metadata(tmp_path: Path) -> None:
    numbers = save_torchao(tmp_path)
    assert any(name.endswith("_weight_qdata") for name in load_file(tmp_path / "model.safetensors"))
    assert_numbers(tmp_path, numbers)


@pytest.mark.parametrize(("quantize", "fits"), [("4w", FITS_4_BITS), ("8w", FITS_8_BITS)])
def test_numbers_of_few_bits_stay_as_they_are(tmp_path: Path, quantize: str, fits: set[str]) -> None:
    """But for FP8 and NF4, which are on no grid of 8 bits."""
    for form in [*sorted(fits), "fp8", "nf4"]:
        numbers = save_quantized(tmp_path / form, form)
        model = load_checkpoint(tmp_path / form).model
        pack_weights(model, ExportOptions(quantize=quantize, group_size=32))
        layers = {name: each for name, each in model.named_modules() if isinstance(each, PackedLinear) and "_proj" in name}
        assert len(layers) == 14
        for name, layer in layers.items():
            kept = weights(layer.packed, layer.factors, layer.out_features).equal(numbers[f"{name}.weight"])
            assert kept == (form in fits), (form, name)


@pytest.mark.parametrize(
    ("form", "reader"),
    [("gptq", "hybridge's own reader of GPTQ, as in the export"), ("fp8", "hybridge's own reader of FP8, as in the export")],
)
def test_a_validation_says_who_read_the_weights(tmp_path: Path, form: str, reader: str) -> None:
    """Both of its sides read them by the same code, so it proves nothing of that."""
    save_quantized(tmp_path, form, layers=1)
    source = resolve_checkpoint(tmp_path)
    report = ValidationReport(seed=0, tolerance=1e-5, reader=source.reader)
    assert report.to_dict()["reader"] == reader
    assert dict(plain_rows(report))["reference's weights read by"] == reader


# Bad input


@pytest.fixture
def plain_checkpoint(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, tiny_config("qwen3"))
    save_tokenizer(tmp_path)
    return tmp_path


def test_a_method_that_is_not_read_is_named(plain_checkpoint: Path) -> None:
    edit_json(plain_checkpoint / "config.json", quantization_config={"quant_method": "aqlm", "in_group_size": 8})
    said = refusal(plain_checkpoint, UnsupportedModelError)
    assert f"the weights in {plain_checkpoint} are quantized already, by aqlm, which hybridge does not read" in said
    assert "Take the unquantized checkpoint, in float32, float16 or bfloat16" in said


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("awq", {"version": "gemv"}, "by AWQ in its layout 'gemv'"),
        ("gptq", {"bits": 3}, "by GPTQ in 3 bits, of which hybridge reads 2, 4 and 8"),
        ("gptq", {"bits": "four"}, "says bits = 'four', expected a whole number"),
        ("int4", {"format": "marlin-24"}, "in its format 'marlin-24'"),
        ("nvfp4", {"quant_algo": "W4A8_AWQ"}, "NVIDIA ModelOpt's W4A8_AWQ, of which hybridge reads FP8 and NVFP4"),
    ],
)
def test_a_variant_that_is_not_read_is_named(tmp_path: Path, form: str, changes: dict[str, object], message: str) -> None:
    save_quantized(tmp_path, form)
    edit_json(tmp_path / "config.json", quantization_config={**FORMS[form].config, **changes})
    said = refusal(tmp_path, UnsupportedModelError)
    assert message in said
    assert "Take the unquantized checkpoint" in said


@pytest.mark.parametrize("form", ["gptq", "int4", "fp8", "nf4"])
def test_a_part_that_is_missing_or_misshapen_is_told(tmp_path: Path, form: str) -> None:
    save_quantized(tmp_path, form)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    scales = [name for name in stored if name.endswith((".scales", ".weight_scale", "_scale_inv", ".absmax"))]
    part = max(scales, key=lambda name: len(stored[name]))
    marker = next(name for name in stored if name.endswith(("qweight", "_packed", ".weight", "bitsandbytes__nf4")))
    for changed in ({part: None}, {part: stored[part][:1].clone()}, {marker: stored[marker][:1].clone()}):
        content = {name: each for name, each in (stored | changed).items() if each is not None}
        save_file(content, path, metadata={"format": "pt"})
        assert any(word in refusal(tmp_path, CheckpointError) for word in ("stored as", "shape", "lacks"))


def test_an_old_config_of_bitsandbytes_is_known(tmp_path: Path) -> None:
    numbers = save_quantized(tmp_path, "llm.int8")
    edit_json(tmp_path / "config.json", quantization_config={"load_in_8bit": True})
    assert_numbers(tmp_path, numbers)


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    numbers = save_quantized(tmp_path, "modelopt fp8")
    edit_json(tmp_path / "config.json", quantization_config=None)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert_numbers(tmp_path, numbers)


# Tensors that nothing reads


def add(folder: Path, **tensors: Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path, metadata={"format": "pt"})


LAYER = "model.layers.0"
UNREAD = {
    f"{LAYER}.mlp.act.scales": "of AWQ, for an activation as in starcoder2",
    f"{LAYER}.mlp.down_proj.pre_quant_scale": "of ModelOpt",
    f"{LAYER}.mlp.down_proj.svdquant_lora_a": "of ModelOpt",
    f"{LAYER}.mlp.down_proj.weight_scale_inv": "of FP8, with a config that does not say so",
    f"{LAYER}.self_attn.q_proj.bias": "which the config leaves out",
    f"{LAYER}.self_attn.sinks": "of another attention",
    "model.norm.bias": "beside a weight that is no layer's",
    "lm_head.bias": "beside the head",
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_tensor_of_a_layer_is_refused(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3"))
    add(tmp_path, **{name: torch.ones(48)})
    message = refusal(tmp_path, UnsupportedModelError)
    assert message.startswith(f"{name} in {tmp_path} is a tensor of a layer of the model, which nobody reads")


@pytest.mark.parametrize("form", ["awq", "modelopt fp8", "int4", "nf4"])
def test_so_it_is_beside_quantized_weights(tmp_path: Path, form: str) -> None:
    save_quantized(tmp_path, form)
    add(tmp_path, **{f"{LAYER}.mlp.act_fn.scales": torch.full((384,), 2.0)})
    assert f"{LAYER}.mlp.act_fn.scales in" in refusal(tmp_path, UnsupportedModelError)


def test_a_tensor_that_changes_nothing_may_stay(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3"))
    add(
        tmp_path,
        **{
            f"{LAYER}.self_attn.rotary_emb.inv_freq": torch.ones(6),
            f"{LAYER}.self_attn.k_proj.k_scale": torch.ones(()),
            f"{LAYER}.self_attn.q_proj.bias": torch.zeros(96),
            "model.layers.7.self_attn.q_proj.weight": torch.ones(4, 4),
            "mtp.layers.0.self_attn.q_proj.weight": torch.ones(4, 4),
            "visual.blocks.0.attn.qkv.bias": torch.ones(4),
        },
    )
    model = load_checkpoint(tmp_path).model
    stored = load_file(tmp_path / "model.safetensors")
    save_file({name: each for name, each in stored.items() if name in model.state_dict()}, tmp_path / "model.safetensors")
    assert_same_weights(model, tmp_path)


def test_zeros_beside_quantized_weights_may_stay(tmp_path: Path) -> None:
    """AutoGPTQ writes a bias for each weight."""
    numbers = save_quantized(tmp_path, "gptq")
    name = f"{LAYER}.mlp.down_proj"
    add(tmp_path, **{f"{name}.bias": torch.zeros(256)})
    assert load_checkpoint(tmp_path).model.state_dict()[f"{name}.weight"].equal(numbers[f"{name}.weight"])
    add(tmp_path, **{f"{name}.bias": torch.ones(256)})
    assert f"{name}.bias in" in refusal(tmp_path, UnsupportedModelError)
