"""Writes a checkpoint's encoder of pictures as GGUF, for llama.cpp's mtmd, and a text model. Runs in the peers' environment.

Names and keys are those that llama.cpp's tools/mtmd/clip.cpp reads. mtmd asks a text model for the width of its embeddings and
for tokens around pictures, and never runs it to encode: it has one layer here, and a vocabulary of bytes.

Usage: python -m campaigns.bench.mmproj_file CHECKPOINT MMPROJ.gguf Q8_0|F32 TEXT.gguf
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from campaigns.bench.gguf_file import Numbers, tensors_of

Vision = dict[str, Any]
MARKS = ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", "<|vision_start|>", "<|vision_end|>")


@dataclass(frozen=True)
class Projector:
    """How llama.cpp calls a kind of encoder, its own keys, and its tensors: by a pattern, each one's name there.

    patches: returns the kernels of the convolution of patches from its weight, each [hidden, 3, size, size].
    """

    kind: str
    layers: str
    heads: str
    keys: Callable[[gguf.GGUFWriter, Vision], None]
    names: Mapping[str, str]
    patches: Callable[[Numbers, Vision], Iterator[Numbers]]


def lfm2_keys(writer: gguf.GGUFWriter, vision: Vision) -> None:
    """Write what LFM2-VL's encoder asks for."""
    writer.add_uint32("clip.vision.projector.scale_factor", 2)
    writer.add_uint32("clip.vision.image_size", int(vision["num_patches"] ** 0.5) * vision["patch_size"])


def lfm2_patches(numbers: Numbers, vision: Vision) -> Iterator[Numbers]:
    """Turn rows by row, column and channel into a kernel."""
    size = vision["patch_size"]
    yield numbers.reshape(-1, size, size, 3).transpose(0, 3, 1, 2)


def qwen3vl_keys(writer: gguf.GGUFWriter, vision: Vision) -> None:
    """Write what Qwen3-VL's encoder asks for, which Qwen3.5's is."""
    writer.add_uint32("clip.vision.spatial_merge_size", vision["spatial_merge_size"])
    writer.add_uint32("clip.vision.image_size", int(vision["num_position_embeddings"] ** 0.5) * vision["patch_size"])


def qwen3vl_patches(numbers: Numbers, vision: Vision) -> Iterator[Numbers]:
    """Take a kernel over two pictures of a film apart."""
    yield from (numbers[:, :, time] for time in range(vision["temporal_patch_size"]))


PROJECTORS: Mapping[str, Projector] = {
    "lfm2_vl": Projector(
        "lfm2",
        "num_hidden_layers",
        "num_attention_heads",
        lfm2_keys,
        {
            r"vision_tower\.embeddings\.patch_embedding": "v.patch_embd",
            r"vision_tower\.embeddings\.position_embedding": "v.position_embd",
            r"vision_tower\.encoder\.layers\.(\d+)\.layer_norm(\d)": r"v.blk.\1.ln\2",
            r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj": r"v.blk.\1.attn_\2",
            r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.out_proj": r"v.blk.\1.attn_out",
            r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.fc1": r"v.blk.\1.ffn_up",
            r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.fc2": r"v.blk.\1.ffn_down",
            r"vision_tower\.post_layernorm": "v.post_ln",
            r"multi_modal_projector\.layer_norm": "mm.input_norm",
            r"multi_modal_projector\.linear_(\d)": r"mm.\1",
        },
        lfm2_patches,
    ),
    "qwen3_5": Projector(
        "qwen3vl_merger",
        "depth",
        "num_heads",
        qwen3vl_keys,
        {
            r"visual\.patch_embed\.proj": "v.patch_embd",
            r"visual\.pos_embed": "v.position_embd",
            r"visual\.blocks\.(\d+)\.norm(\d)": r"v.blk.\1.ln\2",
            r"visual\.blocks\.(\d+)\.attn\.qkv": r"v.blk.\1.attn_qkv",
            r"visual\.blocks\.(\d+)\.attn\.proj": r"v.blk.\1.attn_out",
            r"visual\.blocks\.(\d+)\.mlp\.linear_fc1": r"v.blk.\1.ffn_up",
            r"visual\.blocks\.(\d+)\.mlp\.linear_fc2": r"v.blk.\1.ffn_down",
            r"visual\.merger\.norm": "v.post_ln",
            r"visual\.merger\.linear_fc1": "mm.0",
            r"visual\.merger\.linear_fc2": "mm.2",
        },
        qwen3vl_patches,
    ),
}


def main(checkpoint: Path, output: Path, kind: str, text: Path) -> None:
    """Write both files; each appears whole or not at all."""
    config = json.loads((checkpoint / "config.json").read_text())
    projector, vision, width = PROJECTORS[config["model_type"]], config["vision_config"], config["text_config"]["hidden_size"]
    writer = gguf.GGUFWriter(unfinished := output.with_suffix(".unfinished"), "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", projector.kind)
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "block_count": vision[projector.layers],
        "attention.head_count": vision[projector.heads],
        "projection_dim": width,
        "patch_size": vision["patch_size"],
    }
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision.get("layer_norm_eps", 1e-6))
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    projector.keys(writer, vision)
    for path in sorted(checkpoint.glob("*.safetensors")):
        for name, values in tensors_of(path):
            for target, each in parts(projector, vision, name, values):
                scheme = scheme_of(target, each, kind)
                dense = np.ascontiguousarray(each, dtype=np.float32)
                writer.add_tensor(target, gguf.quantize(dense, scheme), raw_dtype=scheme)
    _write(writer, unfinished, output)
    save_text(text, width)


def parts(projector: Projector, vision: Vision, name: str, values: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Yield a tensor of the encoder under its names; nothing for one of the text model."""
    stem, _, part = name.removeprefix("model.").rpartition(".")
    target = next((re.sub(p, t, stem) for p, t in projector.names.items() if re.fullmatch(p, stem)), None)
    if target == "v.patch_embd" and part == "weight":
        for number, kernel in enumerate(projector.patches(values, vision)):
            yield f"v.patch_embd.weight{f'.{number}' if number else ''}", kernel
    elif target is not None:
        yield f"{target}.{part}", values


def scheme_of(name: str, values: Numbers, kind: str) -> gguf.GGMLQuantizationType:
    """Return how a tensor is stored: matrices of products in ``kind``, with these the patches' convolution in float16."""
    product = values.ndim == 2 and not name.startswith("v.position_embd")
    patches = values.ndim == 4 and kind != "F32"
    return gguf.GGMLQuantizationType["F16" if patches else kind if product else "F32"]


def save_text(path: Path, width: int) -> None:
    """Write a text model of one layer for embeddings of that width."""
    writer = gguf.GGUFWriter(unfinished := path.with_suffix(".unfinished"), "llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *MARKS]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    special = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types([*special, *[kinds.BYTE] * 256, *[kinds.CONTROL] * len(MARKS)])
    writer.add_vocab_size(len(tokens))
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(32)
    writer.add_head_count(max(1, width // 64))
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {
        "token_embd": (len(tokens), width),
        "output_norm": (width,),
        **{f"blk.0.{each}_norm": (width,) for each in ("attn", "ffn")},
        **{f"blk.0.attn_{each}": (width, width) for each in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{each}": (32, width) for each in ("gate", "up")},
        "blk.0.ffn_down": (width, 32),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
    _write(writer, unfinished, path)


def _write(writer: gguf.GGUFWriter, unfinished: Path, path: Path) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
