"""GGUF files are read as the checkpoints that they were made from, and their 4 and 8 bits stay as they are."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from checkpoint_forms import refusal
from gguf_files import MODELS, TYPES, random_model, save_gguf
from mtp_reference import published, random_mtp
from safetensors.torch import save_file
from store import exported
from tiny import save_tokenizer
from torch import Tensor

from hybridge.errors import CheckpointError, NotACheckpointError, UnsupportedModelError, UsageError
from hybridge.export.check.oracle import uncached
from hybridge.export.check.validate import validate_session
from hybridge.export.drafters.mtp import load_mtp
from hybridge.export.drafters.plan import plan_own_drafter
from hybridge.export.operators.linear import weights
from hybridge.export.program.eager import LoadedDrafter, eager_session
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.quantize import pack_weights, quantize_drafter
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.source.gguf.checkpoint import ARCHITECTURES, gguf_config
from hybridge.export.source.gguf.file import open_gguf
from hybridge.export.weights import PackedLinear
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.pack.gguf import read_header


def test_every_architecture_has_a_file() -> None:
    assert ARCHITECTURES.keys() == MODELS.keys()


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 4 with experts and values that are keys": (
        "gemma4",
        {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_kv_shared_layers": 0,
            "num_key_value_heads": 2,
            "global_head_dim": 24,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
            "final_logit_softcapping": 3.0,
            "use_double_wide_mlp": False,
        },
    ),
    "Phi-4": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "sliding_window": None}),
}
"""Other forms of an architecture."""


@pytest.mark.parametrize("form", [*MODELS, *OTHERS])
def test_a_file_is_the_model_that_it_was_made_from(tmp_path: Path, form: str) -> None:
    architecture, sizes = OTHERS.get(form, (form, {}))
    model = random_model(architecture, **sizes)
    save_gguf(tmp_path / "model.gguf", architecture, model)
    loaded = load_checkpoint(tmp_path / "model.gguf").model
    tokens = [5, 6, 7, 8, 100, 101, 12, 3] * 3
    want, got = uncached(model)(tokens), uncached(loaded)(tokens)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
    assert loaded.config.model_type == model.config.model_type


# Layers of multi-token prediction


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe", "qwen3next", "bailingmoe3"])
def test_layers_of_multi_token_prediction_draft_as_from_the_folder(tmp_path: Path, architecture: str) -> None:
    model = random_model(architecture)
    mtp = published(model, random_mtp(model))
    save_gguf(tmp_path / "model.gguf", architecture, model, mtp=mtp)
    source = resolve_checkpoint(tmp_path / "model.gguf")
    plan, options = plan_own_drafter(source, ExportOptions(mtp="auto", draft_len=3), None)
    assert plan is not None
    assert options.mtp is True
    loaded = load_checkpoint(source)
    got = published(loaded.model, load_mtp(loaded))
    assert got.keys() == mtp.keys()
    for name, each in got.items():
        torch.testing.assert_close(each, mtp[name], msg=name)


def drafts(path: Path) -> list[list[int]]:
    """Return each token of a greedy text with the draft tokens after it."""
    source = resolve_checkpoint(path)
    asked = ExportOptions(mtp="auto", draft_len=3, max_seq_len=41, prefill_chunk=7, verify_len=4, snapshot_slots=1)
    plan, options = plan_own_drafter(source, asked, None)
    assert plan is not None
    loaded = load_checkpoint(source)
    session = eager_session(loaded.model, options, LoadedDrafter(plan, plan.load(loaded)))
    prompt, found = [5, 6, 7, 8, 100, 101], list[list[int]]()
    tokens = [*prompt[1:], int(session.prefill(prompt).argmax())]
    for _ in range(16):
        found.append([tokens[-1], *session.draft(session.hidden, tokens).tokens])
        tokens = [int(session.decode(tokens[-1]).argmax())]
    return found


def test_as_many_draft_tokens_are_accepted_as_from_the_folder(tmp_path: Path) -> None:
    """All are the same, so those that are accepted are."""
    model = random_model("qwen35")
    mtp = published(model, random_mtp(model))
    save_gguf(tmp_path / "model.gguf", "qwen35", model, mtp=mtp)
    model.save_pretrained(tmp_path / "folder")
    save_file(mtp, tmp_path / "folder" / "mtp.safetensors")
    assert drafts(tmp_path / "model.gguf") == drafts(tmp_path / "folder")


def test_layers_of_multi_token_prediction_keep_their_blocks(tmp_path: Path) -> None:
    model = random_model("qwen35")
    save_gguf(tmp_path / "model.gguf", "qwen35", model, TYPES.Q8_0, mtp=published(model, random_mtp(model)))
    drafter = load_mtp(load_checkpoint(tmp_path / "model.gguf"))
    numbers = drafter.state_dict()
    quantize_drafter(drafter, ExportOptions(quantize="keep"))
    layers = {name: each for name, each in drafter.named_modules() if isinstance(each, PackedLinear)}
    assert len(layers) == 8
    for name, layer in layers.items():
        assert kept(layer).equal(numbers[f"{name}.weight"]), name


def test_an_unknown_tensor_of_such_a_layer_is_named(tmp_path: Path) -> None:
    """It may be an embedding or a head of the drafter's own."""
    model = random_model("qwen35")
    mtp = published(model, random_mtp(model)) | {
        f"blk.{model.config.num_hidden_layers}.nextn.embed_tokens.weight": torch.zeros(4, 4)
    }
    save_gguf(tmp_path / "model.gguf", "qwen35", model, mtp=mtp)
    with pytest.raises(CheckpointError, match=r"has the unknown mtp.layers.0.nextn.embed_tokens.weight; its drafter cannot"):
        load_mtp(load_checkpoint(tmp_path / "model.gguf"))


# Files in parts


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    save_gguf(tmp_path / "m.gguf", "qwen3", random_model("qwen3"), tensors_per_part=9)
    return sorted(tmp_path.glob("m-*.gguf"))


def test_any_part_stands_for_all(parts: list[Path]) -> None:
    assert [path.name for path in parts] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    want = random_model("qwen3").state_dict()
    for path in parts:
        loaded = load_checkpoint(path)
        assert loaded.source.path == parts[0]
        for name, tensor in loaded.model.state_dict().items():
            assert tensor.equal(want[name]), name


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    for path in (parts[0], parts[2]):
        assert f"{path.parent} lacks {parts[1].name}, 1 of 3 parts of the model in {path.name}" in refusal(path)


def test_a_renamed_part_is_told(parts: list[Path]) -> None:
    for name in ("model.gguf", "m-00001-of-00003.gguf", "m-00002-of-00002.gguf"):
        path = parts[1].with_name(name)
        path.write_bytes(parts[1].read_bytes())
        assert f"{path} says that it is part 2 of 3, so its name should end with -00002-of-00003.gguf" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "per_part", "says"),
    [
        ({"hidden_size": 128}, 9, r"shape \[128\], expected \[64\]"),
        ({"num_hidden_layers": 4}, 20, r"split.tensors.count is 47, expected 25"),
        ({}, 20, r"split.count is 2, expected 3"),
        ({"tie_word_embeddings": True}, 9, "split.tensors.count is 24, expected 25"),
    ],
)
def test_a_part_of_another_model_is_named(
    tmp_path: Path, parts: list[Path], changes: dict[str, Any], per_part: int, says: str
) -> None:
    (tmp_path / "other").mkdir()
    save_gguf(tmp_path / "other/m.gguf", "qwen3", random_model("qwen3", **changes), tensors_per_part=per_part)
    other = sorted((tmp_path / "other").glob("*.gguf"))[1]
    parts[1].write_bytes(other.read_bytes())
    said = refusal(parts[0])
    assert re.search(rf"{re.escape(str(parts[1]))} is not of the same model as {parts[0].name} \(.*{says}", said), said


def test_a_part_that_is_there_twice_is_named(parts: list[Path]) -> None:
    data = parts[0].read_bytes()
    at = data.index(b"split.no") + len(b"split.no") + 4
    parts[1].write_bytes(data[:at] + b"\1\0" + data[at + 2 :])
    assert f"{parts[1]} is not of the same model as {parts[0].name} (both have" in refusal(parts[2])


def test_a_header_is_read_as_its_own_package_reads_it(tmp_path: Path) -> None:
    save_gguf(tmp_path / "model.gguf", "gemma3", random_model("gemma3"))
    header, other = read_header(tmp_path / "model.gguf"), gguf.GGUFReader(tmp_path / "model.gguf")
    assert header.begin == other.data_offset
    assert [(each.name, header.begin + each.offset) for each in header.tensors] == [
        (each.name, each.data_offset) for each in other.tensors
    ]
    assert [each.shape for each in header.tensors] == [tuple(map(int, reversed(each.shape))) for each in other.tensors]
    fields = {name: field.contents() for name, field in other.fields.items() if not name.startswith("GGUF.")}
    assert header.metadata.keys() == fields.keys()
    for name, value in fields.items():
        is_strings = isinstance(value, list) and isinstance(value[0], str)
        assert header.metadata[name] == (len(value) if is_strings else value), name


def kept(layer: PackedLinear) -> Tensor:
    return weights(layer.packed, layer.factors, layer.out_features)


@pytest.mark.parametrize(("kind", "quantize"), [(TYPES.Q4_0, "4w"), (TYPES.Q8_0, "8w")])
@pytest.mark.parametrize("architecture", ["llama", "qwen35", "lfm2"])
def test_few_bits_are_kept_bit_for_bit(tmp_path: Path, architecture: str, kind: TYPES, quantize: str) -> None:
    """Rows of queries and value heads change their places; the numbers in them do not."""
    save_gguf(tmp_path / "model.gguf", architecture, random_model(architecture), kind)
    model = load_checkpoint(tmp_path / "model.gguf").model
    numbers = {name: each.clone() for name, each in model.state_dict().items()}
    pack_weights(model, ExportOptions(quantize=quantize, group_size=32))
    layers = {name: each for name, each in model.named_modules() if isinstance(each, PackedLinear) and "lm_head" not in name}
    assert layers
    for name, layer in layers.items():
        assert kept(layer).equal(numbers[f"{name}.weight"]), name


@pytest.mark.thorough
def test_a_file_exports_validates_and_has_its_tokenizer(tmp_path: Path) -> None:
    model = random_model("qwen35", vocab_size=262)
    save_gguf(tmp_path / "model.gguf", "qwen35", model, TYPES.Q4_0)
    options = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, quantize="4w", group_size=32)
    artifact = exported(tmp_path / "model.gguf", options)
    validate_session(artifact, resolve_checkpoint(tmp_path / "model.gguf"), ExportProgress(), programs=2, seed=0).check()
    assert read_manifest(artifact).eos_ids == [257, 258]
    assert Tokenizer.from_file(artifact / "tokenizer.json").encode("<|im_end|>").ids == [258]
    assert (artifact / "chat_template.jinja").read_text().endswith("<|im_end|>")


def test_a_tokenizer_of_ones_own_is_taken(tmp_path: Path) -> None:
    save_gguf(tmp_path / "model.gguf", "qwen3", random_model("qwen3"))
    (tmp_path / "own").mkdir()
    save_tokenizer(tmp_path / "own")
    loaded = load_checkpoint(resolve_checkpoint(tmp_path / "model.gguf", tokenizer=tmp_path / "own"))
    assert loaded.source.tokenizer.folder == tmp_path / "own"
    tokens = random_model("qwen3", vocab_size=99)
    save_gguf(tmp_path / "small.gguf", "qwen3", tokens)
    small = load_checkpoint(resolve_checkpoint(tmp_path / "small.gguf", tokenizer=tmp_path / "own"))
    with pytest.raises(UsageError, match=r"has 131 tokens, but the model 99: it is another model's"):
        _ = small.source.tokenizer


# Bad input


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    save_gguf(tmp_path / "model.gguf", "qwen3", random_model("qwen3"), TYPES.Q4_0)
    return tmp_path / "model.gguf"


def test_an_architecture_that_is_not_read_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "t5")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    said = refusal(tmp_path / "model.gguf", UnsupportedModelError)
    assert (
        "is of llama.cpp's architecture 't5', which hybridge does not read. It reads bailingmoe3, deepseek2, falcon-h1, gemma3,"
        in said
    )


def test_a_type_of_tensors_that_is_not_read_is_named(gguf_file: Path) -> None:
    data = bytearray(gguf_file.read_bytes())
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    data[at : at + 4] = struct.pack("<I", 36)
    gguf_file.write_bytes(data)
    said = refusal(gguf_file, UnsupportedModelError)
    assert "has tensors of GGML's type" in said
    assert "blk.0.attn_q.weight, which hybridge does not read. Take a file of Q4_0" in said


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.99])
def test_a_part_of_a_file_is_told(gguf_file: Path, share: float) -> None:
    data = gguf_file.read_bytes()
    gguf_file.write_bytes(data[: int(len(data) * share)])
    assert "download it again" in refusal(gguf_file)


def test_arrays_of_strings_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    save_gguf(tmp_path / "model.gguf", "qwen3", random_model("qwen3", vocab_size=262))
    metadata = read_header(tmp_path / "model.gguf", strings=("tokenizer.ggml.tokens",)).metadata
    assert metadata["tokenizer.ggml.tokens"][257:259] == ["<|endoftext|>", "<|im_end|>"]
    assert metadata["tokenizer.ggml.token_type"][257:259] == [3, 3]
    assert metadata["tokenizer.ggml.merges"] == 1


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        ({"<pad>": 3, "<eos>": 3, "<end_of_turn>": 3, "</s>": 1}, [1, 2]),  # Gemma 3's: </s> is a tag of HTML
        ({"<unk>": 2, "<|return|>": 3, "<|end|>": 3, "<|call|>": 3}, [1, 3]),  # gpt-oss's: <|end|> ends a message
        ({"a": 1, "<|im_end|>": 3, "</s>": 3, "<|endoftext|>": 1}, [1, 2, 3]),
    ],
)
def test_tokens_end_a_text_by_their_names_as_in_llama_cpp(tmp_path: Path, tokens: dict[str, int], ends: list[int]) -> None:
    """A file names few of them: many of Gemma 3's name token 1 alone, at which no answer ends."""
    entries = {"model": "llama", "tokens": [*tokens], "token_type": [*tokens.values()], "scores": [0.0] * len(tokens)}
    model = random_model("llama", vocab_size=len(tokens))
    save_gguf(tmp_path / "model.gguf", "llama", model, tokenizer=entries | {"eos_token_id": 1})
    assert gguf_config(open_gguf(tmp_path / "model.gguf"))["eos_token_id"] == ends


@pytest.mark.parametrize("count", [1 << 20, 1 << 62])
@pytest.mark.parametrize("place", [8, 16, 24], ids=["tensors", "entries", "length of a name"])
def test_hostile_counts_are_refused_at_once(gguf_file: Path, place: int, count: int) -> None:
    data = bytearray(gguf_file.read_bytes())
    data[place : place + 8] = struct.pack("<Q", count)
    gguf_file.write_bytes(data)
    assert "cannot be read as GGUF" in refusal(gguf_file)


def numbers_of(data: bytes, name: str) -> int:
    """Return where the value of an entry begins, after its name and its type."""
    return data.index(name.encode()) + len(name) + 4


FORGED: dict[str, tuple[str, Callable[[bytes, int], tuple[int, bytes]], str]] = {
    # the entry, where the forged bytes go and what they are, and what the refusal says
    "no alignment": ("general.alignment", lambda data, at: (at, struct.pack("<I", 0)), "general.alignment is 0, and should be"),
    "odd alignment": ("general.alignment", lambda data, at: (at, struct.pack("<I", 48)), "general.alignment is 48, and should"),
    "strings": (
        "tokenizer.ggml.merges",
        lambda data, at: (at + 4, struct.pack("<Q", 1 << 26)),
        "tokenizer.ggml.merges should count 67,108,864, more",
    ),
    "numbers": (
        "tokenizer.ggml.token_type",
        lambda data, at: (at + 4, struct.pack("<Q", 1 << 26)),
        "tokenizer.ggml.token_type should count 67,108,864, more",
    ),
    "text": (
        "tokenizer.chat_template",
        lambda data, at: (at, struct.pack("<Q", 1 << 28)),
        "tokenizer.chat_template has 268,435,456 bytes",
    ),
    "layers": (
        "qwen3.block_count",
        lambda data, at: (at, struct.pack("<I", 1 << 27)),
        "it says 134,217,728 of 134,217,728 lay",
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_length_is_refused_by_name_at_once(tmp_path: Path, forged: str) -> None:
    """In a file of a gigabyte of zeros, which are as many strings of no length, and so many layers' names."""
    path = tmp_path / "model.gguf"
    save_gguf(path, "qwen3", random_model("qwen3", vocab_size=262), alignment=32)
    name, change, says = FORGED[forged]
    data = bytearray(path.read_bytes())
    at, value = change(data, numbers_of(data, name))
    data[at : at + len(value)] = value
    path.write_bytes(data)
    os.truncate(path, 1 << 30)
    began = time.perf_counter()
    assert says in refusal(path)
    assert time.perf_counter() - began < 2


def test_a_name_that_is_there_twice_is_refused(gguf_file: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes().replace(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight"))
    assert "blk.0.attn_q.weight is there twice" in refusal(gguf_file)


def test_hostile_sizes_are_refused_at_once(gguf_file: Path) -> None:
    data = bytearray(gguf_file.read_bytes())
    at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4
    data[at : at + 8] = struct.pack("<Q", 1 << 61)
    gguf_file.write_bytes(data)
    assert "blk.0.attn_q.weight has shape" in refusal(gguf_file)


def test_a_tensor_without_a_place_is_told(tmp_path: Path, gguf_file: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes().replace(b"blk.0.attn_q_norm", b"blk.0.attn_x_norm"))
    assert "has tensors that hybridge knows no place for, such as blk.0.attn_x_norm.weight (1 in all)" in refusal(
        gguf_file, UnsupportedModelError
    )


def test_a_size_that_is_missing_is_named(gguf_file: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes().replace(b"qwen3.attention.head_count_kv", b"qwen3.attention.head_count_xx"))
    assert "lacks qwen3.attention.head_count_kv" in refusal(gguf_file)


def test_a_file_that_is_no_gguf_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"\x80\x04N." * 30)
    assert "cannot be read as GGUF" in refusal(tmp_path / "model.gguf")


def test_a_folder_with_a_file_says_to_give_it(gguf_file: Path) -> None:
    assert f"is a GGUF file, llama.cpp's format. Give the file itself: {gguf_file}" in refusal(
        gguf_file.parent, NotACheckpointError
    )


def test_nothing_is_left_behind(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    (tmp_path / "views").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "views"))
    resolve_checkpoint(gguf_file)
    loaded = load_checkpoint(gguf_file)
    assert list((tmp_path / "views").iterdir()) == [loaded.source.folder]
    del loaded
    assert list((tmp_path / "views").iterdir()) == []
