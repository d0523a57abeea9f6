"""Write a GGUF file of a published shape with random weights: llama.cpp's names and types, and no numbers of anybody's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf.tensor_mapping import get_tensor_name_map
from gguf_converter import converted, metadata
from gguf_files import add_entry, random_blocks
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from cataloguing.mixes import types_of
from cataloguing.shapes import Shape

Bytes = np.ndarray[Any, Any]


def write_file(path: Path, shape: Shape, mix: str) -> None:
    """Write the file of a model in a mix; a tensor at a time is in memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(shape.model_type, **shape.config))
    entries = metadata(shape.architecture, model) | dict(shape.metadata)
    architecture = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == shape.architecture)
    names = get_tensor_name_map(architecture, entries["block_count"])
    tensors: dict[str, Tensor] = {}
    for name, tensor in (*converted(shape.architecture, model, {}), *_angles(model.config)):
        own = name.startswith(("blk.", "rope_"))
        target = name if own else names.get_name(name, (".weight", ".bias"))
        assert target is not None, f"llama.cpp's {shape.architecture} has no {name}"
        tensors[target] = tensor
    types = types_of(mix, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    writer = gguf.GGUFWriter(path, shape.architecture)
    for name, value in entries.items():
        add_entry(writer, f"{shape.architecture}.{name}", value)
    _add_tokenizer(writer, int(model.config.vocab_size), shape)
    for name, tensor in tensors.items():
        kind = types[name]
        rows = [*tensor.shape[:-1], tensor.shape[-1]]
        per_block, block = gguf.GGML_QUANT_SIZES[kind]
        size = math.prod(rows) // per_block * block
        writer.add_tensor_info(name, rows, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for seed, (name, tensor) in enumerate(tensors.items()):
        writer.write_tensor_data(_numbers(name, tensor, types[name], seed))
    writer.close()


def _angles(config: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield Llama 3's factors of its angles. Source: llama.cpp ``conversion/llama.py``."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        lengths = 2 * math.pi * rope["rope_theta"] ** (torch.arange(0, head, 2).float() / head)
        low, high = (rope["original_max_position_embeddings"] / rope[f"{end}_freq_factor"] for end in ("low", "high"))
        smooth = (rope["original_max_position_embeddings"] / lengths - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors = torch.where(lengths < high, torch.ones_like(lengths), torch.where(lengths > low, rope["factor"], between))
        yield "rope_freqs.weight", factors


def _numbers(name: str, tensor: Tensor, kind: Type, seed: int) -> Bytes:
    rng = np.random.default_rng(seed)
    if not tensor.is_meta:
        return tensor.float().numpy()
    if kind in (Type.F32, Type.F16, Type.BF16):
        size = tuple(tensor.shape)
        if name.endswith("ssm_a"):
            numbers = -rng.uniform(0.1, 1.0, size)
        else:
            numbers = rng.uniform(0.5, 1.5, size) if len(size) < 2 else rng.normal(0.0, 0.05, size)
        floats = numbers.astype(np.float32)
        if kind == Type.BF16:
            return (floats.view(np.uint32) >> 16).astype(np.uint16)
        return floats.astype(np.float16) if kind == Type.F16 else floats
    return random_blocks(kind, math.prod(tensor.shape[:-1]), tensor.shape[-1], seed)


def _add_tokenizer(writer: gguf.GGUFWriter, size: int, shape: Shape) -> None:
    """Add any tokens: a program depends on their number, and on the ids of those that begin and end texts."""
    names = {place: name for name, place in shape.ends.items()}
    writer.add_tokenizer_model(shape.tokenizer)
    writer.add_tokenizer_pre("default")
    writer.add_token_list([names.get(i, f"<{i}>") for i in range(size)])
    writer.add_token_types([3 if i in names else 1 for i in range(size)])
    if shape.tokenizer == "llama":
        writer.add_token_scores([0.0] * size)
    else:
        writer.add_token_merges(["<0> <1>"])
    writer.add_add_bos_token(shape.adds_bos)
    for name, place in shape.ids.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", place)
