"""A tensor of an exported layer that nobody reads is refused by name; parts that are left out may stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_forms import assert_same_weights, refusal
from quantized_folders import save_quantized
from safetensors.torch import load_file, save_file
from tiny import save_checkpoint, tiny_config
from torch import Tensor

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.checkpoint import load_checkpoint


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
