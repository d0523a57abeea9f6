"""Encode pictures for Qwen3.5: a vision transformer with learned positions and rope by row and column, which merges patches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.operations.kernels import Kernels, Scoring
from hybridge.export.model.encoders.encoder import (
    BICUBIC,
    IN_ONE_PART,
    PatchEncoder,
    Patches,
    VisionFamily,
    check_channels,
    check_fewest,
    check_filter,
    default_budgets,
    normalization,
    patch_embedding,
    pixels_last,
)
from hybridge.export.operators.elementwise import rotate_half
from hybridge.runtime.artifact.pictures import MOST_IMAGE_TOKENS, PictureDescription


class MergingEncoder(PatchEncoder):
    """The vision tower of a Qwen3.5 model over padded patches.

    Source: transformers 5.23 ``Qwen3_5VisionModel``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        super().__init__(kernels, description.patch_size, *normalization(processor))
        tower = whole.model.visual
        self.blocks, self.merger, self.pos_embed = tower.blocks, tower.merger, tower.pos_embed
        self.rotary = tower.rotary_pos_emb
        self.square = tower.spatial_merge_unit
        self.patch_embedding = patch_embedding(tower.patch_embed.proj.weight, tower.patch_embed.proj.bias, one_frame)
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, rows: Tensor, columns: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        length = pixels.shape[0]
        weights = (rows[:, :, None] * columns[:, None, :]).reshape(length, -1)
        hidden = self.patch_embedding(self.normalized(pixels)[None]) + torch.mm(weights, self.pos_embed.weight)[None]
        cos, sin = (each[None, :, None] for each in self.rotary(hidden, places))
        seen = self.seen(count, length)
        for block in self.blocks:
            hidden = hidden + attend(block.attn, block.norm1(hidden), cos, sin, seen)
            hidden = hidden + block.mlp(block.norm2(hidden))
        merger = self.merger
        squares = merger.norm(hidden).reshape(1, length // self.square, -1)
        embedded: Tensor = merger.linear_fc2(merger.act_fn(merger.linear_fc1(squares)))
        return embedded


def attend(attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor, seen: Patches) -> Tensor:
    """Return float32 [1, N, hidden] of attention among patches, whose query, key and value come from one matrix.

    Args:
        attention: transformers' own module; if it has norms for query and key, they come before rope.
        hidden: float32 [1, N, hidden].
        cos, sin: float32 [1, N, 1, head_dim].
        seen: which patches are a picture's.
    """
    heads = attention.qkv(hidden).unflatten(-1, (3, attention.num_heads, -1))
    query, key, value = (heads[:, :, i].contiguous() for i in range(3))
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    query, key = (each * cos + rotate_half(each) * sin for each in (query, key))
    mixed = seen.kernels.attend(query, key, value, seen.block, Scoring(scale=attention.scaling), seen.visible)
    attended: Tensor = attention.proj(mixed.flatten(2))
    return attended


def one_frame(convolution: Tensor) -> Tensor:
    """Return the matrix of a convolution [hidden, channel, frame, row, column] for a picture, a film of equal frames."""
    return pixels_last(convolution.sum(2))


def merging_inputs(config: Any, processor: Mapping[str, Any], pictures: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return ``pixel_values`` and ``image_grid_thw`` as transformers' processor has them."""
    if not pictures:
        return {}
    vision, (scale, shift) = config.vision_config, normalization(processor)
    patch, merge = vision.patch_size, vision.spatial_merge_size
    values, grids = [], []
    for picture in pictures:
        normalized = picture.float() * torch.tensor(scale) + torch.tensor(shift)
        rows, columns = (side // patch for side in picture.shape[:2])
        cut = normalized.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3).permute(0, 3, 1, 4, 6, 2, 5)
        frames = cut.unsqueeze(5).expand(*cut.shape[:5], vision.temporal_patch_size, patch, patch)
        values.append(frames.reshape(rows * columns, -1))
        grids.append([1, rows, columns])
    return {"pixel_values": torch.cat(values), "image_grid_thw": torch.tensor(grids)}


def merging_positions(whole: PreTrainedModel, text: Sequence[int], inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``position_ids`` int64 [3, 1, T] by transformers' own rules, for a text with pictures as ids below 0.

    transformers takes neighbouring rows of one kind for one picture. So pictures are its pictures and its films by turns, which
    have the same positions.
    """
    if not inputs:
        return {}
    merge = whole.config.vision_config.spatial_merge_size
    grids, kinds, place = inputs["image_grid_thw"], list[int](), 0
    for number, (_, rows, columns) in enumerate(grids.tolist()):
        begin = next(i for i in range(place, len(text)) if text[i] < 0)
        place = begin + rows * columns // merge**2
        kinds += [0] * (begin - len(kinds)) + [1 + number % 2] * (place - begin)
    kinds += [0] * (len(text) - len(kinds))
    ids = torch.tensor([text]).clamp(min=0)
    by_kind = {"image_grid_thw": grids[::2], "video_grid_thw": grids[1::2] if len(grids) > 1 else None}
    return {"position_ids": whole.model.get_rope_index(ids, torch.tensor([kinds], dtype=torch.int32), **by_kind)[0]}


def _qwen3_5(config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    sections = config.get_text_config().rope_parameters.get("mrope_section", (11, 11, 10))
    if len(sections) != 3 or not all(isinstance(size, int) and size >= 0 for size in sections):
        raise ValueError(f"mrope_section is {sections!r}, not three numbers for time, row and column")
    side = math.isqrt(config.vision_config.num_position_embeddings)
    if side**2 != config.vision_config.num_position_embeddings:
        raise ValueError("the model's learned positions are no square")
    return describe_merged("qwen3_5", config, processor, budgets, side=side)


def tokens_of_pixels(config: Any, processor: Mapping[str, Any]) -> tuple[int, int]:
    """Return the fewest and the most tokens of a picture that ``Qwen2VLImageProcessor`` prepares."""
    pixels = (config.vision_config.patch_size * config.vision_config.spatial_merge_size) ** 2
    limits = {"shortest_edge": QWEN_PIXELS[0], "longest_edge": QWEN_PIXELS[1]} | (processor.get("size") or {})
    fewest = -(-int(processor.get("min_pixels") or limits["shortest_edge"]) // pixels)
    return fewest, int(processor.get("max_pixels") or limits["longest_edge"]) // pixels


def describe_merged(
    model_type: Literal["qwen3_5", "lfm3_vl", "glm5_next"],
    config: Any,
    processor: Mapping[str, Any],
    budgets: Sequence[int],
    tokens: Callable[[Any, Mapping[str, Any]], tuple[int, int]] = tokens_of_pixels,
    *,
    side: int = 1,
) -> PictureDescription:
    """Return the description of pictures as films of one frame, whose squares of patches are merged.

    Args:
        model_type: of the description.
        config: of the whole model.
        processor: options of the checkpoint's processor.
        budgets: that the export asks for.
        tokens: returns the fewest and the most tokens of a picture.
        side: of the square of learned positions; 1 if there are none.
    """
    vision = config.vision_config
    check_channels(config, vision.in_channels)
    check_filter(processor, BICUBIC)
    sizes = (vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
    if sizes != tuple(processor[name] for name in ("patch_size", "merge_size", "temporal_patch_size")):
        raise ValueError("the processor's patches are not the model's")
    fewest, most = tokens(config, processor)
    most = min(most, MOST_IMAGE_TOKENS)
    chosen = tuple(budgets) or default_budgets(min(most, max(QWEN_BUDGET, fewest)))
    check_fewest(chosen, fewest)
    return PictureDescription(
        model_type=model_type,
        placeholder=config.image_token_id,
        patch_size=vision.patch_size,
        merge=vision.spatial_merge_size,
        position_side=side,
        budgets=chosen,
        min_tokens=fewest,
        max_tokens=min(most, chosen[-1]),
        tile_size=vision.patch_size * vision.spatial_merge_size,
        marks=False,
        **IN_ONE_PART,
    )


QWEN_BUDGET = 256
"""Tokens of the largest method by default, 512 x 512 pixels: the model takes many more, for more memory in each session."""
QWEN_PIXELS = (56 * 56, 28 * 28 * 1280)
QWEN_PROCESSOR: Mapping[str, Any] = {
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "resample": BICUBIC,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""Options of transformers' ``Qwen2VLImageProcessor`` that a file may leave out, with ``QWEN_PIXELS``."""

QWEN3_5 = VisionFamily(
    describe=_qwen3_5,
    encoder=MergingEncoder,
    inputs=merging_inputs,
    parts=("model.visual.blocks", "model.visual.merger"),
    rows=merging_positions,
    often_text=True,
    defaults=QWEN_PROCESSOR,
)
