"""Encode pictures: the encoders that hybridge exports, an entry of ``VISION`` for each multimodal model type.

An encoder reads patches of uint8 pixels and returns embeddings, one for each square of ``merge`` x ``merge`` patches.
Shapes are fixed: a picture with fewer patches is padded, and no patch attends to padding. The patches of a square follow
each other, row by row, and so do the squares of a picture, so that joining them needs no indices. What depends on the
size of a picture is computed outside of the graph: the weights by which learned positions are interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from hybridge.cache.block import Block
from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible
from hybridge.export.pinned.transformers import choose_attention
from hybridge.export.source.files import check_files, read_object
from hybridge.runtime.artifacts.options import ExportOptions, PictureDescription, check_pictures

ATTEND_TO_PATCHES = "hybridge_patches"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of a checkpoint that say how pictures are prepared, the first one's options first."""
SMALL_BUDGET = 64
"""Tokens of the smaller method by default: the fewest that LFM2-VL gives a picture."""


@dataclass(frozen=True, kw_only=True)
class VisionFamily:
    """A kind of multimodal model.

    describe: returns the description of a model's pictures, from its config, its processor's options and the budgets.
    encoder: makes the encoder of a whole model, for a kernel set and the processor's options.
    inputs: returns what transformers' own forward takes for pictures uint8 [height, width, 3] that are resized already.
    parts: names of the modules of the whole model that it uses, whose linear layers may be rounded.
    """

    describe: Callable[[Any, Mapping[str, Any], Sequence[int]], PictureDescription]
    encoder: Callable[[PreTrainedModel, Mapping[str, Any], Kernels], nn.Module]
    inputs: Callable[[Any, Mapping[str, Any], Sequence[Tensor]], dict[str, Tensor]]
    parts: tuple[str, ...]


def describe_pictures(config: Any, folder: Path, options: ExportOptions) -> PictureDescription | None:
    """Return the description of the pictures that an export of a checkpoint takes; None if it takes none.

    Args:
        config: of the whole model.
        folder: of the checkpoint, with the processor's options.
        options: say whether pictures are wanted, and their budgets.

    Raises:
        UsageError: budgets are given for a model without pictures, or are impossible.
        CheckpointError: the processor's options are missing or impossible.
        UnsupportedModelError: the config asks for an encoder that hybridge does not have.
    """
    family = VISION.get(config.model_type)
    if family is None or not options.images or options.format != "pte":
        if options.image_tokens:
            raise UsageError(
                "--image-tokens is for a .pte of a model whose encoder of pictures hybridge exports "
                f"({', '.join(VISION)}), and not for --no-images; leave it out."
            )
        return None
    processor = read_processor(folder)
    try:
        found = family.describe(config, processor, options.image_tokens)
        check_pictures(found, config.get_text_config().vocab_size)
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        if isinstance(error, UsageError):
            raise
        raise CheckpointError(
            f"{folder} describes pictures that no such model takes ({error}). Take the config.json and the "
            f"{PROCESSOR_FILES[0]} that came with the checkpoint, or export with --no-images."
        ) from None
    return found


def read_processor(folder: Path) -> dict[str, Any]:
    """Return the options of a checkpoint's picture processor, as transformers saves them. Raises CheckpointError."""
    present = [name for name in PROCESSOR_FILES if (folder / name).is_file()]
    if not present:
        raise CheckpointError(
            f"{folder} has no {PROCESSOR_FILES[0]}, which says how pictures are prepared; download it too, or export with "
            "--no-images."
        )
    check_files(folder, present)
    found: dict[str, Any] = {}
    for name in reversed(present):
        content = read_object(folder / name)
        nested = content.get("image_processor")
        found |= content | (nested if isinstance(nested, dict) else {})
    return found


# Attention among patches, by a kernel set


@dataclass(frozen=True)
class Patches:
    """The patches of a call, of which the first ones are a picture's and the rest padding."""

    kernels: Kernels
    block: Block
    visible: Visible

    @classmethod
    def of(cls, kernels: Kernels, count: Tensor, length: int) -> Patches:
        """Let each of ``length`` patches see the first ``count`` (int64 [1])."""
        held = torch.arange(length)
        mask = (held < count).expand(length, length)
        block = Block(start=torch.zeros(1, dtype=torch.long), count=count, length=length)
        return cls(kernels, block, Visible(held=held, mask=mask))


def attend_to_patches(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Patches, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attend for transformers: query, key and value [1, H, N, D] to [1, N, H, D]; attention_mask is a ``Patches``."""
    query, key, value = (x.transpose(1, 2).contiguous() for x in (query, key, value))
    patches = attention_mask
    return patches.kernels.attend(query, key, value, patches.block, Scoring(scale=scaling), patches.visible), None


AttentionInterface.register(ATTEND_TO_PATCHES, attend_to_patches)


# LFM2-VL and LFM2.5-VL: SigLIP 2 over patches in their own aspect ratio, pixel unshuffle, two linear layers


class NaflexEncoder(nn.Module):
    """The vision tower and the projector of an LFM2-VL model over padded patches.

    Source: transformers 5.23 ``Siglip2VisionModel`` and ``Lfm2VlMultiModalProjector``, whose modules it calls.
    """

    def __init__(self, whole: PreTrainedModel, processor: Mapping[str, Any], kernels: Kernels) -> None:
        super().__init__()
        tower, self.projector = whole.model.vision_tower, whole.model.multi_modal_projector
        self.embeddings, self.layers, self.post_layernorm = tower.embeddings, tower.encoder.layers, tower.post_layernorm
        self.square = whole.config.downsample_factor**2
        self.kernels = (kernels,)  # in a tuple, because a kernel set is no module
        choose_attention(tower.config, ATTEND_TO_PATCHES)
        scale, shift = _normalization(processor)
        pixels = tower.config.patch_size**2
        self.register_buffer("pixel_scale", torch.tensor(scale).repeat(pixels), persistent=False)
        self.register_buffer("pixel_shift", torch.tensor(shift).repeat(pixels), persistent=False)
        self.requires_grad_(False)

    pixel_scale: Tensor
    pixel_shift: Tensor

    def forward(self, pixels: Tensor, rows: Tensor, columns: Tensor, count: Tensor) -> Tensor:
        """Return embeddings float32 [1, N / merge², H] of a picture's patches.

        Args:
            pixels: uint8 [N, patch_size² · 3], by row, column and channel within a patch.
            rows: float32 [N, side], the weights of the learned rows of positions for each patch.
            columns: float32 [N, side], likewise of the columns.
            count: int64 [1], patches that are a picture's; the embeddings of others mean nothing.
        """
        length = pixels.shape[0]
        patches = self.embeddings.patch_embedding(pixels.float() * self.pixel_scale + self.pixel_shift)
        table = self.embeddings.position_embedding.weight
        weights = (rows[:, :, None] * columns[:, None, :]).reshape(length, -1)
        hidden = (patches + torch.mm(weights, table))[None]
        seen = Patches.of(self.kernels[0], count, length)
        for layer in self.layers:
            hidden = layer(hidden, seen)
        squares = self.post_layernorm(hidden).reshape(1, length // self.square, -1)
        projector = self.projector
        if projector.use_layer_norm:
            squares = projector.layer_norm(squares)
        embedded: Tensor = projector.linear_2(projector.act(projector.linear_1(squares)))
        return embedded


def naflex_inputs(config: Any, processor: Mapping[str, Any], pictures: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return ``pixel_values``, ``pixel_attention_mask`` and ``spatial_shapes`` as transformers' processor has them."""
    if not pictures:
        return {}
    patch, (scale, shift) = config.vision_config.patch_size, _normalization(processor)
    shapes = [(each.shape[0] // patch, each.shape[1] // patch) for each in pictures]
    longest = max(rows * columns for rows, columns in shapes)
    values, mask = torch.zeros(len(shapes), longest, 3 * patch**2), torch.zeros(len(shapes), longest, dtype=torch.int32)
    for i, (picture, (rows, columns)) in enumerate(zip(pictures, shapes, strict=True)):
        normalized = picture.float() * torch.tensor(scale) + torch.tensor(shift)
        cut = normalized.reshape(rows, patch, columns, patch, 3).transpose(1, 2)
        values[i, : rows * columns] = cut.reshape(rows * columns, -1)
        mask[i, : rows * columns] = 1
    return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor(shapes)}


def _normalization(processor: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return by channel the scale and the shift that make normalized values of uint8 pixels."""
    rescale = float(processor.get("rescale_factor", 1 / 255)) if processor.get("do_rescale", True) else 1.0
    if not processor.get("do_normalize", True):
        return [rescale] * 3, [0.0] * 3
    mean, std = (_channels(processor.get(name, 0.5), name) for name in ("image_mean", "image_std"))
    return [rescale / each for each in std], [-center / each for center, each in zip(mean, std, strict=True)]


def _channels(values: Any, name: str) -> list[float]:
    found = [float(each) for each in values] if isinstance(values, list | tuple) else [float(values)] * 3
    if len(found) != 3 or (name == "image_std" and min(found) <= 0):
        raise ValueError(f"{name} is {values!r}, not three numbers for red, green and blue")
    return found


def _lfm2_vl(config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    vision, defaults = config.vision_config, _LFM2_VL
    if vision.model_type != "siglip2_vision_model" or vision.num_channels != 3:
        raise UnsupportedModelError(
            f"this {config.model_type!r} model encodes pictures by {vision.model_type!r}, and hybridge exports "
            "'siglip2_vision_model' of three channels only; export its text with --no-images."
        )
    said = {name: processor.get(name, default) for name, default in defaults.items()}
    if said["resample"] != BILINEAR:
        raise UnsupportedModelError(
            f"this model's pictures are resized by the filter {said['resample']}, and hybridge resizes LFM2-VL's bilinearly "
            "(2); export its text with --no-images."
        )
    split = bool(said["do_image_splitting"])
    side = round(vision.num_patches**0.5)
    if side**2 != vision.num_patches or (said["encoder_patch_size"], said["downsample_factor"]) != (
        vision.patch_size,
        config.downsample_factor,
    ):
        raise ValueError("the processor's patches are not the model's, or its positions are no square")
    most = int(said["max_image_tokens"])
    described = PictureDescription(
        model_type="lfm2_vl",
        placeholder=config.image_token_id,
        patch_size=vision.patch_size,
        merge=config.downsample_factor,
        position_side=side,
        budgets=tuple(budgets),
        min_tokens=int(said["min_image_tokens"]),
        max_tokens=most,
        tile_size=int(said["tile_size"]),
        min_tiles=int(said["min_tiles"]) if split else 1,
        max_tiles=int(said["max_tiles"]) if split else 1,
        tolerance=float(said["max_pixels_tolerance"]),
        thumbnail=bool(said["use_thumbnail"]),
        marks=bool(said["use_image_special_tokens"]),
    )
    tile = (described.tile_size // described.unit) ** 2 if described.max_tiles > 1 else 0
    largest = max(most, tile)
    if not budgets:
        return replace(described, budgets=tuple(sorted({min(SMALL_BUDGET, largest), largest})))
    if budgets[-1] < largest:
        raise UsageError(
            f"--image-tokens {','.join(map(str, budgets))}: this model was trained with pictures of up to {largest} tokens, "
            f"so the last number must be {largest} or more."
        )
    return described


BILINEAR = 2
"""Pillow's number of the filter, as processors save it."""
_LFM2_VL: Mapping[str, Any] = {
    "downsample_factor": 2,
    "do_image_splitting": True,
    "min_tiles": 2,
    "max_tiles": 10,
    "use_thumbnail": True,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "encoder_patch_size": 16,
    "tile_size": 512,
    "max_pixels_tolerance": 2.0,
    "resample": BILINEAR,
    "use_image_special_tokens": True,
}
"""Options of transformers' ``Lfm2VlImageProcessor`` that a file may leave out."""

VISION: Mapping[str, VisionFamily] = {
    "lfm2_vl": VisionFamily(
        describe=_lfm2_vl,
        encoder=NaflexEncoder,
        inputs=naflex_inputs,
        parts=("model.vision_tower.encoder", "model.multi_modal_projector"),
    ),
}
"""For each ``model_type`` of a whole config, how its pictures are encoded."""
