"""Each form that a checkpoint comes in is read, or refused with what it is and what to do."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from checkpoint_forms import (
    assert_same_weights,
    edit_json,
    lfs_pointer,
    refusal,
    rewritten,
    save_adapter,
    save_sharded,
    without_permission,
)
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, tiny_config
from transformers.utils import is_peft_available

from hybridge.errors import NotACheckpointError
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.export.source.files import ignored_parts

ID = "Qwen/Qwen3.5-0.8B"


@pytest.fixture
def public_checkpoint(checkpoint: Path) -> Iterator[Path]:
    """A checkpoint in a folder whose parents everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(shutil.copytree(checkpoint, Path(name) / "checkpoint"))
        for folder in (copy, copy.parent):
            folder.chmod(0o755)
        yield copy


# Files that are not themselves


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_git_lfs_pointer_is_told(checkpoint_copy: Path, name: str) -> None:
    lfs_pointer(checkpoint_copy / name)
    message = refusal(checkpoint_copy)
    assert f"{checkpoint_copy} was cloned without its large files: instead of {name} there is a git-lfs pointer" in message
    assert message.endswith("Run 'git lfs install' and then 'git lfs pull' in that folder.")


@pytest.mark.parametrize("index", [True, False])
def test_shards_that_were_fetched_in_part_are_named(tmp_path: Path, index: bool) -> None:
    first, second, *_ = save_sharded(tmp_path, index=index)
    lfs_pointer(first)
    lfs_pointer(second)
    assert f"instead of {first.name}, {second.name} there are git-lfs pointers (0.1 MB are missing)" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_without_permission_is_named(public_checkpoint: Path, name: str) -> None:
    with without_permission(public_checkpoint / name):
        assert (
            refusal(public_checkpoint)
            == f"no permission to read {public_checkpoint / name}; change it, or copy the checkpoint."
        )


def test_a_folder_without_permission_is_named(public_checkpoint: Path) -> None:
    for path in (public_checkpoint, public_checkpoint.parent):
        with without_permission(path):
            assert refusal(public_checkpoint).startswith(f"no permission to read {public_checkpoint}")


def test_a_name_that_is_too_long_is_refused() -> None:
    assert "cannot be read (File name too long)" in refusal("x" * 300)


# Weights under other names


@pytest.mark.parametrize("name", ["model-00001-of-00001.safetensors", "weights.safetensors", "model.fp32.safetensors"])
def test_a_single_file_of_another_name_is_read(checkpoint_copy: Path, checkpoint: Path, name: str) -> None:
    (checkpoint_copy / "model.safetensors").rename(checkpoint_copy / name)
    loaded = load_checkpoint(checkpoint_copy)
    assert loaded.source.folder == checkpoint_copy
    assert_same_weights(loaded.model, checkpoint)


def test_shards_without_an_index_are_read(tmp_path: Path) -> None:
    shards = save_sharded(tmp_path / "shards", index=False)
    save_checkpoint(tmp_path / "whole", tiny_config("qwen3"))
    assert len(shards) > 2
    assert_same_weights(load_checkpoint(tmp_path / "shards").model, tmp_path / "whole")


def test_a_missing_shard_is_named_without_an_index(tmp_path: Path) -> None:
    shards = save_sharded(tmp_path, index=False)
    shards[1].unlink()
    shards[-1].unlink()
    message = refusal(tmp_path)
    assert f"lacks {shards[1].name}, {shards[-1].name}, which their names ask for (2 of {len(shards)} shards)" in message


def test_missing_shards_are_counted_with_an_index(tmp_path: Path) -> None:
    shards = save_sharded(tmp_path, index=True)
    for path in shards[1:]:
        path.unlink()
    assert f"which model.safetensors.index.json names ({len(shards) - 1} of {len(shards)} shards)" in refusal(tmp_path)


def change_index(folder: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "weight_map": change(index["weight_map"])}))


def test_an_index_may_leave_tensors_out(tmp_path: Path) -> None:
    """They are in the shards that it names for others."""
    save_sharded(tmp_path / "shards", index=True)
    save_checkpoint(tmp_path / "whole", tiny_config("qwen3"))
    change_index(tmp_path / "shards", lambda names: {name: file for i, (name, file) in enumerate(names.items()) if i % 2})
    assert_same_weights(load_checkpoint(tmp_path / "shards").model, tmp_path / "whole")


def test_numbers_of_shards_may_have_gaps_where_an_index_names_them(tmp_path: Path) -> None:
    shards = save_sharded(tmp_path / "shards", index=True)
    save_checkpoint(tmp_path / "whole", tiny_config("qwen3"))
    renamed = {path.name: f"model-{3 * i:05}-of-00099.safetensors" for i, path in enumerate(shards)}
    for path in shards:
        path.rename(path.with_name(renamed[path.name]))
    change_index(tmp_path / "shards", lambda names: {name: renamed[file] for name, file in names.items()})
    assert_same_weights(load_checkpoint(tmp_path / "shards").model, tmp_path / "whole")


def test_an_output_layer_that_is_a_copy_of_the_embedding_is_read_as_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3", tie_word_embeddings=True))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})
    model = load_checkpoint(tmp_path).model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert_same_weights(model, tmp_path)


def test_tensors_that_the_model_has_no_place_for_are_left_out(checkpoint_copy: Path, checkpoint: Path) -> None:
    path = checkpoint_copy / "model.safetensors"
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "model.layers.61.eh_proj.weight": torch.ones(3, 3)}
    save_file(load_file(path) | extra, path, metadata={"format": "pt"})
    assert_same_weights(load_checkpoint(checkpoint_copy).model, checkpoint)


def test_two_sets_of_shards_are_not_mixed(tmp_path: Path) -> None:
    first, *_ = save_sharded(tmp_path, index=False)
    shutil.copyfile(first, tmp_path / "model-00001-of-00009.safetensors")
    assert "has shards of 2 sets of weights and no model.safetensors.index.json" in refusal(tmp_path)


def test_several_files_without_an_index_are_not_guessed_from(checkpoint_copy: Path) -> None:
    (checkpoint_copy / "model.safetensors").rename(checkpoint_copy / "a.safetensors")
    shutil.copyfile(checkpoint_copy / "a.safetensors", checkpoint_copy / "b.safetensors")
    message = refusal(checkpoint_copy)
    assert "which of its 2 other files hold the weights is not clear: a.safetensors, b.safetensors. Rename" in message


# Something else


def test_an_adapter_is_told_with_its_base_model(tmp_path: Path) -> None:
    save_adapter(tmp_path / "adapter")
    message = refusal(tmp_path / "adapter", NotACheckpointError)
    assert "adapter_config.json is the config of an adapter (LoRA), not of a whole model." in message
    assert f"Merge it into its base model {ID} first, with peft: PeftModel.from_pretrained(" in message
    assert "merge_and_unload().save_pretrained('MERGED')" in message


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_of_nobody_knows_what_is_told(checkpoint_copy: Path, text: str) -> None:
    save_adapter(checkpoint_copy)
    (checkpoint_copy / "adapter_config.json").write_text(text)
    (checkpoint_copy / "model.safetensors").unlink()
    assert "Merge it into its base model first, with peft" in refusal(checkpoint_copy, NotACheckpointError)


def test_an_adapter_beside_a_model_is_left_out_with_a_warning(
    checkpoint_copy: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_adapter(checkpoint_copy)
    # With peft installed, transformers would load the adapter too; here it would find a peft in which nothing is.
    is_peft_available()  # is cached: the answer of a process in which this test comes first would be the one for this peft
    monkeypatch.setitem(sys.modules, "peft", ModuleType("peft"))
    monkeypatch.setattr("transformers.integrations.peft.is_peft_available", lambda: True)
    assert_same_weights(load_checkpoint(checkpoint_copy).model, checkpoint)
    (warning,) = ignored_parts(checkpoint_copy)
    assert "adapter_config.json is ignored: the model beside it is exported without the adapter. Merge it" in warning
    assert ignored_parts(checkpoint) == []


OTHERS = {
    "model.onnx": "is an ONNX graph. Give the checkpoint that it was made from",
    "onnx/model_q4.onnx": "is an ONNX graph",
    "model.pte": "is a program for ExecuTorch, such as 'hybridge export' writes. Give the checkpoint",
    "model_index.json": "is the index of a diffusers pipeline. hybridge exports language models only",
    "weights.00.npz": "is a file of MLX weights",
    "openvino_model.xml": "is an OpenVINO graph",
    "model.litertlm": "is a file for LiteRT",
    "tf_model.h5": "is a file of TensorFlow's or Flax's weights. Give a checkpoint with *.safetensors, or convert tf_model.h5",
    "flax_model.msgpack": "is a file of TensorFlow's or Flax's weights",
    "pytorch_model.bin": "is a pickle, which hybridge never loads. Convert it to safetensors first, where you trust it",
    "pytorch_model-00001-of-00002.bin": "is a pickle, which hybridge never loads",
    "consolidated.00.pth": "is a pickle, which hybridge never loads",
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("config", [True, False], ids=["config", "bare"])
def test_a_folder_of_another_kind_is_told(checkpoint_copy: Path, name: str, config: bool) -> None:
    (checkpoint_copy / "model.safetensors").unlink()
    if not config:
        (checkpoint_copy / "config.json").unlink()
    (checkpoint_copy / name).parent.mkdir(exist_ok=True)
    (checkpoint_copy / name).write_bytes(pickle.dumps(None))
    message = refusal(checkpoint_copy, NotACheckpointError)
    assert f"{checkpoint_copy / name} {OTHERS[name]}" in message


@pytest.mark.parametrize("name", [name for name in OTHERS if "/" not in name])
def test_a_file_of_another_kind_is_told(checkpoint_copy: Path, name: str) -> None:
    (checkpoint_copy / name).write_bytes(b"GGUF")
    assert f"{checkpoint_copy / name} {OTHERS[name]}" in refusal(checkpoint_copy / name, NotACheckpointError)


def test_other_forms_beside_the_weights_do_no_harm(checkpoint_copy: Path, checkpoint: Path) -> None:
    for name in OTHERS:
        (checkpoint_copy / name).parent.mkdir(exist_ok=True)
        (checkpoint_copy / name).write_bytes(b"GGUF")
    assert_same_weights(load_checkpoint(checkpoint_copy).model, checkpoint)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README"])
def test_a_file_in_a_checkpoint_leads_to_its_folder(checkpoint_copy: Path, name: str) -> None:
    (checkpoint_copy / name).touch()
    message = refusal(checkpoint_copy / name, NotACheckpointError)
    assert message == f"{checkpoint_copy / name} is a file, not a folder. Give the folder that it is in: {checkpoint_copy}"


def test_a_lone_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "notes.txt is a file, not a folder. Give a local checkpoint" in refusal(tmp_path / "notes.txt", NotACheckpointError)


def test_folders_with_checkpoints_in_them_are_listed(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("checkpoint-500", "checkpoint-1000"):
        shutil.copytree(checkpoint, tmp_path / name)
    message = refusal(tmp_path, NotACheckpointError)
    assert message.splitlines() == [
        f"{tmp_path} has no config.json, but a folder in it has; give that:",
        f"{tmp_path}/checkpoint-1000",
        f"{tmp_path}/checkpoint-500",
    ]


def test_a_config_in_another_publishers_form_is_told(checkpoint_copy: Path) -> None:
    (checkpoint_copy / "config.json").rename(checkpoint_copy / "params.json")
    assert "params.json is a config in Meta's or Mistral's own format" in refusal(checkpoint_copy, NotACheckpointError)


# Quantized by others


@pytest.mark.parametrize("nothing", [None, {}])
def test_an_empty_quantization_config_says_nothing(checkpoint_copy: Path, nothing: object) -> None:
    plain = resolve_checkpoint(checkpoint_copy).config
    edit_json(checkpoint_copy / "config.json", quantization_config=nothing)
    assert resolve_checkpoint(checkpoint_copy).config.model_type == plain.model_type


def test_quantized_mlx_weights_are_told(checkpoint_copy: Path) -> None:
    quantization = {"group_size": 64, "bits": 4}
    edit_json(checkpoint_copy / "config.json", quantization=quantization, quantization_config=quantization)
    assert f"{checkpoint_copy} holds weights that were converted for MLX. Give the original" in refusal(
        checkpoint_copy, NotACheckpointError
    )


def test_mlx_weights_are_told_by_their_metadata(checkpoint_copy: Path) -> None:
    rewritten(checkpoint_copy / "model.safetensors", {"format": "mlx"})
    assert "holds weights that were converted for MLX" in refusal(checkpoint_copy, NotACheckpointError)


def test_nothing_of_all_this_leaves_links_behind(
    checkpoint_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "links"))
    (tmp_path / "links").mkdir()
    (checkpoint_copy / "model.safetensors").rename(checkpoint_copy / "weights.safetensors")
    load_checkpoint(checkpoint_copy)
    assert os.listdir(tmp_path / "links") == []
