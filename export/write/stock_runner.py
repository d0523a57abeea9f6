"""Define the methods that ExecuTorch's MultimodalRunner calls: ``vision_encoder``, ``token_embedding`` and ``text_decoder``.

The runner hands on a picture of any size and a text of any length in one call each, so these are the only methods whose shapes
are not fixed: ``dynamic_shapes`` of a module names its dimensions for ``torch.export``. Sizes are ``StockSizes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.export.program.methods import ProgramMethod
from hybridge.export.program.state import State
from hybridge.runtime.artifact.pictures import PictureDescription, StockSizes


class StockVisionEncoder(ProgramMethod):
    """image uint8 [3, height, width] -> embeddings [1, tokens, H], one for each square of the picture.

    Sides are multiples of the encoder's unit. It computes the patches and positions that other callers give to
    ``EncodePicture``, padding included, so that no shape inside of the encoder depends on the picture. A picture of more
    tokens than the largest budget ends the call with an error of ``index_select``.
    """

    def __init__(self, state: State, pictures: PictureDescription, most: int) -> None:
        """most: squares along a side."""
        super().__init__(state)
        self.pictures = pictures
        high, wide = (pictures.unit * torch.export.Dim(name, min=1, max=most) for name in ("high", "wide"))
        self.dynamic_shapes: Any = ({1: high, 2: wide},)

    def forward(self, image: Tensor) -> Tensor:
        pictures, vision = self.pictures, self.state.vision
        assert vision is not None
        merge, patch, most = pictures.merge, pictures.patch_size, pictures.budgets[-1]
        high, wide = image.shape[1] // pictures.unit, image.shape[2] // pictures.unit
        squares = image.reshape(3, high, merge, patch, wide, merge, patch).permute(1, 4, 2, 5, 3, 6, 0)
        pixels = squares.reshape(high * wide * merge**2, 3 * patch**2)
        sides = [torch.full((1,), side, dtype=torch.long) for side in (high, wide)]
        count = sides[0] * sides[1] * merge**2
        number = torch.arange(most * merge**2)
        within, square = number % merge**2, number // merge**2
        line = torch.where(number < count, square // sides[1] * merge + within // merge, 0)
        column = torch.where(number < count, square % sides[1] * merge + within % merge, 0)
        weights = (
            interpolation(at[:, None].float(), side * float(merge), pictures.position_side)
            for at, side in zip((line, column), sides, strict=True)
        )
        places = (torch.stack([line, column], dim=1).float(),) if pictures.form.has_rope else ()
        held = pixels.index_select(0, torch.minimum(number, count - 1))
        embeddings: Tensor = vision(held, *weights, *places, count)
        return embeddings.index_select(1, torch.arange(high * wide))


class TokenEmbedding(ProgramMethod):
    """tokens [1, T] -> embeddings [1, T, H]; touches no state."""

    def __init__(self, state: State, most: int) -> None:
        super().__init__(state)
        self.embedding = state.model.head.get_input_embeddings()
        self.dynamic_shapes: Any = ({1: torch.export.Dim.DYNAMIC(min=1, max=most)},)

    def forward(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.embedding(tokens)
        return embeddings


class TextDecoder(ProgramMethod):
    """embeddings [1, T, H], start_pos [1] -> logits [1, 1, V] of the last; commits all. Position 0 resets the state.

    A position other than 0 or the length, and a text that does not fit, end the call with an error of the first operator that
    writes rows of full attention: the runner notices errors, and no NaN. The state is unchanged.
    """

    def __init__(self, state: State, most: int) -> None:
        super().__init__(state)
        self.dynamic_shapes: Any = ({1: torch.export.Dim.DYNAMIC(min=1, max=most)}, None)

    def forward(self, embeddings: Tensor, start_pos: Tensor) -> Tensor:
        state, cache, length = self.state, self.state.cache, embeddings.shape[1]
        cache.clear(start_pos == 0)
        block = cache.extend(length, torch.where(start_pos == cache.length, length, 0))
        # No buffer has room for a block after its last row.
        block = replace(block, start=torch.where(block.count > 0, block.start, cache.sizes.rows))
        return state.last_logits(state.hidden(embeddings, block), block)


def stock_methods(
    state: State, pictures: PictureDescription, sizes: StockSizes
) -> Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the methods, by their names in the manifest, with example inputs of their largest sizes."""
    side = sizes.squares * pictures.unit
    return {
        "stock_vision_encoder": (
            StockVisionEncoder(state, pictures, sizes.squares), (torch.zeros(3, side, side, dtype=torch.uint8),),
        ),
        "token_embedding": (TokenEmbedding(state, sizes.tokens), (torch.zeros(1, sizes.tokens, dtype=torch.long),)),
        "text_decoder": (
            TextDecoder(state, sizes.tokens),
            (torch.zeros(1, sizes.tokens, state.model.width), torch.zeros(1, dtype=torch.long)),
        ),
    }  # fmt: skip


def interpolation(at: Tensor, size: Tensor, side: int) -> Tensor:
    """Return the weights float32 [N, side] of learned positions at N places, bilinear with antialiasing.

    As ``interpolation`` of runtime/native/engine/picture.cpp, which computes them in float64.

    Args:
        at: float32 [N, 1], 0 to size - 1.
        size: float32 [1], how many places there are.
        side: how many positions.
    """
    scale = side / size
    away = torch.arange(side) + 0.5 - (at + 0.5) * scale
    weights = (1 - away.abs() / scale.clamp(min=1)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)
