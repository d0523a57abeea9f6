"""The blocks of GGUF files are kept bit for bit: as they are read, moved, packed and run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
import torch
from command_line import Run
from gguf import GGML_QUANT_SIZES, quants
from gguf_files import EXPERTS, HALVES, MODELS, TYPES, random_bytes, random_model, save_gguf
from store import exported
from tiny import save_checkpoint, tiny_config
from torch import Tensor, nn

from hybridge.errors import CheckpointError, UsageError
from hybridge.export.api import export_model
from hybridge.export.check.oracle import round_as, uncached
from hybridge.export.operators.linear import LANES, weights
from hybridge.export.quantize.quantize import PackedWhileRead, quantize, resolve_quantization
from hybridge.export.quantize.rounding import notes_of_rounding
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.source.gguf.file import decode
from hybridge.export.texts import logits_of
from hybridge.export.weights import PackedEmbedding, PackedExperts, PackedLinear, PackedWeight
from hybridge.export.write.manifest import WeightFigures
from hybridge.runtime import Session
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.pack.blocks import FLOATS, KINDS, SIZES

KEEP = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, quantize="keep")
ALL = [*(kind for kind in HALVES if kind != TYPES.Q3_K), TYPES.F16, TYPES.BF16, TYPES.F32]
TOKENS = [5, 6, 7, 8, 100, 101, 12, 3] * 3

# Reading


def test_every_kind_is_here() -> None:
    assert {int(kind) for kind in ALL} == {*KINDS, *FLOATS} == {*SIZES}
    assert all(GGML_QUANT_SIZES[TYPES(kind)] == size for kind, size in SIZES.items())


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_gguf_package_to_the_bit(kind: TYPES) -> None:
    data = random_bytes(kind, rows=19, columns=512)
    read = decode(data, int(kind), GGML_QUANT_SIZES[kind][1])
    assert read is not None
    want = torch.from_numpy(quants.dequantize(data, kind))
    assert want.isfinite().all()
    assert torch.equal(read.numbers().view(torch.int32), want.view(torch.int32))
    packed = PackedWeight.of(read)
    assert torch.equal(weights(packed.packed, packed.factors, 19), want)
    stored = packed.packed.nbytes + sum(part.nbytes for part in packed.factors[:3] if part is not None)
    assert stored <= 1.03 * 32 / 19 * data.nbytes  # scales of 6 bits take 8


# Moving and packing

WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}


def q4_k_m(name: str) -> TYPES:
    """As llama.cpp's Q4_K_M mixes types, and the files that raise what a recurrent layer puts out."""
    for part, kind in (("token_embd", TYPES.Q6_K), ("ssm_out", TYPES.Q5_K), ("attn_qkv", TYPES.Q5_K)):
        if part in name:
            return kind
    return TYPES.Q6_K if name.startswith("blk.0.") and ("attn_v" in name or "ffn_down" in name) else TYPES.Q4_K


def every_kind(name: str) -> TYPES:
    """All types in turns, but the same for gates and what they gate, which lie in one weight."""
    same = name.replace("ffn_gate", "ffn_up").replace("attn_gate", "attn_qkv")
    return ALL[sum(map(ord, same)) % len(ALL)]


GRANITE = WIDE | {"mamba_n_heads": 8, "mamba_d_head": 64}

CASES: list[Any] = [
    pytest.param("llama", WIDE, q4_k_m, id="llama Q4_K_M"),
    pytest.param("llama", WIDE, every_kind, id="llama all"),
    pytest.param("qwen35", WIDE | {"linear_value_head_dim": 128}, q4_k_m, id="qwen35 Q4_K_M"),
    pytest.param("qwen35", WIDE | {"linear_value_head_dim": 64}, lambda name: TYPES.Q6_K, id="qwen35 Q6_K"),
    pytest.param("qwen3next", WIDE | {"moe_intermediate_size": 256}, q4_k_m, id="qwen3next Q4_K_M"),
    pytest.param("qwen3moe", WIDE | {"moe_intermediate_size": 256}, q4_k_m, id="qwen3moe Q4_K_M"),
    pytest.param("gpt-oss", WIDE, lambda name: TYPES.MXFP4 if "exps" in name else TYPES.Q8_0, id="gpt-oss MXFP4"),
    pytest.param("granitehybrid", GRANITE, every_kind, id="granitehybrid all"),
    pytest.param("falcon-h1", WIDE, every_kind, id="falcon-h1 all"),
    pytest.param("nemotron_h_moe", WIDE | EXPERTS, every_kind, id="nemotron_h_moe all"),
    pytest.param("lfm2", WIDE, q4_k_m, id="lfm2 Q4_K_M"),
    pytest.param("lfm2moe", WIDE | {"moe_intermediate_size": 256}, every_kind, id="lfm2moe all"),
    pytest.param("gemma3", WIDE, q4_k_m, id="gemma3 Q4_K_M"),
    *(pytest.param(name, {}, lambda name: TYPES.IQ4_NL, id=f"{name} IQ4_NL") for name in MODELS),
]


def numbers(layer: PackedLinear | PackedExperts | PackedEmbedding) -> Tensor:
    """The float32 numbers that a layer's panels stand for, [N, K], of experts [E, N, K]."""
    rows = layer.shape[0] if isinstance(layer, PackedEmbedding) else layer.out_features
    if not isinstance(layer, PackedExperts):
        return weights(layer.packed, layer.factors, rows)
    panels = -(-rows // LANES)
    stacked = weights(layer.packed, layer.factors, layer.packed.shape[0] * LANES)
    return stacked.unflatten(0, (-1, panels * LANES))[:, :rows]


def count_equal(path: Path, model: nn.Module) -> int:
    """Compare the panels of ``model`` with the float32 weights of the file; return how many were compared."""
    original, found = load_checkpoint(path).model, 0
    for name, layer in model.named_modules():
        if isinstance(layer, PackedLinear | PackedEmbedding | PackedExperts):
            assert numbers(layer).equal(float_weight(original, name)), name
            found += 1
    return found


def float_weight(model: Any, name: str) -> Tensor:
    """The weight of a layer, or of a projection of experts [E, N, K]."""
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    held = getattr(module, last)
    if isinstance(held, nn.Module):
        return cast("Tensor", held.weight)
    return held.transpose(1, 2) if module.is_transposed else held


@pytest.mark.parametrize(("architecture", "sizes", "kind"), CASES)
def test_a_model_has_the_bits_of_its_file(
    tmp_path: Path, architecture: str, sizes: dict[str, Any], kind: Callable[[str], TYPES]
) -> None:
    """Rows of queries, value heads, gates and experts change their places; no number in them does."""
    path = tmp_path / "model.gguf"
    save_gguf(path, architecture, random_model(architecture, **sizes), kind)
    model = load_checkpoint(path, PackedWhileRead(KEEP)).model
    quantize(model, KEEP)
    assert count_equal(path, model) > 5
    assert list(notes_of_rounding(model)) == []


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in Q4_0, with a tokenizer."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    save_gguf(path, "qwen3", random_model("qwen3", vocab_size=262), TYPES.Q4_0)
    return path


def kept_model(path: Path, kind: Callable[[str], TYPES], architecture: str = "qwen3", **sizes: Any) -> Any:
    save_gguf(path, architecture, random_model(architecture, **sizes), kind)
    model = load_checkpoint(path, PackedWhileRead(KEEP)).model
    quantize(model, KEEP)
    return model


def test_bits_are_those_of_the_file(tmp_path: Path) -> None:
    kinds = {
        "attn_q.": TYPES.Q5_1,
        "attn_k.": TYPES.F16,
        "attn_v.": TYPES.BF16,
        "token_embd": TYPES.Q8_0,
        "attn_output": TYPES.F32,
    }
    model = kept_model(tmp_path / "model.gguf", lambda name: next((kinds[each] for each in kinds if each in name), TYPES.Q4_1))
    bits = WeightFigures.of(model).bits
    named = {name.rpartition(".")[2]: bits.get(name) for name in (*bits, "model.layers.0.self_attn.o_proj")}
    assert (named["q_proj"], named["k_proj"], named["v_proj"], named["o_proj"]) == (5, 16, 16, None)
    assert (named["embed_tokens"], named["up_proj"]) == (8, 4)


def test_types_without_kernels_are_rounded_and_named(tmp_path: Path) -> None:
    model = kept_model(tmp_path / "model.gguf", lambda name: TYPES.Q3_K if "ffn_down" in name else TYPES.Q4_K, **WIDE)
    assert [*notes_of_rounding(model)] == [
        "--quantize keep rounds model.layers.0.mlp.down_proj and 1 other weights to 8 bits: there are no kernels for Q3_K."
    ]
    want = load_checkpoint(tmp_path / "model.gguf").model.model.layers[0].mlp.down_proj.weight
    got = numbers(model.model.layers[0].mlp.down_proj)
    assert 0 < (got - want).abs().max() < 0.006 * want.abs().max()


def test_blocks_that_do_not_go_together_are_rounded_and_named(tmp_path: Path) -> None:
    """Gates and what they gate are one weight, which has one kind of blocks."""
    model = kept_model(tmp_path / "model.gguf", lambda name: TYPES.Q4_1 if "ffn_gate_exps" in name else TYPES.Q8_0, "qwen3moe")
    (note,) = notes_of_rounding(model)
    assert "experts.gate_up_proj and 1 other weights to 8 bits: its rows lie otherwise in the file." in note


def test_blocks_of_more_bits_take_those_of_fewer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    model = kept_model(path, lambda name: TYPES.Q5_K if "gate" in name else TYPES.Q4_K, "granitehybrid", **GRANITE)
    assert WeightFigures.of(model).bits["model.layers.0.shared_mlp.input_linear"] == 5
    assert count_equal(path, model) > 5
    assert [*notes_of_rounding(model)] == []


def test_a_number_without_a_positive_twin_is_kept_in_float32(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(path, "qwen3", random_model("qwen3"), TYPES.Q8_0)
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == "blk.0.ffn_up.weight")
    data = bytearray(path.read_bytes())
    data[tensor.data_offset + 2] = 0x80
    path.write_bytes(data)
    model = load_checkpoint(path, PackedWhileRead(KEEP)).model
    quantize(model, KEEP)
    assert model.model.layers[0].mlp.up_proj.bits == 32
    assert count_equal(path, model) > 5


def test_weights_that_were_changed_are_not_those_of_the_file(gguf_file: Path) -> None:
    """As an adapter changes them."""
    model = load_checkpoint(gguf_file).model
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] += 1
    quantize(model, KEEP)
    (note,) = notes_of_rounding(model)
    assert note.endswith("layers.0.mlp.up_proj to 8 bits: its numbers are no longer those of the file.")


# Running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "sizes", "kind"),
    [
        pytest.param(*case.values, id=case.id, marks=[] if case.id == "qwen35 Q4_K_M" else pytest.mark.thorough)
        for case in CASES
        if case.id in ("llama all", "qwen35 Q4_K_M", "granitehybrid all", "lfm2moe all")
    ],
)
def test_an_artifact_is_the_model_of_its_file(
    tmp_path: Path, architecture: str, sizes: dict[str, Any], kind: Callable[[str], TYPES]
) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(path, architecture, random_model(architecture, **sizes), kind)
    session = Session.load(exported(path, KEEP))
    original = uncached(load_checkpoint(path).model)(TOKENS)
    rounded = load_checkpoint(path)
    round_as(rounded, KEEP)
    got, largest = logits_of(session, TOKENS), float(original.abs().max())
    assert (got - uncached(rounded.model)(TOKENS)).abs().max() < 5e-2 * largest
    assert (got - original).abs().mean() < 2e-2 * largest


@pytest.mark.slow
@pytest.mark.thorough
def test_keeping_is_what_a_file_is_exported_with(cli: Run, gguf_file: Path, tmp_path: Path) -> None:
    said = cli("export", gguf_file, "-o", tmp_path / "out", "--max-seq-len", 96, "--validate")
    assert said.code == 0, said.err
    assert read_manifest(tmp_path / "out").options.quantize == "keep"
    assert (tmp_path / "out" / "model.pte").stat().st_size < 0.7 * 4 * 262 * 64 + 1e6
    assert "embed_tokens" in cli("inspect", tmp_path / "out").out


# Choosing


def test_what_is_not_said_follows_the_checkpoint(gguf_file: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3"))

    def chosen(place: Path, **given: Any) -> str:
        return resolve_quantization(ExportOptions(quantize="auto", **given), resolve_checkpoint(place), lambda _: None).quantize

    assert chosen(gguf_file) == "keep"
    assert chosen(tmp_path) == "8da4w"  # of the recipe
    assert (chosen(gguf_file, format="onnx"), chosen(gguf_file, kernels="llm")) == ("none", "none")
    assert (chosen(gguf_file, embedding_quantize="8w"), chosen(gguf_file, bits=(("*", 4),))) == ("8da4w", "8da4w")
    assert chosen(gguf_file, recipe="small") == "8da4w"


def test_other_choices_say_what_they_cost(gguf_file: Path) -> None:
    def said(**given: Any) -> str:
        warned: list[str] = []
        resolve_quantization(ExportOptions(**given), resolve_checkpoint(gguf_file), warned.append)
        return " ".join(warned)

    assert "are quantized already (Q4_0): --quantize 8da4w rounds them again" in said(quantize="8da4w")
    assert "--recipe small rounds them again" in said(quantize="8da4w", recipe="small")
    assert "they become float32, which takes several times the file's bytes. --quantize keep has the file's own bits" in said()
    assert "--quantize keep, with --format pte and --kernels hybridge, has" in said(kernels="llm")
    assert said(quantize="keep") == ""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "onnx": ({"format": "onnx"}, "needs --format pte and --kernels hybridge, not --format onnx"),
    "llm": ({"kernels": "llm"}, "needs --format pte and --kernels hybridge, not --kernels llm"),
    "recipe": ({"recipe": "small"}, "--recipe small round weights, --quantize keep rounds none"),
    "embedding": ({"embedding_quantize": "8w"}, "--embedding-quantize 8w round weights"),
    "bits": ({"bits": (("*", 4),)}, "--bits round weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_keeping_is_refused(gguf_file: Path, tmp_path: Path, case: str) -> None:
    given, says = REFUSED[case]
    with pytest.raises(UsageError, match=says):
        export_model(gguf_file, tmp_path / "out", ExportOptions(quantize="keep", **given))
    assert not (tmp_path / "out").exists()


def test_only_a_gguf_file_has_blocks_to_keep(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model", tiny_config("qwen3"))
    with pytest.raises(
        UsageError, match=r"--quantize keep has the blocks of a GGUF file as they are, and .*model is not one; give"
    ):
        export_model(tmp_path / "model", tmp_path / "out", ExportOptions(quantize="keep"))


def test_nothing_is_calibrated_that_is_kept(gguf_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--calibrate is for weights that are rounded, and --quantize keep rounds none"):
        export_model(gguf_file, tmp_path / "out", ExportOptions(quantize="keep"), calibrate="self")


# Bad input


def tensor_of(path: Path, name: str) -> Any:
    return next(each for each in gguf.GGUFReader(path).tensors if each.name == name)


def refused(path: Path, tmp_path: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        export_model(path, tmp_path / "out", KEEP)
    assert not (tmp_path / "out").exists()
    return str(error.value)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kind", [TYPES.Q4_K, TYPES.Q6_K, TYPES.Q4_1, TYPES.IQ4_XS], ids=lambda kind: kind.name)
def test_scales_that_are_not_finite_are_refused(tmp_path: Path, kind: TYPES, scale: float) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(path, "qwen3", random_model("qwen3", **WIDE), kind)
    tensor, data = tensor_of(path, "blk.1.ffn_up.weight"), bytearray(path.read_bytes())
    at = tensor.data_offset + 3 * GGML_QUANT_SIZES[kind][1] + [*HALVES[kind]][-1]
    data[at : at + 2] = np.float16(scale).tobytes()
    path.write_bytes(data)
    assert "model.layers.1.mlp.up_proj.weight" in (said := refused(path, tmp_path))
    assert "is not finite (NaN or infinity)" in said


def test_rows_that_are_no_whole_number_of_blocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    save_gguf(path, "qwen3", random_model("qwen3"), TYPES.Q4_0)
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4
    data[at : at + 8] = (63).to_bytes(8, "little")
    path.write_bytes(data)
    assert "blk.0.ffn_up.weight has rows of 63 numbers, which are no whole number of its blocks of 32" in refused(
        path, tmp_path
    )


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = {"model": "gpt2", "pre": "qwen2", "tokens": ["a", "b", "c"], "token_type": [1, 1, 1], "merges": ["a b"]}
    save_gguf(path, "qwen3", random_model("qwen3"), tokenizer=tokens)
    assert "its tokenizer has 3 tokens, but token_embd.weight 131 rows, one for each" in refused(path, tmp_path)
