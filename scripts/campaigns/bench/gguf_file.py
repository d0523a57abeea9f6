"""Writes a checkpoint as GGUF, for llama.cpp: the same shapes and the same numbers. Runs in the peers' environment.

Keys and changes of the numbers are what llama.cpp's model code reads (src/models/*.cpp): decays as -exp(A_log), norms that
add one to their weight with that one added, convolutions without their middle axis. Matrices are quantized like llama.cpp's
``quantize --pure``: every one, the embedding too, which favours it over its default of a larger head.

Usage: python -m campaigns.bench.gguf_file CHECKPOINT OUT.gguf Q4_0
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors import safe_open

Config = dict[str, Any]
Numbers = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Family:
    """A model type in llama.cpp: its name, its further keys, and how a tensor's numbers differ there."""

    arch: str
    keys: Callable[[gguf.GGUFWriter, Config], None]
    numbers: Callable[[str, Numbers, Config], Numbers]


def qwen35_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """Gated delta net with as many key as value heads; text-only positions are the same in all rope sections."""
    if config["linear_num_key_heads"] != config["linear_num_value_heads"]:
        raise SystemExit("llama.cpp wants other head orders for more value than key heads; this writer has none.")
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    writer.add_array("qwen35.attention.recurrent_layers", recurrent)
    rotated = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
    writer.add_rope_dimension_count(rotated)
    third = rotated // 2 // 3
    writer.add_rope_dimension_sections([rotated // 2 - 2 * third, third, third, 0])
    writer.add_head_count_kv(config["num_key_value_heads"])


def qwen35_numbers(name: str, numbers: Numbers, config: Config) -> Numbers:
    """Add the 1 that transformers' norms, except the gated one, add to their weight."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return numbers + 1
    return numbers


def lfm2_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """Write the heads of each layer: one without key and value heads is a short convolution."""
    writer.add_head_count_kv(_key_value_heads(config))
    writer.add_shortconv_l_cache(config["conv_L_cache"])


def granite_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    """Mamba-2 where there are no key and value heads; no positions, which the key for finetuned scaling stands for."""
    writer.add_head_count_kv(_key_value_heads(config))
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_rope_scaling_finetuned(False)
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def granite_numbers(name: str, numbers: Numbers, config: Config) -> Numbers:
    """Scalars of a head are columns, the gated norm has a row for each group."""
    if name.endswith((".A_log", ".D")):
        return numbers.reshape(-1, 1)
    if name.endswith("mamba.norm.weight"):
        return numbers.reshape(config["mamba_n_groups"], -1)
    return numbers


FAMILIES = {
    "qwen3_5_text": Family("qwen35", qwen35_keys, qwen35_numbers),
    "lfm2": Family("lfm2", lfm2_keys, lambda name, numbers, config: numbers),
    "granitemoehybrid": Family("granitehybrid", granite_keys, granite_numbers),
}


def main(checkpoint: Path, output: Path, kind: str) -> None:
    """Write ``checkpoint`` to ``output``; it appears whole or not at all."""
    config = json.loads((checkpoint / "config.json").read_text())
    family = FAMILIES[config["model_type"]]
    unfinished = output.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, family.arch)
    names = gguf.get_tensor_name_map(_arch(family.arch), config["num_hidden_layers"])
    tensors = [tensor for path in sorted(checkpoint.glob("*.safetensors")) for tensor in tensors_of(path)]
    common_keys(writer, config, feed_forward=_feed_forward(config, dict(tensors)))
    family.keys(writer, config)
    for name, numbers in tensors:
        for part, values in _parts(name, numbers, config):
            add(writer, names, part, family.numbers(part, values, config), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, output)


def common_keys(writer: gguf.GGUFWriter, config: Config, *, feed_forward: int) -> None:
    """Write what every architecture needs; no tokenizer, only token numbers go in and out."""
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    writer.add_rope_freq_base((config.get("rope_parameters") or {}).get("rope_theta", 10000.0))


def add(writer: gguf.GGUFWriter, names: gguf.TensorNameMap, name: str, numbers: Numbers, kind: str) -> None:
    """One tensor under llama.cpp's name: matrices of products in ``kind``, everything else in float32."""
    if name.endswith(".A_log"):
        numbers = -np.exp(numbers)
    if "conv" in name and numbers.ndim == 3:
        numbers = numbers.squeeze(1)
    asked = name.replace(".dt_bias", ".dt_proj.bias")
    target = names.get_name(asked, try_suffixes=(".weight", ".bias"))
    if target is None:
        raise SystemExit(f"llama.cpp has no tensor for {name!r}.")
    product = numbers.ndim == 2 and name.endswith("weight") and "conv1d" not in name and "conv.conv" not in name
    scheme = gguf.GGMLQuantizationType[kind if product and "norm" not in name and numbers.shape[-1] % 32 == 0 else "F32"]
    values = np.ascontiguousarray(numbers, dtype=np.float32)
    if scheme is not gguf.GGMLQuantizationType.F32:
        values = gguf.quantize(values, scheme)
    writer.add_tensor(target, values, raw_dtype=scheme)


def _parts(name: str, numbers: Numbers, config: Config) -> list[tuple[str, Numbers]]:
    """Split gate and up projections that transformers keeps in one matrix, and leave out a tied head."""
    if name == "lm_head.weight" and config.get("tie_word_embeddings"):
        return []
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(numbers, 2)
        stem = name.removesuffix("shared_mlp.input_linear.weight") + "mlp."
        return [(stem + "gate_proj.weight", gate), (stem + "up_proj.weight", up)]
    return [(name.replace("shared_mlp.output_linear", "mlp.down_proj"), numbers)]


def _feed_forward(config: Config, tensors: dict[str, Numbers]) -> int:
    """LFM2 adjusts the config's size, so the first layer's matrix says it; Granite's size is that of its shared expert."""
    adjusted = tensors.get("model.layers.0.feed_forward.w1.weight")
    if adjusted is not None:
        return int(adjusted.shape[0])
    key = "shared_intermediate_size" if "shared_intermediate_size" in config else "intermediate_size"
    return int(config[key])


def _key_value_heads(config: Config) -> list[int]:
    """By layer; none says that a layer is recurrent."""
    return [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in config["layer_types"]]


def tensors_of(path: Path) -> list[tuple[str, Numbers]]:
    with safe_open(path, framework="numpy") as file:
        return [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, text in gguf.MODEL_ARCH_NAMES.items() if text == name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
