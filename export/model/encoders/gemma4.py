"""Encode pictures for Gemma 4: a vision transformer with positions by row and column, whose patches are averaged by squares.

Gemma 4 12B has no such transformer: its patches are as large as these squares, and each becomes a row of the text by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
    check_filter,
    normalization,
    normalized_patches,
    refused,
)
from hybridge.export.pinned.transformers import block_masks, choose_attention
from hybridge.export.weights import computed, constant
from hybridge.runtime.artifact.pictures import PictureDescription


class PoolingEncoder(PatchEncoder):
    """The vision tower and the projector of a Gemma 4 model over padded patches.

    Of the learned positions it has those that a picture of the largest budget can have.
    Source: transformers 5.23 ``Gemma4VisionModel`` and ``Gemma4MultimodalEmbedder``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        scale, shift = normalization(processor)
        # Its own pixels are 2 x - 1 of normalized ones.
        super().__init__(kernels, description.patch_size, [2 * each for each in scale], [2 * each - 1 for each in shift])
        tower, self.projector = whole.model.vision_tower, whole.model.embed_vision
        self.layers, self.rotary = tower.encoder.layers, tower.encoder.rotary_emb
        self.square, self.scale = description.merge**2, tower.pooler.root_hidden_size
        choose_attention(tower.config, ATTEND_TO_PATCHES)
        for name, module in [*self.layers.named_modules()]:
            if getattr(module, "use_clipped_linears", False):
                self.layers.set_submodule(name, ClippedLinear(module))
        self.patch_embedding = tower.patch_embedder.input_proj
        table = tower.patch_embedder.position_embedding_table
        side = description.position_side
        self.by_column, self.by_row = (computed(table, partial(_positions, axis, side)) for axis in range(2))
        standardized = tower.config.standardize
        self.bias = constant(tower.std_bias) if standardized else None
        self.factor = constant(tower.std_scale) if standardized else None
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        length = pixels.shape[0]
        row, column = (places[:, i].long() for i in range(2))
        positions = F.embedding(column, self.by_column) + F.embedding(row, self.by_row)
        hidden = (self.patch_embedding(self.normalized(pixels)) + positions)[None]
        by_axis = torch.stack([column, row], dim=-1)[None]
        rope, seen = self.rotary(hidden, by_axis), self.seen(count, length)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rope, attention_mask=seen, position_ids=by_axis)
        squares = hidden.reshape(1, length // self.square, self.square, -1).mean(2) * self.scale
        if self.bias is not None and self.factor is not None:
            squares = (squares - self.bias) * self.factor
        embedded: Tensor = self.projector(squares)
        return embedded


def _positions(axis: int, side: int, table: Tensor) -> Tensor:
    """Return the first positions [side, hidden] along an axis of a table [2, positions, hidden]."""
    return table[axis, :side]


class ProjectingEncoder(PatchEncoder):
    """The projection of a Gemma 4 12B model, whose patches do not see each other before the text model.

    Source: transformers 5.23 ``Gemma4UnifiedVisionEmbedder``, whose modules it calls.
    """

    def __init__(
        self, whole: PreTrainedModel, processor: Mapping[str, Any], description: PictureDescription, kernels: Kernels
    ) -> None:
        super().__init__(kernels, description.patch_size, *normalization(processor))
        self.embedder = whole.model.embed_vision
        table = self.embedder.pos_embedding[: description.position_side]
        self.by_column, self.by_row = (nn.Parameter(each.clone()) for each in table.unbind(1))
        self.requires_grad_(False)

    def forward(self, pixels: Tensor, places: Tensor, count: Tensor) -> Tensor:
        """Return the embeddings of a picture's patches; see ``PatchEncoder``."""
        embedder = self.embedder
        row, column = (places[:, i].long() for i in range(2))
        patches = embedder.patch_ln1(self.normalized(pixels))
        hidden = embedder.patch_ln2(embedder.patch_dense(patches))
        hidden = hidden + F.embedding(column, self.by_column) + F.embedding(row, self.by_row)
        embedded: Tensor = embedder.multimodal_embedder(embedder.pos_norm(hidden))[None]
        return embedded


class ClippedLinear(nn.Module):
    """``Gemma4ClippableLinear`` with its limits as numbers, which runtimes clamp by, and without those that are infinite."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.linear = original.linear
        self.taken = _limits(original.input_min, original.input_max)
        self.given = _limits(original.output_min, original.output_max)

    def forward(self, x: Tensor) -> Tensor:
        return _clipped(self.linear(_clipped(x, self.taken)), self.given)


def _limits(lowest: Tensor, highest: Tensor) -> tuple[float | None, float | None]:
    low, high = (float(each) if bool(each.isfinite()) else None for each in (lowest, highest))
    return low, high


def _clipped(x: Tensor, limits: tuple[float | None, float | None]) -> Tensor:
    return x if limits == (None, None) else x.clamp(*limits)


def _inputs(size: str, config: Any, processor: Mapping[str, Any], pictures: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return ``pixel_values`` and ``image_position_ids`` as transformers' processor has them. size: the config's patch size."""
    patch = getattr(config.vision_config, size)
    if not pictures:
        return {}
    longest = max(each.shape[0] * each.shape[1] for each in pictures) // patch**2
    values, places = torch.zeros(len(pictures), longest, 3 * patch**2), torch.full((len(pictures), longest, 2), -1)
    for i, picture in enumerate(pictures):
        rows, columns = (side // patch for side in picture.shape[:2])
        values[i, : rows * columns] = normalized_patches(picture, patch, processor)
        row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places[i, : rows * columns] = torch.stack([column, row], dim=-1).reshape(-1, 2)
    return {"pixel_values": values, "image_position_ids": places}


def pooling_rows(whole: PreTrainedModel, text: Sequence[int], inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what the layers read by tokens, and transformers' own masks if rows of a picture see each other.

    transformers takes neighbouring rows for one picture, so the masks are made here, where pictures are separate.
    """
    config, ids = whole.config.get_text_config(), torch.tensor([text])
    masks = _masks(config, ids, inputs, whole.config.vision_config.pooling_kernel_size**2)
    if not config.hidden_size_per_layer_input:
        return masks
    tokens = torch.where(ids < 0, config.pad_token_id, ids)
    return {**masks, "per_layer_inputs": whole.model.language_model.get_per_layer_inputs(tokens)}


def _masks(config: Any, ids: Tensor, inputs: Mapping[str, Tensor], patches: int) -> dict[str, Any]:
    if not inputs or config.use_bidirectional_attention != "vision":
        return {}
    counts = ((inputs["image_position_ids"][..., 0] >= 0).sum(1) // patches).tolist()
    return {"attention_mask": block_masks(config, ids, counts)}


def _described(unified: bool, config: Any, processor: Mapping[str, Any], budgets: Sequence[int]) -> PictureDescription:
    """Return the description of pictures. unified: of Gemma 4 12B."""
    vision, text = config.vision_config, config.get_text_config()
    patch_size, merge = (vision.model_patch_size, 1) if unified else (vision.patch_size, vision.pooling_kernel_size)
    most_positions = vision.mm_posemb_size if unified else vision.position_embedding_size
    check_filter(processor, BICUBIC)
    if (vision.patch_size, vision.pooling_kernel_size) != (processor["patch_size"], processor["pooling_kernel_size"]):
        raise ValueError("the processor's patches are not the model's")
    own = int(processor["max_soft_tokens"])
    chosen = tuple(budgets) or (own,)
    if chosen[-1] not in (trained := sorted({*GEMMA_BUDGETS, own})):
        sizes = ", ".join(map(str, trained))
        why = f"this model was trained with pictures of up to {sizes} tokens, so the last number must be one of these."
        raise refused(chosen, why)
    positions = chosen[-1] * merge
    if positions > most_positions:
        raise ValueError(f"a picture of {chosen[-1]} tokens in a line needs {positions} positions of a side")
    return PictureDescription(
        model_type="gemma4",
        placeholder=config.image_token_id,
        patch_size=patch_size,
        merge=merge,
        position_side=positions,
        budgets=chosen,
        min_tokens=1,
        max_tokens=chosen[-1],
        tile_size=patch_size * merge,
        marks=True,
        bidirectional=text.use_bidirectional_attention == "vision" and "sliding_attention" in text.layer_types,
        **IN_ONE_PART,
    )


GEMMA_BUDGETS = (70, 140, 280, 560, 1120)
"""Most tokens of a picture that Gemma 4 was trained with."""
_GEMMA: Mapping[str, Any] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "max_soft_tokens": 280,
    "do_resize": True,
    "resample": BICUBIC,
    "do_normalize": False,
}
"""Options of transformers' ``Gemma4ImageProcessor`` that a file may leave out."""

GEMMA4 = VisionFamily(
    describe=partial(_described, False),
    encoder=PoolingEncoder,
    inputs=partial(_inputs, "patch_size"),
    parts=("model.vision_tower.encoder", "model.embed_vision"),
    rows=pooling_rows,
    often_text=True,
    defaults=_GEMMA,
)
GEMMA4_UNIFIED = VisionFamily(
    describe=partial(_described, True),
    encoder=ProjectingEncoder,
    inputs=partial(_inputs, "model_patch_size"),
    parts=("model.embed_vision",),
    rows=lambda whole, text, inputs: _masks(whole.config.get_text_config(), torch.tensor([text]), inputs, 1),
    often_text=True,
    defaults=_GEMMA,
)
