"""Encode pictures for GLM5-Next: a vision transformer with rope by row and column alone, which joins squares of patches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.operations.kernels import Kernels
from hybridge.export.model.encoders.encoder import PatchEncoder, VisionFamily, normalization, patch_embedding, pixels_last
from hybridge.export.model.encoders.qwen3_5 import QWEN_PROCESSOR, attend, describe_merged, merging_inputs, one_frame
from hybridge.runtime.artifact.pictures import PictureDescription


class JoiningEncoder(PatchEncoder):
    """The vision tower of a GLM5-Next model over padded patches.

    Source: transformers 5.23 ``Glm5NextVisionModel``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        super().__init__(kernels, description.patch_size, *normalization(processor))
        tower = whole.model.visual
        self.blocks, self.norm, self.merger = tower.blocks, tower.post_layernorm, tower.merger
        self.rotary = tower.rotary_pos_emb
        self.patch_embedding = patch_embedding(tower.patch_embed.proj.weight, tower.patch_embed.proj.bias, one_frame)
        # A convolution whose steps are as long as its kernel, over patches that follow each other square by square.
        self.join = patch_embedding(tower.downsample.weight, tower.downsample.bias, pixels_last)
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, rows: Tensor, columns: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        hidden = self.patch_embedding(self.normalized(pixels)[None])
        cos, sin = (each[None, :, None] for each in self.rotary(hidden, places))
        seen = self.seen(count, pixels.shape[0])
        for block in self.blocks:
            hidden = hidden + attend(block.attn, block.norm1(hidden), cos, sin, seen)
            hidden = hidden + block.mlp(block.norm2(hidden))
        squares = self.norm(hidden).reshape(1, -1, self.join.in_features)
        embedded: Tensor = self.merger(self.join(squares))
        return embedded


def _tokens(config: Any, processor: Mapping[str, Any]) -> tuple[int, int]:
    return int(processor["min_image_tokens"]), int(processor["max_image_tokens"])


_GLM: Mapping[str, Any] = {**QWEN_PROCESSOR, "min_image_tokens": 16, "max_image_tokens": 8000}
"""Options of transformers' ``Glm5NextImageProcessor`` that a file may leave out."""

GLM5_NEXT = VisionFamily(
    describe=partial(describe_merged, "glm5_next", tokens=_tokens),
    encoder=JoiningEncoder,
    inputs=merging_inputs,
    parts=("model.visual.blocks", "model.visual.merger"),
    often_text=True,
    defaults=_GLM,
)
