"""LoRA adapters are merged as peft merges them; those of other models are refused by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from checkpoint_forms import edit_json
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, tiny_config
from transformers import AutoModelForCausalLM

from hybridge.errors import CheckpointError, HybridgeError, UnsupportedModelError, UsageError
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint

LINEARS = ["q_proj", "v_proj", "down_proj"]
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": LINEARS},
    "ranks": {"target_modules": LINEARS, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.0.self_attn.q_proj": 32}},
    "rslora": {"target_modules": "all-linear", "use_rslora": True},
    "dora": {"target_modules": LINEARS, "use_dora": True},
    "saved": {"target_modules": LINEARS, "modules_to_save": ["lm_head", "input_layernorm"]},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "pattern": {"target_modules": r".*\.layers\.1\.(self_attn|mlp)\..*_proj"},
    "some layers": {"target_modules": LINEARS, "layers_to_transform": [1]},
}


@pytest.fixture(scope="module")
def base_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_checkpoint(folder, tiny_config("qwen3", tie_word_embeddings=False))
    return folder


def save_adapter(base: Path, folder: Path, seed: int = 0, **options: Any) -> dict[str, torch.Tensor]:
    """Write a random adapter with peft, and return the weights of peft's own merge."""
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(base)
        adapted = peft.get_peft_model(model, LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options))
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.data += 0.1 * torch.randn(weight.shape)
        adapted.save_pretrained(folder)
        merged = adapted.merge_and_unload()
    return {name: each.detach().clone() for name, each in merged.state_dict().items()}


@pytest.mark.parametrize("form", FORMS)
def test_an_adapter_is_merged_as_peft_does(base_checkpoint: Path, tmp_path: Path, form: str) -> None:
    want = save_adapter(base_checkpoint, tmp_path, **FORMS[form])
    got = load_checkpoint(resolve_checkpoint(base_checkpoint, (tmp_path,))).model.state_dict()
    before = load_checkpoint(base_checkpoint).model.state_dict()
    assert got.keys() == want.keys()
    for name, weight in want.items():
        torch.testing.assert_close(got[name], weight, rtol=1e-5, atol=1e-6)
    assert any(not got[name].equal(before[name]) for name in want)


def test_several_are_merged_one_after_the_other(base_checkpoint: Path, tmp_path: Path) -> None:
    first = save_adapter(base_checkpoint, tmp_path / "a", 0, **FORMS["plain"])
    second = save_adapter(base_checkpoint, tmp_path / "b", 1, **FORMS["plain"])
    before = load_checkpoint(base_checkpoint).model.state_dict()
    both = load_checkpoint(resolve_checkpoint(base_checkpoint, (tmp_path / "a", tmp_path / "b"))).model.state_dict()
    for name, weight in before.items():
        torch.testing.assert_close(both[name], first[name] + second[name] - weight, rtol=1e-4, atol=1e-5)


def test_names_of_a_whole_model_are_those_of_its_text_model(base_checkpoint: Path, tmp_path: Path) -> None:
    want = save_adapter(base_checkpoint, tmp_path, **FORMS["plain"])
    path = tmp_path / "adapter_model.safetensors"
    renamed = {name.replace("model.layers", "model.language_model.layers"): each for name, each in load_file(path).items()}
    save_file(renamed, path)
    edit_json(tmp_path / "adapter_config.json", target_modules=r".*language_model.*\.(q_proj|v_proj|down_proj)")
    got = load_checkpoint(resolve_checkpoint(base_checkpoint, (tmp_path,))).model.state_dict()
    torch.testing.assert_close(got["model.layers.1.mlp.down_proj.weight"], want["model.layers.1.mlp.down_proj.weight"])


# Bad input


def refusal(base: Path, adapter: Path, kind: type[HybridgeError] = CheckpointError) -> str:
    with pytest.raises(kind) as refused:
        load_checkpoint(resolve_checkpoint(base, (adapter,)))
    assert refused.type is kind
    return str(refused.value)


def test_an_adapter_of_another_model_is_refused_by_name(base_checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_checkpoint(other, tiny_config("lfm2"))
    save_adapter(other, tmp_path / "adapter", target_modules=["in_proj"])
    edit_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path="LiquidAI/LFM2-1.2B")
    said = refusal(base_checkpoint, tmp_path / "adapter")
    assert f"{tmp_path / 'adapter'} is an adapter for LiquidAI/LFM2-1.2B, and cannot be merged into this 'qwen3' model" in said
    assert "it changes model.layers.0.conv.in_proj, which this model does not have" in said


def test_an_adapter_of_a_larger_model_is_refused(base_checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_checkpoint(other, tiny_config("qwen3", hidden_size=64, tie_word_embeddings=False))
    save_adapter(other, tmp_path / "adapter", **FORMS["plain"])
    assert "cannot be merged into this 'qwen3' model" in refusal(base_checkpoint, tmp_path / "adapter")


def test_another_kind_of_adapter_is_named(base_checkpoint: Path, tmp_path: Path) -> None:
    save_adapter(base_checkpoint, tmp_path, **FORMS["plain"])
    edit_json(tmp_path / "adapter_config.json", peft_type="IA3")
    assert "is an adapter of the kind 'IA3'; hybridge merges LORA" in refusal(base_checkpoint, tmp_path, UnsupportedModelError)


def test_a_folder_without_an_adapter_is_wrong_usage(base_checkpoint: Path, tmp_path: Path) -> None:
    assert "has no adapter_config.json, so it is no adapter" in refusal(base_checkpoint, tmp_path, UsageError)


def test_pickles_are_not_loaded(base_checkpoint: Path, tmp_path: Path) -> None:
    save_adapter(base_checkpoint, tmp_path, **FORMS["plain"])
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    assert "has no adapter_model.safetensors (adapter_model.bin is a pickle" in refusal(base_checkpoint, tmp_path)


def test_damaged_weights_are_told(base_checkpoint: Path, tmp_path: Path) -> None:
    save_adapter(base_checkpoint, tmp_path, **FORMS["plain"])
    path = tmp_path / "adapter_model.safetensors"
    stored = load_file(path)
    name = next(iter(stored))
    stored[name] = stored[name] * float("nan")
    save_file(stored, path)
    assert f"{name} in {path} is not finite" in refusal(base_checkpoint, tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    assert "is damaged or only a part of it is there" in refusal(base_checkpoint, tmp_path)
