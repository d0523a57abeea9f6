"""Encode pictures for LFM3-VL: gated convolutions over the grid of patches and attention with rope by row and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.operations.kernels import Kernels, Scoring
from hybridge.errors import UnsupportedModelError
from hybridge.export.model.encoders.encoder import PatchEncoder, Patches, VisionFamily, normalization, patch_embedding
from hybridge.export.model.encoders.qwen3_5 import QWEN_PROCESSOR, describe_merged, merging_inputs, one_frame
from hybridge.export.operators.elementwise import rotate_half
from hybridge.runtime.artifact.pictures import PictureDescription


class ConvolvingEncoder(PatchEncoder):
    """The vision tower and the projector of an LFM3-VL model over padded patches.

    Source: transformers 5.23 ``Lfm3VlVisionModel`` and ``Lfm3VlMultiModalProjector``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        super().__init__(kernels, description.patch_size, *normalization(processor))
        tower, self.projector = whole.model.vision_tower, whole.model.multi_modal_projector
        self.norm, self.layers, self.rotary = tower.embedding_norm, tower.layers, tower.rotary_pos_emb
        self.merge, self.kernel_size = tower.spatial_merge_size, tower.config.conv_kernel_size
        vision = tower.config
        film = (vision.in_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size)
        self.patch_embedding = patch_embedding(tower.patch_embed.weight, None, lambda each: one_frame(each.unflatten(1, film)))
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, rows: Tensor, columns: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        hidden = self.norm(self.patch_embedding(self.normalized(pixels)[None]))
        cos, sin = (each[None, :, None] for each in self.rotary(hidden, places))
        seen = self.seen(count, pixels.shape[0])
        around = neighbours(places, self.merge, self.kernel_size)
        for layer in self.layers:
            normed = layer.operator_norm(hidden)
            if layer.is_attention_layer:
                hidden = hidden + attend(layer.self_attn, normed, cos, sin, seen)
            else:
                hidden = hidden + convolve(layer.conv, normed, around)
            hidden = hidden + layer.feed_forward(layer.ffn_norm(hidden))
        projector = self.projector
        squares = projector.layer_norm(hidden).reshape(1, pixels.shape[0] // self.merge**2, -1)
        embedded: Tensor = projector.linear_2(projector.act(projector.linear_1(squares)))
        return embedded


def attend(attention: Any, hidden: Tensor, cos: Tensor, sin: Tensor, seen: Patches) -> Tensor:
    """Return float32 [1, N, hidden] of ``Lfm3VlVisionAttention``. cos, sin: [1, N, 1, head_dim]."""
    query, key, value = (
        layer(hidden).unflatten(-1, (-1, attention.head_dim))
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = attention.q_norm(query), attention.k_norm(key)
    query, key = (each * cos + rotate_half(each) * sin for each in (query, key))
    mixed = seen.kernels.attend(query, key, value, seen.block, Scoring(scale=attention.scaling), seen.visible)
    attended: Tensor = attention.out_proj(mixed.flatten(2))
    return attended


def convolve(conv: Any, hidden: Tensor, around: Sequence[Tensor]) -> Tensor:
    """Return float32 [1, N, hidden] of ``Lfm3VlVisionShortConv``. around: by ``neighbours``."""
    before, after, inner = conv.in_proj(hidden).chunk(3, -1)
    gated = torch.cat([(before * inner)[0], torch.zeros(1, inner.shape[-1])])
    taps = conv.spatial_conv.weight.flatten(1).t()  # [kernel_size², hidden]
    summed = sum((gated.index_select(0, each) * tap for each, tap in zip(around, taps, strict=True)), torch.zeros(()))
    mixed: Tensor = conv.out_proj(after * summed)
    return mixed


def neighbours(places: Tensor, merge: int, kernel_size: int) -> list[Tensor]:
    """Return for each place of a kernel the patch that it covers, int64 [N]; N where it lies outside of the picture.

    Args:
        places: float32 [N, 2], row and column of each patch, square by square of ``merge`` x ``merge`` patches.
        merge: patches along a side of a square.
        kernel_size: places along a side of the kernel, whose middle lies on the patch itself; an odd number.
    """
    grid = places.long()
    sizes = grid.amax(0, keepdim=True) + 1
    found, reach = list[Tensor](), kernel_size // 2
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            near = grid + torch.tensor([[row, column]])
            square, within = near // merge, near % merge
            number = square[:, 0] * (sizes[:, 1] // merge) + square[:, 1]
            index = (number * merge + within[:, 0]) * merge + within[:, 1]
            inside = ((near >= 0) & (near < sizes)).all(-1)
            found.append(torch.where(inside, index, len(places)))
    return found


def _lfm3_vl(config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    if config.vision_config.conv_kernel_size % 2 == 0:
        raise UnsupportedModelError(
            f"this model's convolutions over patches have a kernel of {config.vision_config.conv_kernel_size}, and hybridge "
            "exports odd ones; export its text with --no-images."
        )
    return describe_merged("lfm3_vl", config, processor, budgets)


LFM3_VL = VisionFamily(
    describe=_lfm3_vl,
    encoder=ConvolvingEncoder,
    inputs=merging_inputs,
    parts=("model.vision_tower.layers", "model.multi_modal_projector"),
    defaults=QWEN_PROCESSOR,
)
