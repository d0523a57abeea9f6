"""Real ONNX artifacts of each kind of layer against the uncached model, what onnxruntime-genai makes of one, and refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime_genai
import pytest
import torch
from command_line import exit_code
from store import exported as stored
from tiny import save_lively_checkpoint, tiny_config

from hybridge.__main__ import main
from hybridge.errors import ExportFailedError, UnsupportedModelError, UsageError
from hybridge.export.api import export_model, writer_of
from hybridge.export.check.oracle import load_oracle
from hybridge.export.check.validate import validate
from hybridge.export.write.onnx_kernels import padded
from hybridge.runtime import ExportOptions, Session
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import ONNX_COMMIT, ONNX_PROGRAM, read_manifest

LINEAR, FULL = "linear_attention", "full_attention"
CASES: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "Kimi delta and latent attention": (
        "kimi_linear", 0, {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL], "first_k_dense_replace": 2}, {},
    ),
    "Mamba-2 with one group, and experts": ("granitemoehybrid", 1, {}, {}),
    "lightning attention, and a window": ("minimax", 1, {}, {}),
    "short convolution, and a window": ("lfm3", 0, {}, {}),
    "sinks and windows alone": ("gpt_oss", 0, {}, {}),
    "weights of 4 bits": (
        "qwen3", 0, {"num_hidden_layers": 1, "intermediate_size": 80}, {"quantize": "4w", "group_size": 16},
    ),
    "weights of 8 bits, smallest sizes": (
        "qwen3", 0, {"num_hidden_layers": 1, "intermediate_size": 80},
        {"quantize": "8w", "group_size": 16, "max_seq_len": 1, "prefill_chunk": 1, "verify_len": 1, "snapshot_slots": 0},
    ),
    "weights of 4 bits, activations of 8": (
        "qwen3", 0, {"num_hidden_layers": 1, "intermediate_size": 80}, {"quantize": "8da4w", "group_size": 16},
    ),
}  # fmt: skip


FEW = ("sinks and windows alone", "weights of 4 bits")


@pytest.mark.slow
@pytest.mark.parametrize("case", [each if each in FEW else pytest.param(each, marks=pytest.mark.thorough) for each in CASES])
def test_an_artifact_is_the_model(case: str, tmp_path: Path) -> None:
    family, variant, sizes, extra = CASES[case]
    save_lively_checkpoint(tmp_path / "checkpoint", tiny_config(family, variant, **sizes))
    options = ExportOptions(**({"format": "onnx", "max_seq_len": 67, "prefill_chunk": 17, "verify_len": 5} | extra))
    session = Session.load(stored(tmp_path / "checkpoint", options))
    manifest = session.manifest
    oracle = load_oracle(tmp_path / "checkpoint", manifest)
    report = validate(
        session, oracle, programs=4, prompts=1, new_tokens=10, seed=0, notify=lambda done, total: None, same_bits=None
    )
    report.check()
    assert manifest.onnx is not None
    assert (ONNX_COMMIT in manifest.files) == bool(manifest.onnx.staged)
    assert ("com.microsoft::MatMulNBits" in manifest.onnx.contrib_operators) == ("quantize" in extra)


def test_the_folder_is_what_the_manifest_says(onnx_artifact: Path) -> None:
    manifest = read_manifest(onnx_artifact)
    assert {path.name for path in onnx_artifact.iterdir()} == {*manifest.files, "manifest.json"}
    assert all(file_entry(onnx_artifact / name) == entry for name, entry in manifest.files.items())
    model = onnx.load(onnx_artifact / ONNX_PROGRAM, load_external_data=False)
    assert not any(node.metadata_props for node in model.graph.node)  # which told paths of the machine that exported it
    weights = [each for each in model.graph.initializer if each.data_location == onnx.TensorProto.EXTERNAL]
    assert sum(4 * torch.Size(each.dims).numel() for each in weights) >= 0.95 * manifest.weight_bytes


def test_a_commit_has_no_weights(onnx_artifact: Path) -> None:
    model = onnx.load(onnx_artifact / ONNX_COMMIT)
    assert sum(torch.Size(each.dims).numel() for each in model.graph.initializer) < 50


def test_onnxruntime_genai_says_the_same(onnx_artifact: Path, lively_checkpoint: Path) -> None:
    prompt, count = [100, 101, 102, 32, 7, 120], 40
    said = [*prompt, *greedy(onnx_artifact, count)(prompt)]
    assert len(said) > len(prompt)
    oracle = load_oracle(lively_checkpoint, read_manifest(onnx_artifact))
    assert said[len(prompt) :] == oracle(said)[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_a_row_is_widened_to_what_the_operator_takes() -> None:
    assert [padded(width) for width in (1, 8, 12, 16)] == [8, 8, 16, 16]


# Refusals


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("jamba", "mamba"),
        ("recurrent_gemma", "rg_lru"),
        ("gemma4_text", "shared_attention"),
        ("llama4_text", "chunked_attention"),
        ("qwen4_exp_text", "indexed_attention"),
        ("inkling_text", "several of short_conv in one layer"),
    ],
)
def test_layers_without_operators_are_named(family: str, kind: str) -> None:
    options = ExportOptions(format="onnx", max_seq_len=67)
    with pytest.raises(UnsupportedModelError, match=f"{kind}.*--format pte"):
        writer_of(options)(tiny_config(family), options)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("kernels", "llm", "--kernels llm is for --format pte"),
        ("backend", "portable", "--backend portable"),
        ("kv_cache", "int8", "--kv-cache int8"),
        ("embedding_quantize", "8w", "--embedding-quantize 8w"),
        ("tap_layers", (-1,), "--tap-layers is for"),
        ("mtp", True, "--mtp is for"),
        ("shorter_verify_lens", (9,), "not ascending"),
    ],
)
def test_options_of_a_pte_are_refused(option: str, value: Any, says: str) -> None:
    options = ExportOptions(**({"format": "onnx", "max_seq_len": 67} | {option: value}))
    with pytest.raises(UsageError, match=says):
        writer_of(options)(tiny_config("qwen3"), options)


def test_groups_that_onnxruntime_has_not_are_refused() -> None:
    options = ExportOptions(format="onnx", quantize="4w", group_size=24)
    with pytest.raises(UsageError, match="--group-size 24 is not one of onnxruntime's"):
        writer_of(options)(tiny_config("qwen3"), options)


def test_experts_are_not_quantized(tmp_path: Path) -> None:
    """A .pte rounds them too: an artifact with others would not be the model that it is held against."""
    save_lively_checkpoint(tmp_path / "checkpoint", tiny_config("qwen3_moe"))
    options = ExportOptions(format="onnx", max_seq_len=67, quantize="4w", group_size=16)
    with pytest.raises(UsageError, match=r"experts.*--format pte"):
        export_model(tmp_path / "checkpoint", tmp_path / "out", options, force=False, validate=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["--kernels llm", "--backend xnnpack", "--kv-cache int8"])
def test_the_command_refuses_them_and_writes_nothing(
    given: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``llm`` and ``xnnpack`` are what an export has by default: asked for, they are refused all the same."""
    arguments = ["export", str(checkpoint), "-o", str(tmp_path / "out"), "--format", "onnx", "--max-seq-len", "67"]
    assert exit_code(monkeypatch, main, "hybridge", *arguments, *given.split()) == 2
    assert f"{given} is for --format pte" in " ".join(capsys.readouterr().err.split())
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["onnx", "onnxscript"])
def test_the_libraries_are_an_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, library, missing)
    with pytest.raises(UsageError, match=rf"{library}.*pip install 'hybridge\[onnx\]'"):
        writer_of(ExportOptions(format="onnx"))


def test_what_stops_an_export_leaves_nothing(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.export, "export", fail)
    options = ExportOptions(format="onnx", max_seq_len=67)
    with pytest.raises(ExportFailedError, match=r"torch\.export failed: RuntimeError: no such operator"):
        export_model(checkpoint, tmp_path / "out", options, force=False, validate=False)
    assert not any(tmp_path.iterdir())


def test_genai_config_is_greedy_and_names_the_states(onnx_artifact: Path) -> None:
    content = json.loads((onnx_artifact / "genai_config.json").read_text())
    assert content["model"]["type"] == "qwen3_5_text"
    assert content["model"]["context_length"] == content["search"]["max_length"] == 96
    assert content["search"]["past_present_share_buffer"]
    assert not content["search"]["do_sample"]


def greedy(folder: Path, count: int) -> Callable[[list[int]], list[int]]:
    """From a prompt's tokens to at most ``count`` new ones."""
    model = onnxruntime_genai.Model(str(folder))

    def generate(prompt: list[int]) -> list[int]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(prompt) + count)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)][len(prompt) :]

    return generate
