"""The rotary embedding of a drafter: frequencies by transformers' own rules, cos and sin as our modules take them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hybridge.cache.errors import CheckpointError
from hybridge.export.layers.packed_layers import constant
from hybridge.export.pinned.transformers_models import rope_frequencies
from hybridge.export.source.reading import first_line

Angles = tuple[Tensor, Tensor]
"""cos and sin [1, T, 1, D]."""


class AttentionSizes(Protocol):
    """The sizes of attention."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class RopeSizes(AttentionSizes, Protocol):
    """What the rotary embedding follows from."""

    @property
    def rope(self) -> Mapping[str, Any]:
        """Return it as transformers' ``rope_parameters``."""


class Rope(nn.Module):
    """frequencies [D / 2], and the factor of cos and sin."""

    def __init__(self, frequencies: Tensor, factor: float) -> None:
        super().__init__()
        self.frequencies, self.factor = constant(frequencies.float()), factor

    def angles(self, positions: Tensor) -> Angles:
        """cos and sin at positions int64 [T]."""
        turns = positions[:, None].float() * self.frequencies
        turns = torch.cat([turns, turns], dim=-1)[None, :, None]
        return turns.cos() * self.factor, turns.sin() * self.factor


def load_rope(folder: Path, sizes: RopeSizes) -> Rope:
    """Make the rotary embedding of the drafter in ``folder``. Raises CheckpointError where its config asks for none that is."""
    known = {"head_dim": sizes.head_dim, "hidden_size": sizes.hidden_size, "num_attention_heads": sizes.heads}
    try:
        return Rope(*rope_frequencies({**known, "num_key_value_heads": sizes.kv_heads, "rope_parameters": dict(sizes.rope)}))
    except Exception as error:  # whatever transformers' checks of a config run into
        raise CheckpointError(f"{folder / 'config.json'}: its rotary embedding cannot be made ({first_line(error)}).") from None


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn x [1, T, heads, D] by its positions, halves side by side."""
    cos, sin = angles
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin
