"""A GGUF file of a multimodal folder's text, and the file of its encoder of pictures, as llama.cpp's converter writes both.

Source: llama.cpp ``conversion/base.py`` (``MmprojModel``), ``qwen3vl.py``, ``lfm2.py``, ``gemma.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.tensor_mapping import get_tensor_name_map
from gguf_files import TYPES, save_gguf
from public_folders import save_gemma3, save_gemma4, save_lfm2_vl, save_qwen3_5_pictures
from torch import Tensor

from hybridge.export.source.checkpoint import load_checkpoint

KINDS = {
    "qwen3_5": ("qwen35", "qwen3vl_merger"), "lfm2_vl": ("lfm2", "lfm2"), "gemma3": ("gemma3", "gemma3"),
    "gemma4": ("gemma4", "gemma4v"),
}  # fmt: skip
"""llama.cpp's names of text model and projector, by a whole model's type."""

FOLDERS: dict[str, Callable[[Path], None]] = {
    "qwen3_5": lambda folder: save_qwen3_5_pictures(folder, mtp=False),
    "lfm2_vl": save_lfm2_vl,
    "gemma3": save_gemma3,
    "gemma4": save_gemma4,
    "gemma4, clipped": lambda folder: save_gemma4(folder, large=False),
}


ENDS = (".weight", ".bias", ".input_max", ".input_min", ".output_max", ".output_min")


def save_with_pictures(
    folder: Path,
    target: Path,
    mtp: Mapping[str, Tensor] | None = None,
    kind: TYPES = TYPES.F32,
    matrices: TYPES = TYPES.F32,
    tensors_per_part: int = 0,
) -> Any:
    """Write model.gguf and mmproj-model.gguf of the multimodal ``folder`` into ``target``; returns the whole model.

    kind, tensors_per_part: of the text, as ``save_gguf`` takes them; matrices: the type of the encoder's.
    """
    loaded = load_checkpoint(folder, pictures=True)
    whole = loaded.whole
    assert whole is not None
    architecture, projector = KINDS[whole.config.model_type]
    target.mkdir(exist_ok=True)
    tokenizer, template = _tokenizer(folder, loaded.config.vocab_size), (folder / "chat_template.jinja").read_text()
    save_gguf(
        target / "model.gguf", architecture, loaded.model, kind, tokenizer, template, mtp=mtp, tensors_per_part=tensors_per_part
    )
    path = folder / "preprocessor_config.json"
    whole_processor = folder / "processor_config.json"
    processor = json.loads(path.read_text()) if path.exists() else json.loads(whole_processor.read_text())["image_processor"]
    save_mmproj(target / "mmproj-model.gguf", whole, projector, processor, matrices=matrices)
    return whole


def save_mmproj(
    path: Path,
    whole: Any,
    projector: str,
    processor: dict[str, Any],
    width: int | None = None,
    matrices: TYPES = TYPES.F32,
) -> None:
    """Write the encoder of ``whole``. width: of the embeddings that the file says it makes; matrices: their type."""
    vision = whole.config.vision_config
    depth = getattr(vision, "depth", None) or vision.num_hidden_layers
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    if projector == "gemma4v":
        writer.add_clip_vision_projector_type(projector)
    else:
        writer.add_clip_projector_type(projector)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(width or whole.config.get_text_config().hidden_size)
    positions = getattr(vision, "num_position_embeddings", 0)
    size = int(positions**0.5) * vision.patch_size if positions else getattr(vision, "image_size", 256)
    writer.add_vision_image_size(size)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.intermediate_size)
    writer.add_vision_block_count(depth)
    writer.add_vision_head_count(getattr(vision, "num_heads", None) or vision.num_attention_heads)
    writer.add_vision_attention_layernorm_eps(getattr(vision, "layer_norm_eps", 1e-6))
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    if projector == "qwen3vl_merger":
        writer.add_vision_spatial_merge_size(vision.spatial_merge_size)
        writer.add_vision_is_deepstack_layers([False] * depth)
    elif projector == "lfm2":
        writer.add_vision_projector_scale_factor(whole.config.downsample_factor)
    elif projector == "gemma3":
        writer.add_vision_projector_scale_factor(size // vision.patch_size // int(whole.config.mm_tokens_per_image**0.5))
    names = get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(depth, 3))
    for name, tensor in whole.state_dict().items():
        if "language_model." in name or name.startswith("lm_head."):
            continue
        for renamed, each in _converted(name.removeprefix("model."), tensor, projector, vision):
            target = renamed if renamed.startswith(("v.", "mm.")) else names.get_name(renamed, ENDS)
            assert target is not None, f"llama.cpp's {projector} has no {renamed}"
            numbers = np.ascontiguousarray(each.float().numpy())
            fits = numbers.ndim == 2 and numbers.shape[-1] % gguf.GGML_QUANT_SIZES[matrices][0] == 0
            kind = matrices if fits and ".position_embd" not in target else TYPES.F32
            writer.add_tensor(target, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _converted(name: str, tensor: Tensor, projector: str, vision: Any) -> Iterator[tuple[str, Tensor]]:
    if projector == "gemma4v":
        yield from _gemma4(f"model.{name}", tensor, vision)
        return
    name = name.replace("vision_tower.", "vision_tower.vision_model.").replace("_projection_weight", "_projection.weight")
    if name == "visual.patch_embed.proj.weight":
        for frame, end in enumerate(("", ".1")):
            yield f"v.patch_embd.weight{end}", tensor[:, :, frame]
    elif name.startswith("visual.merger."):
        renamed = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
        _, _, part, end = name.split(".")
        yield f"{renamed[part]}.{end}", tensor
    elif projector == "lfm2" and name.endswith("patch_embedding.weight"):
        yield name, tensor.view(len(tensor), vision.patch_size, vision.patch_size, 3).permute(0, 3, 1, 2)
    else:
        yield name, tensor + 1 if "soft_emb_norm" in name else tensor


def _gemma4(name: str, tensor: Tensor, vision: Any) -> Iterator[tuple[str, Tensor]]:
    if "audio" in name:
        return
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")
    if name.endswith("position_embedding_table"):
        name += ".weight"
    if name.endswith("patch_embedder.input_proj.weight"):
        tensor = tensor.view(len(tensor), vision.patch_size, vision.patch_size, 3).permute(0, 3, 1, 2)
    yield name, tensor if tensor.ndim else tensor.unsqueeze(0)


def _tokenizer(folder: Path, size: int) -> dict[str, Any]:
    content = json.loads((folder / "tokenizer.json").read_text())
    special = [each["content"] for each in content["added_tokens"]]
    vocabulary = content["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), size)]
    return {
        "model": "gpt2",
        "pre": "default",
        "tokens": tokens,
        "token_type": [3 if token in special else 1 for token in tokens],
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]],
        "eos_token_id": 2,
    }
