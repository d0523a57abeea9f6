"""Define a family of encoders of pictures, and how patches attend to each other.

An encoder reads patches of uint8 pixels and returns embeddings, one for each square of ``merge`` x ``merge`` patches.
Shapes are fixed: a picture with fewer patches is padded, and no patch attends to padding. The patches of a square follow
each other, row by row, and so do the squares of a picture, so that joining them needs no indices. What depends on the
size of a picture is computed outside of the graph: the weights by which learned positions are interpolated, and the rows
and columns of patches for rope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import Kernels, Scoring, Visible
from hybridge.errors import UnsupportedModelError, UsageError
from hybridge.export.weights import computed
from hybridge.runtime.artifact.pictures import PictureDescription

ATTEND_TO_PATCHES = "hybridge_patches"
BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers of filters, as processors save them."""
FILTER_NAMES = {BILINEAR: "bilinear", BICUBIC: "bicubic"}
IN_ONE_PART: Mapping[str, Any] = {"min_tiles": 1, "max_tiles": 1, "tolerance": 1.0, "thumbnail": False}
"""Fields of the description of pictures that are never cut into tiles."""
SQUARES = (64, 144, 196, 256)
"""Tokens of each method by default: of squares of 256, 384, 448 and 512 pixels where a token is 32 x 32."""


@dataclass(frozen=True, kw_only=True)
class VisionFamily:
    """A kind of multimodal model.

    Args:
        describe: returns the description of a model's pictures, from its config, its processor's options and the budgets.
        encoder: makes the encoder of a whole model, for the processor's options, the description and a kernel set.
        inputs: returns what transformers' own forward takes for pictures uint8 [height, width, 3] that are resized already.
        parts: names of the modules of the whole model that it uses, whose linear layers may be rounded.
        rows: returns what transformers' own forward takes besides the embeddings of a text, of the whole model, the text and
            ``inputs``; None if it is nothing.
        often_text: many checkpoints come without their processor's options, and are for text; the others are damaged then.
        defaults: options of transformers' processor that a file may leave out; ``older`` has the names of some in older files.
    """

    describe: Callable[[Any, Mapping[str, Any], Sequence[int]], PictureDescription]
    encoder: Callable[[PreTrainedModel, Mapping[str, Any], PictureDescription, Kernels], nn.Module]
    inputs: Callable[[Any, Mapping[str, Any], Sequence[Tensor]], dict[str, Tensor]]
    parts: tuple[str, ...]
    rows: Callable[[PreTrainedModel, Sequence[int], Mapping[str, Tensor]], Mapping[str, Any]] | None = None
    often_text: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)


def default_budgets(largest: int) -> tuple[int, ...]:
    """Return the tokens of each method of an encoder whose pictures take up to ``largest``.

    A method more costs about 60 kB of a file and no memory, and a picture in one that fits it has less padding.
    """
    return (*(tokens for tokens in SQUARES if tokens < largest), largest)


def check_tower(config: Any, wanted: str) -> None:
    """Raise UnsupportedModelError unless a model encodes pictures of three channels by the vision tower ``wanted``."""
    vision = config.vision_config
    if vision.model_type != wanted or vision.num_channels != 3:
        raise UnsupportedModelError(
            f"this {config.model_type!r} model encodes pictures by {vision.model_type!r}, and hybridge exports "
            f"{wanted!r} of three channels only; export its text with --no-images."
        )


def check_channels(config: Any, channels: int) -> None:
    """Raise UnsupportedModelError unless a model's pictures have three channels."""
    if channels != 3:
        raise UnsupportedModelError(
            f"this {config.model_type!r} model encodes pictures of {channels} channels, and hybridge those of three; "
            "export its text with --no-images."
        )


def check_filter(processor: Mapping[str, Any], wanted: int) -> None:
    """Raise UnsupportedModelError unless pictures are resized by the filter ``wanted``."""
    chosen = processor["resample"] if processor.get("do_resize", True) else None
    if chosen != wanted:
        raise UnsupportedModelError(
            f"this model's pictures are resized by the filter {chosen}, and hybridge resizes them by "
            f"{FILTER_NAMES[wanted]} interpolation ({wanted}); export its text with --no-images."
        )


def refused(budgets: Sequence[int], why: str) -> UsageError:
    """Return the error of budgets that a model's pictures do not go with."""
    return UsageError(f"--image-tokens {','.join(map(str, budgets))}: {why}")


def check_fewest(budgets: Sequence[int], fewest: int) -> None:
    """Raise UsageError if no method takes the smallest pictures that a model takes."""
    if budgets[-1] < fewest:
        why = f"this model takes no pictures of fewer than {fewest} tokens, so the last number must be {fewest} or more."
        raise refused(budgets, why)


# Attention among patches, by a kernel set


@dataclass(frozen=True)
class Patches:
    """The patches of a call, of which the first ones are a picture's and the rest padding."""

    kernels: Kernels
    block: Block
    visible: Visible

    @classmethod
    def of(cls, kernels: Kernels, count: Tensor, length: int) -> Patches:
        """Let the first ``count`` (int64 [1]) of ``length`` patches see each other; padding sees one: the least work."""
        held = torch.arange(length)
        mask = held < torch.where(held < count, count, 1)[:, None]
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


class PatchEncoder(nn.Module):
    """Base of the encoders. A forward returns embeddings float32 [1, N / merge², H] of a picture's patches.

    It takes those of these that its model reads, in this order:

    Args:
        pixels: uint8 [N, patch_size² · 3], by row, column and channel within a patch.
        rows: float32 [N, side], the weights of the learned rows of positions for each patch; [N, 1] if there are none.
        columns: float32 [N, side], likewise of the columns.
        places: float32 [N, 2], row and column of each patch; zeros where there is none.
        count: int64 [1], patches that are a picture's; the embeddings of others mean nothing.
    """

    pixel_scale: Tensor
    pixel_shift: Tensor

    def __init__(self, kernels: Kernels, patch_size: int, scale: Sequence[float], shift: Sequence[float]) -> None:
        """Keep what makes the values of uint8 pixels that the model was trained with: ``scale`` and ``shift`` by channel."""
        super().__init__()
        self.kernels = (kernels,)  # in a tuple, because a kernel set is no module
        for name, values in (("pixel_scale", scale), ("pixel_shift", shift)):
            self.register_buffer(name, torch.tensor(values).repeat(patch_size**2), persistent=False)

    def normalized(self, pixels: Tensor) -> Tensor:
        """Return the values float32 [N, patch_size² · 3] of uint8 pixels."""
        return pixels.float() * self.pixel_scale + self.pixel_shift

    def seen(self, count: Tensor, length: int) -> Patches:
        """Return which of ``length`` patches see each other."""
        return Patches.of(self.kernels[0], count, length)


# The pixels of a patch


def normalization(processor: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return by channel the scale and the shift that make normalized values of uint8 pixels."""
    rescale = float(processor.get("rescale_factor", 1 / 255)) if processor.get("do_rescale", True) else 1.0
    if not processor.get("do_normalize", True):
        return [rescale] * 3, [0.0] * 3
    mean, std = (_channels(processor.get(name, 0.5), name) for name in ("image_mean", "image_std"))
    return [rescale / each for each in std], [-center / each for center, each in zip(mean, std, strict=True)]


def normalized_patches(picture: Tensor, patch_size: int, processor: Mapping[str, Any]) -> Tensor:
    """Return a picture uint8 [height, width, 3] as normalized patches float32 [N, patch_size² · 3], row by row."""
    scale, shift = normalization(processor)
    rows, columns = (side // patch_size for side in picture.shape[:2])
    normalized = picture.float() * torch.tensor(scale) + torch.tensor(shift)
    return normalized.reshape(rows, patch_size, columns, patch_size, 3).transpose(1, 2).reshape(rows * columns, -1)


def patch_embedding(weight: Tensor, bias: nn.Parameter | None, by_pixel: Callable[[Tensor], Tensor]) -> nn.Linear:
    """Return the embedding of normalized patches.

    Args:
        weight: as the model has it.
        bias: float32 [hidden].
        by_pixel: makes float32 [hidden, patch_size² · 3] of the weight, whose columns are by row, column and channel.
    """
    matrix = computed(weight, by_pixel)
    embedding = nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None)
    embedding.weight = matrix
    if bias is not None:
        embedding.bias = bias
    return embedding


def pixels_last(convolution: Tensor) -> Tensor:
    """Return the matrix [hidden, row * column * channel] of a convolution [hidden, channel, row, column]."""
    return convolution.permute(0, 2, 3, 1).flatten(1)


def _channels(values: Any, name: str) -> list[float]:
    found = [float(each) for each in values] if isinstance(values, list | tuple) else [float(values)] * 3
    if len(found) != 3 or (name == "image_std" and min(found) <= 0):
        raise ValueError(f"{name} is {values!r}, not three numbers for red, green and blue")
    return found
