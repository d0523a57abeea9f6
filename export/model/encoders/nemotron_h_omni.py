"""Encode pictures for Nemotron-H Omni: a vision transformer (RADIO) over registers and patches, whose squares are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hybridge.cache.operations.kernels import Kernels
from hybridge.export.model.encoders.encoder import (
    ATTEND_TO_PATCHES,
    BICUBIC,
    IN_ONE_PART,
    PatchEncoder,
    VisionFamily,
    check_channels,
    check_fewest,
    check_filter,
    normalization,
    patch_embedding,
)
from hybridge.export.pinned.transformers import choose_attention
from hybridge.runtime.artifact.pictures import MOST_IMAGE_TOKENS, PictureDescription

STEP, DARKEST = 25 / 16, -255 * 9 / 32
"""A uint8 value x of a prepared picture means x * STEP + DARKEST: bicubic interpolation of 0 to 255 overshoots that range by
9/32 of it at most. Source: ``Unclamped`` in runtime/native/engine/resample.h."""


class RadioEncoder(PatchEncoder):
    """The vision tower and the projector of a Nemotron-H Omni model over padded patches.

    Source: transformers 5.23 ``RadioModel`` and ``NemotronH_Omni_Reasoning_V3MultiModalProjector``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        scale, shift = normalization(processor)
        shift = [each * DARKEST + other for each, other in zip(scale, shift, strict=True)]
        super().__init__(kernels, description.patch_size, [each * STEP for each in scale], shift)
        tower, self.projector = whole.vision_model, whole.multi_modal_projector
        self.layers, self.final_norm = tower.encoder.layer, whole.vision_final_layernorm
        self.square, self.side = description.merge**2, tower.embeddings.max_rows
        choose_attention(tower.config, ATTEND_TO_PATCHES)
        embeddings = tower.embeddings
        self.patch_embedding = patch_embedding(embeddings.patch_projection.weight, None, _channels_last)
        self.positions = nn.Parameter(embeddings.position_embedding[0].clone())
        self.registers = nn.Parameter(embeddings.cls_register_token.clone())
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        length, first = pixels.shape[0], self.registers.shape[0]
        patches = self.patch_embedding(self.normalized(pixels)) + self._interpolated(places)
        hidden = torch.cat([self.registers, patches])[None]
        seen = self.seen(count + first, length + first)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        hidden = hidden[:, first:]
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        embedded: Tensor = self.projector(hidden.reshape(1, length // self.square, -1))
        return embedded

    def _interpolated(self, places: Tensor) -> Tensor:
        """Return the learned positions float32 [N, hidden] at places [N, 2].

        They are interpolated bilinearly to a square with the picture's longer side, of which it is a corner.
        Source: ``RadioPatchEmbeddings._interpolate_position_embedding``.
        """
        longest = places.amax() + 1
        at = ((places + 0.5) * (self.side / longest) - 0.5).clamp(min=0)
        low = at.long()
        share, high = at - low, (low + 1).clamp(max=self.side - 1)
        found = torch.zeros(())
        for row, down in ((low[:, 0], 1 - share[:, 0]), (high[:, 0], share[:, 0])):
            for column, across in ((low[:, 1], 1 - share[:, 1]), (high[:, 1], share[:, 1])):
                found = found + F.embedding(row * self.side + column, self.positions) * (down * across)[:, None]
        return found


def _channels_last(projection: Tensor) -> Tensor:
    """Return the columns [hidden, pixel * channel] of [hidden, channel * pixel]."""
    columns: Tensor = projection.unflatten(1, (3, -1)).transpose(1, 2).flatten(1)
    return columns


def radio_inputs(config: Any, processor: Mapping[str, Any], pictures: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return ``pixel_values`` and ``image_grid_hw`` as transformers' processor has them."""
    if not pictures:
        return {}
    patch, (scale, shift) = config.vision_config.patch_size, normalization(processor)
    values, grids = [], []
    for picture in pictures:
        rows, columns = (side // patch for side in picture.shape[:2])
        normalized = (picture.float() * STEP + DARKEST) * torch.tensor(scale) + torch.tensor(shift)
        cut = normalized.reshape(rows, patch, columns, patch, 3).permute(0, 2, 4, 1, 3)
        values.append(cut.reshape(rows * columns, -1))
        grids.append([rows, columns])
    return {"pixel_values": torch.cat(values), "image_grid_hw": torch.tensor(grids)}


def _nemotron_h_omni(config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    vision = config.vision_config
    check_channels(config, vision.num_channels)
    check_filter(processor, BICUBIC)
    merge = round(1 / config.downsample_ratio)
    if (vision.patch_size, merge) != (processor["patch_size"], round(1 / processor["downsample_ratio"])):
        raise ValueError("the processor's patches are not the model's")
    normalization(processor)  # raises ValueError
    fewest, most = (int(processor[name]) // merge**2 for name in ("min_num_patches", "max_num_patches"))
    context = max(int(processor["max_model_len"]) - 4, fewest)
    most = min(most or context, context, MOST_IMAGE_TOKENS)
    chosen = tuple(budgets) or tuple(sorted({fewest, min(2 * fewest, most)}))
    check_fewest(chosen, fewest)
    return PictureDescription(
        model_type="nemotron_h_omni",
        placeholder=config.image_token_id,
        patch_size=vision.patch_size,
        merge=merge,
        position_side=chosen[-1] * merge,
        budgets=chosen,
        min_tokens=fewest,
        max_tokens=min(most, chosen[-1]),
        tile_size=vision.patch_size * merge,
        marks=True,
        **IN_ONE_PART,
    )


_RADIO: Mapping[str, Any] = {
    "patch_size": 16,
    "downsample_ratio": 0.5,
    "min_num_patches": 1024,
    "max_num_patches": 13312,
    "max_model_len": 16384,
    "resample": BICUBIC,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""Options of transformers' ``NemotronH_Omni_Reasoning_V3ImageProcessor`` that a file may leave out."""

NEMOTRON_H_OMNI = VisionFamily(
    describe=_nemotron_h_omni,
    encoder=RadioEncoder,
    inputs=radio_inputs,
    parts=("vision_model.encoder", "multi_modal_projector"),
    often_text=True,
    defaults=_RADIO,
    older={"image_mean": "norm_mean", "image_std": "norm_std"},
)
