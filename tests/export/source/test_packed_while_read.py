"""A model that is packed while it is read has the very weights of one that is read first and packed then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, save_lively_checkpoint, tiny_config
from torch import Tensor, nn
from transformers import PreTrainedModel
from zoo import by_kind

from hybridge.errors import CheckpointError, UsageError
from hybridge.export.pinned.transformers import read_one_by_one
from hybridge.export.quantize.quantize import PackedWhileRead, packer, quantize
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.export.weights import PackedLinear
from hybridge.runtime.artifact.options import ExportOptions

OWN, OWN_8_BITS = ExportOptions(), ExportOptions(quantize="8w", group_size=8, embedding_quantize="8w")
STOCK = ExportOptions(kernels="llm", quantize="8da4w", group_size=32, embedding_quantize="4w")
STOCK_EMBEDDING = ExportOptions(kernels="llm", embedding_quantize="8w", group_size=32)


def packed(folder: Path, options: ExportOptions, reader: Any = None) -> PreTrainedModel:
    model = load_checkpoint(folder, reader).model
    quantize(model, options)
    return model


def outcome(folder: Path, options: ExportOptions, reader: Any = None) -> dict[str, Tensor] | str:
    """The weights of the packed model, or why there are none."""
    try:
        return dict(packed(folder, options, reader).state_dict())
    except UsageError as error:
        return str(error).partition(" has ")[2]  # layers are met in another order


def assert_same(folder: Path, options: ExportOptions) -> None:
    want, got = outcome(folder, options), outcome(folder, options, packer(options))
    if isinstance(want, str) or isinstance(got, str):
        assert (isinstance(want, str), isinstance(got, str)) == (True, True), (want, got)
        return
    assert list(got) == list(want)
    for name, weight in want.items():
        assert got[name].dtype == weight.dtype, name
        assert torch.equal(got[name], weight), name


@pytest.mark.slow
@pytest.mark.parametrize("family", by_kind())
def test_every_family_is_packed_alike(family: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config(family), torch.bfloat16)
    assert_same(tmp_path, OWN)


def test_what_was_read_gets_no_first_values(tmp_path: Path) -> None:
    """RecurrentGemma's blocks give the biases of their linear layers first values, after those were packed."""
    save_lively_checkpoint(tmp_path, tiny_config("recurrent_gemma"))
    assert_same(tmp_path, OWN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", [OWN, OWN_8_BITS, STOCK, STOCK_EMBEDDING], ids=["own", "8 bits", "stock", "table"])
def test_every_type_and_kernel_set_is_packed_alike(
    options: ExportOptions, tied: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": tied}
    save_checkpoint(tmp_path, tiny_config("qwen3_5_text", **sizes), dtype, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(tmp_path, options)


@pytest.mark.parametrize("options", [OWN, OWN_8_BITS, STOCK_EMBEDDING])
def test_a_head_that_should_be_tied_but_differs_is_its_own(options: ExportOptions, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "tie_word_embeddings": True}
    save_checkpoint(tmp_path, tiny_config("qwen3", **sizes), torch.bfloat16)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same(tmp_path, options)


def test_no_two_layers_are_there_in_full_at_once(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3"), torch.bfloat16)

    class Watched(PackedWhileRead):
        most = 0

        def loaded(self, model: PreTrainedModel, name: str) -> None:
            linears = [each for path, each in model.named_modules() if path in self.names(model).linears]
            there = sum(isinstance(each, nn.Linear) and not each.weight.is_meta for each in linears)
            self.most = max(self.most, there)
            super().loaded(model, name)

    watched = Watched(OWN)
    model = load_checkpoint(tmp_path, watched).model
    assert watched.most == 1
    assert sum(isinstance(each, PackedLinear) for each in model.modules()) == len(watched.names(model).linears)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"])
def test_a_weight_that_is_no_number_is_named(name: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3"), torch.float16)
    weights = load_file(tmp_path / "model.safetensors")
    weights[name].flatten()[-1] = float("inf")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"{name} in .* is not finite"):
        load_checkpoint(tmp_path, packer(OWN))


def test_a_misshapen_or_missing_weight_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3"))
    weights, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.mlp.up_proj.weight"
    weights[name] = weights[name][:-1].contiguous()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"{name} in .* has shape"):
        load_checkpoint(tmp_path, packer(OWN))
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"lacks {name}"):
        load_checkpoint(tmp_path, packer(OWN))


def test_a_group_size_that_does_not_fit_is_a_wrong_option_not_a_broken_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3", hidden_size=40))
    options = ExportOptions(quantize="4w", group_size=32)
    with pytest.raises(UsageError, match="groups of 32 do not divide"):
        load_checkpoint(tmp_path, packer(options))


def test_nothing_is_packed_that_an_artifact_has_as_it_is() -> None:
    assert packer(ExportOptions(kernels="llm")) is None


def test_from_pretrained_reads_one_by_one_in_the_files_own_type(tmp_path: Path) -> None:
    """What ``read_one_by_one`` assumes of transformers."""
    saved = save_checkpoint(tmp_path, tiny_config("qwen3"), torch.bfloat16)
    kept, events = "model.layers.0.mlp.up_proj.weight", []

    class Kept:
        def keeps(self, model: PreTrainedModel, name: str) -> bool:
            return name == kept

        def loaded(self, model: PreTrainedModel, name: str) -> None:
            there = {name for name, weight in model.named_parameters() if not weight.is_meta}
            events.append((name, there))

    with read_one_by_one(Kept()):
        model = type(saved).from_pretrained(tmp_path, dtype=torch.float32)
    told = [name for name, _ in events]
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert sorted(told) == sorted(file.keys())
    assert all(there >= set(told[: place + 1]) and len(there) <= place + 2 for place, (_, there) in enumerate(events))
    types = {name: weight.dtype for name, weight in model.named_parameters()}
    assert {name for name, dtype in types.items() if dtype != torch.float32} == {kept}
