"""Encode pictures for Gemma 3: SigLIP over squares of one size, whose patches are averaged by squares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import UnsupportedModelError
from hybridge.export.model.encoders.encoder import (
    ATTEND_TO_PATCHES,
    BILINEAR,
    IN_ONE_PART,
    PatchEncoder,
    VisionFamily,
    check_filter,
    check_tower,
    normalization,
    patch_embedding,
    pixels_last,
    refused,
)
from hybridge.export.pinned.transformers import block_masks, choose_attention
from hybridge.runtime.artifact.pictures import PictureDescription


class SquareEncoder(PatchEncoder):
    """The vision tower and the projector of a Gemma 3 model, whose pictures all have as many patches.

    Source: transformers 5.23 ``SiglipVisionModel`` and ``Gemma3MultiModalProjector``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        super().__init__(kernels, description.patch_size, *normalization(processor))
        tower, projector = whole.model.vision_tower, whole.model.multi_modal_projector
        self.layers, self.post_layernorm, self.norm = tower.encoder.layers, tower.post_layernorm, projector.mm_soft_emb_norm
        self.square, self.side = description.merge**2, description.position_side
        choose_attention(tower.config, ATTEND_TO_PATCHES)
        convolution = tower.embeddings.patch_embedding
        self.patch_embedding = patch_embedding(convolution.weight, convolution.bias, pixels_last)
        self.positions, self.projection = tower.embeddings.position_embedding.weight, projector.mm_input_projection_weight
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        length, at = pixels.shape[0], places.long()
        hidden = self.patch_embedding(self.normalized(pixels)) + F.embedding(at[:, 0] * self.side + at[:, 1], self.positions)
        hidden, seen = hidden[None], self.seen(count, length)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        squares = self.post_layernorm(hidden).reshape(1, length // self.square, self.square, -1).mean(2)
        embedded: Tensor = self.norm(squares) @ self.projection
        return embedded


def square_inputs(config: Any, processor: Mapping[str, Any], pictures: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return ``pixel_values`` as transformers' processor has them."""
    if not pictures:
        return {}
    scale, shift = (torch.tensor(each) for each in normalization(processor))
    return {"pixel_values": torch.stack([(each.float() * scale + shift).permute(2, 0, 1) for each in pictures])}


def square_rows(whole: PreTrainedModel, text: Sequence[int], inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return transformers' own masks, in which the rows of a picture see each other.

    transformers takes neighbouring rows for one picture, so the masks are made here, where pictures are separate.
    """
    if not inputs:
        return {}
    counts = [whole.config.mm_tokens_per_image] * len(inputs["pixel_values"])
    return {"attention_mask": block_masks(whole.config.get_text_config(), torch.tensor([text]), counts)}


def _gemma3(config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    vision, tokens = config.vision_config, config.mm_tokens_per_image
    check_tower(config, "siglip_vision_model")
    check_filter(processor, BILINEAR)
    if processor["do_pan_and_scan"]:
        raise UnsupportedModelError(
            "crops follow this model's pictures (do_pan_and_scan), and hybridge makes none; take that out of the processor's "
            "options, or export its text with --no-images."
        )
    size, across, side = vision.image_size, vision.image_size // vision.patch_size, math.isqrt(tokens)
    if (processor["size"]["height"], processor["size"]["width"]) != (size, size) or size % vision.patch_size:
        raise ValueError("the processor's pictures are not of the model's size")
    if side**2 != tokens or across % side:
        raise ValueError(f"{tokens} tokens are no square of {across} x {across} patches")
    normalization(processor)  # raises ValueError
    if tuple(budgets) not in ((), (tokens,)):
        raise refused(budgets, f"each picture of this model takes {tokens} tokens; leave it out.")
    return PictureDescription(
        model_type="gemma3",
        placeholder=config.boi_token_index,
        patch_size=vision.patch_size,
        merge=across // side,
        position_side=across,
        budgets=(tokens,),
        min_tokens=tokens,
        max_tokens=tokens,
        tile_size=size,
        marks=True,
        bidirectional=True,
        **IN_ONE_PART,
    )


_GEMMA: Mapping[str, Any] = {"size": {"height": 224, "width": 224}, "resample": BILINEAR, "do_pan_and_scan": False}
"""Options of transformers' ``Gemma3ImageProcessor`` that a file may leave out."""

GEMMA3 = VisionFamily(
    describe=_gemma3,
    encoder=SquareEncoder,
    inputs=square_inputs,
    parts=("model.vision_tower.encoder",),
    rows=square_rows,
    often_text=True,
    defaults=_GEMMA,
)
