"""What is wrong with a checkpoint is said in one sentence; what is right loads to the model that was saved."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_forms import edit_json
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, tiny_config, tiny_model
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from zoo import by_kind

from hybridge.cache.families import FAMILIES
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.program.build import build_cache
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.runtime.artifact.options import ExportOptions

NORM = "model.norm.weight"
TOKENS = torch.arange(20)[None, :] * 7 % 131

Weights = dict[str, Tensor]


def edit_weights(folder: Path, change: Callable[[Weights], object]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def shards(folder: Path) -> Path:
    """A checkpoint of many files; returns its index."""
    save_checkpoint(folder, tiny_config("qwen3"), max_shard_size="60KB")
    return folder / "model.safetensors.index.json"


class Bomb:
    """Creates ``marker`` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


# The folder and its config


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere is not a folder\. Give a local checkpoint"):
        resolve_checkpoint(tmp_path / "nowhere")


def test_no_config_is_refused(checkpoint_copy: Path) -> None:
    (checkpoint_copy / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        resolve_checkpoint(checkpoint_copy)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, r"as JSON \(Expecting .*\); download it again") for text in ("", "{", "nonsense")),
        *((text, "it is JSON, but not an object; download it again") for text in ("[]", "[1]", "3", "null")),
        *((text, r"it has no model_type, such as .*Give a local checkpoint") for text in ("{}", '{"hidden_size": 48}')),
        ("\xff\xfe{}", "codec can't decode"),
    ],
)
def test_a_config_that_is_none_is_refused(checkpoint_copy: Path, text: str, says: str) -> None:
    (checkpoint_copy / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=rf"config\.json cannot be read.*{says}"):
        resolve_checkpoint(checkpoint_copy)


CANNOT_BUILD = r"config\.json describes a model that transformers cannot build \({}.*Take the config\.json that came with"
NOT_VALID = r"config\.json is not a valid 'qwen3_5_text' config: .*{}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, CANNOT_BUILD.format("ZeroDivisionError")),
        ({"head_dim": -1}, r"sizes that no layer can have: \[1, -1\] for the keys of full_attention"),
        ({"linear_num_value_heads": -1}, "linear_num_value_heads = -1, expected 1 or more"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim = 0, expected 2 or more"),
        ({"hidden_size": "wide"}, NOT_VALID.format("'hidden_size'")),
        ({"hidden_act": "nope"}, CANNOT_BUILD.format("KeyError: 'nope'")),
        ({"rope_parameters": {"rope_type": "nope"}}, CANNOT_BUILD.format("KeyError: 'nope'")),
        ({"layer_types": ["linear_attention"]}, NOT_VALID.format("'validate_layer_type'")),
        ({"layer_types": 3}, NOT_VALID.format("'layer_types'")),
        ({"model_type": []}, "it has no model_type"),
        ({"model_type": None}, "it has no model_type"),
        ({"text_config": []}, NOT_VALID.format("'list' object")),
        ({"pad_token_id": 1000}, CANNOT_BUILD.format("AssertionError: Padding_idx")),
    ],
    ids=str,
)
def test_a_config_of_an_impossible_model_is_refused(checkpoint_copy: Path, changes: dict[str, Any], message: str) -> None:
    edit_json(checkpoint_copy / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        build_cache(resolve_checkpoint(checkpoint_copy).config, ExportOptions(max_seq_len=96)), load_checkpoint(checkpoint_copy)


UNSUPPORTED = {
    "bert": "",
    "rwkv": "",
    "deepseek_v3": r"Parts of it that hybridge has: 2 × latent attention\..*docs/adding-a-family\.md",
    "siglip_vision_model": "It has no text model",
}


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_an_unsupported_model_is_named_beside_the_supported_ones(tmp_path: Path, model_type: str) -> None:
    """One whose parts hybridge has only lacks an entry, and a document says how to add it."""
    AutoConfig.for_model(model_type, num_hidden_layers=2).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=f"(?s){UNSUPPORTED[model_type]}") as refusal:
        resolve_checkpoint(tmp_path)
    message = str(refusal.value)
    if model_type != "siglip_vision_model":
        assert f"model type {model_type!r} is not supported" in message
        assert all(name.removesuffix("_text") in message for name in FAMILIES)
    assert ("docs/adding-a-family.md" in message) == (model_type == "deepseek_v3")


def test_an_unknown_model_is_named_with_its_layers(checkpoint_copy: Path) -> None:
    edit_json(checkpoint_copy / "config.json", model_type="made_up", layer_types=["mystery", "mystery", "full_attention"])
    with pytest.raises(UnsupportedModelError, match=r"'made_up' is not supported.*2 × mystery, 1 × full_attention"):
        resolve_checkpoint(checkpoint_copy)


@pytest.mark.parametrize("model_type", ["bert", "made_up"])
def test_a_cache_of_an_unsupported_model_is_refused(model_type: str) -> None:
    config = AutoConfig.for_model("bert")
    config.model_type = model_type
    with pytest.raises(
        UnsupportedModelError, match=f"model type {model_type!r} is not supported(.|\n)*Supported: .*llama, .*qwen3"
    ):
        HybridCache.from_config(config, max_seq_len=8)


def test_the_layers_that_are_the_obstacle_are_named(tmp_path: Path) -> None:
    types = ["linear_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    tiny_config("qwen3_next", layer_types=types, num_hidden_layers=5).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"'qwen3_next' .* 2 × sliding_attention of 5") as refusal:
        HybridCache.from_config(resolve_checkpoint(tmp_path).config, max_seq_len=8)
    assert "Supported for 'qwen3_next': full_attention, linear_attention." in str(refusal.value)


def test_more_experts_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(CheckpointError, match=r"num_experts_per_tok = 6 of num_experts = 5.*1 to 5"):
        HybridCache.from_config(tiny_config("qwen3_moe", num_experts_per_tok=6), max_seq_len=32)


def test_a_window_smaller_than_the_convolution_is_refused() -> None:
    config = tiny_config("recurrent_gemma", attention_window_size=2)
    with pytest.raises(CheckpointError, match="window of 2, less than the 3 positions"):
        HybridCache.from_config(config, max_seq_len=32)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "made_up"])
def test_code_in_a_checkpoint_never_runs(checkpoint_copy: Path, tmp_path: Path, model_type: str) -> None:
    marker = tmp_path / "ran"
    (checkpoint_copy / "evil.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    evil = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "evil.Evil")
    edit_json(checkpoint_copy / "config.json", model_type=model_type, auto_map=evil)
    if model_type in FAMILIES:
        load_checkpoint(checkpoint_copy)
    else:
        with pytest.raises(UnsupportedModelError, match="made_up"):
            load_checkpoint(checkpoint_copy)
    assert not marker.exists()


# Weights


def test_no_weights_are_refused(checkpoint_copy: Path) -> None:
    (checkpoint_copy / "model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"has no \*\.safetensors with the weights; the checkpoint is incomplete: download"
    ):
        load_checkpoint(checkpoint_copy)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_a_pickle_is_refused_and_never_loaded(checkpoint_copy: Path, tmp_path: Path, name: str) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    (checkpoint_copy / "model.safetensors").unlink()
    (checkpoint_copy / name).write_bytes(bomb)
    with pytest.raises(CheckpointError, match=f"{name} is a pickle, which hybridge never loads"):
        load_checkpoint(checkpoint_copy)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists(), "the bomb was a dud"


def test_a_pickle_beside_the_weights_is_ignored(checkpoint_copy: Path, tmp_path: Path) -> None:
    (checkpoint_copy / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    load_checkpoint(checkpoint_copy)
    assert not (tmp_path / "exploded").exists()


def test_an_index_that_names_a_pickle_is_refused(tmp_path: Path) -> None:
    index = shards(tmp_path)
    torch.save(tiny_model(tiny_config("qwen3")).state_dict(), tmp_path / "pytorch_model.bin")
    names = json.loads(index.read_text())["weight_map"]
    edit_json(index, weight_map=dict.fromkeys(names, "pytorch_model.bin"))
    with pytest.raises(CheckpointError, match=r"names 'pytorch_model\.bin', but shards are \*\.safetensors in the same folder"):
        load_checkpoint(tmp_path)


def test_a_missing_weight_is_named(checkpoint_copy: Path) -> None:
    edit_weights(checkpoint_copy, lambda weights: weights.pop(NORM))
    with pytest.raises(CheckpointError, match=rf"lacks {NORM}; the checkpoint is incomplete"):
        load_checkpoint(checkpoint_copy)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"linear_conv_kernel_dim": 4096}, r"conv1d\.weight in .* asks for \[\d+, 1, 4096\]"),
        ({"attention_bias": True}, r"lacks .*_proj\.bias"),
        ({"vocab_size": 1000}, r"lm_head\.weight in .* asks for \[1000, 48\]"),
    ],
    ids=str,
)
def test_no_weights_are_made_up(
    checkpoint_copy: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object], says: str
) -> None:
    """Random ones of the size that was asked for took 19 GB and 70 s, with one number of a config of 878 bytes changed."""
    edit_json(checkpoint_copy / "config.json", **asked)
    monkeypatch.setattr(PreTrainedModel, "_initialize_missing_keys", lambda *_: pytest.fail("random weights were made"))
    with pytest.raises(CheckpointError, match=says):
        load_checkpoint(checkpoint_copy)


def test_a_misshapen_weight_is_named_with_both_shapes(checkpoint_copy: Path) -> None:
    edit_weights(checkpoint_copy, lambda weights: weights.update({NORM: torch.ones(47)}))
    with pytest.raises(CheckpointError, match=rf"{NORM} in .* has shape \[47\], but config\.json asks for \[48\]"):
        load_checkpoint(checkpoint_copy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_named(checkpoint_copy: Path, value: float, dtype: torch.dtype) -> None:
    """float16 overflows where somebody converted a larger number."""
    edit_weights(
        checkpoint_copy, lambda weights: weights.update({NORM: weights[NORM].to(dtype).index_fill(0, torch.tensor([3]), value)})
    )
    with pytest.raises(CheckpointError, match=rf"{NORM} in .* is not finite \(NaN or infinity\); the weights are damaged"):
        load_checkpoint(checkpoint_copy)


@pytest.mark.parametrize("kept", [0, 3, 8, 100, 5000, -1])
def test_truncated_weights_are_refused(checkpoint_copy: Path, kept: int) -> None:
    path = checkpoint_copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"the weights in .* cannot be read.*damaged or only a part of it is there"):
        load_checkpoint(checkpoint_copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as an index of shards"),
        ("[]", "cannot be read as an index of shards"),
        ("{}", "cannot be read as an index of shards"),
        ('{"weight_map": []}', "cannot be read as an index of shards"),
        ('{"weight_map": {}, "metadata": {}}', "names no shards"),
        ('{"weight_map": {"a": 1}, "metadata": {}}', r"names 1, but shards are \*\.safetensors"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    shards(tmp_path).write_text(text)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors\.index\.json {message}"):
        load_checkpoint(tmp_path)


# Checkpoints that load


def assert_loads_as(folder: Path, saved: torch.nn.Module) -> None:
    """The loaded model's uncached logits are those of the saved one's weights, taken as float32."""
    expected = tiny_model(resolve_checkpoint(folder).config)
    expected.load_state_dict(saved.state_dict())
    loaded = load_checkpoint(folder).model
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    with torch.no_grad():
        logits, want = (model(TOKENS, use_cache=False).logits for model in (loaded, expected))
    torch.testing.assert_close(logits, want, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, *(pytest.param(each, marks=pytest.mark.thorough) for each in (torch.float32, torch.float16))],
    ids=str,
)
def test_every_family_loads_in_every_dtype(tmp_path: Path, model_type: str, dtype: torch.dtype) -> None:
    assert_loads_as(tmp_path, save_checkpoint(tmp_path, tiny_config(model_type), dtype, seed=1))


@pytest.mark.parametrize("model_type", by_kind())
def test_shards_load_as_one(tmp_path: Path, model_type: str) -> None:
    saved = save_checkpoint(tmp_path, tiny_config(model_type), seed=2, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_loads_as(tmp_path, saved)


@pytest.mark.parametrize("model_type", by_kind())
def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path, model_type: str) -> None:
    saved = save_checkpoint(tmp_path, tiny_config(model_type, tie_word_embeddings=True), seed=3)
    if saved.get_output_embeddings().weight is not saved.get_input_embeddings().weight:
        pytest.skip("transformers ties nothing in this family, whatever its config says")
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert_loads_as(tmp_path, saved)
    model = load_checkpoint(tmp_path).model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
