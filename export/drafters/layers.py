"""Modules that several kinds of drafters are made of: norm, attention, MLP, rotary embedding, and the choice of a token.

Parameters have the names of published checkpoints. Axes: T tokens, H hidden size, G key/value heads, D head dim,
N draft tokens, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hybridge.cache.block import Block
from hybridge.cache.operations.kernels import Kernels
from hybridge.errors import CheckpointError
from hybridge.export.drafters.folder import ConfigFields
from hybridge.export.pinned.transformers import rope_frequencies
from hybridge.export.source.files import first_line
from hybridge.export.weights import constant

Angles = tuple[Tensor, Tensor]
"""cos and sin [1, T, 1, D]."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The sizes of decoder layers. bias: attention has biases; rope: as transformers' ``rope_parameters``."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    rope: Mapping[str, Any]


def decoder_fields(fields: ConfigFields) -> dict[str, Any]:
    """Read the arguments of ``DecoderConfig``. Raises CheckpointError."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    return {
        "hidden_size": hidden,
        "intermediate_size": fields.count("intermediate_size"),
        "heads": heads,
        "kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": fields.count("head_dim", max(1, hidden // heads)),
        "eps": fields.number("rms_norm_eps", 1e-6),
        "bias": fields.truth("attention_bias", False),
        "rope": fields.rope(),
    }


class RmsNorm(nn.Module):
    """``weight * x / root(mean(x^2) + eps)``."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class AttentionProjections(nn.Module):
    """The projections around attention. width: of the input rows; norms: normalize queries and keys by head."""

    def __init__(self, c: DecoderConfig, width: int, *, norms: bool) -> None:
        super().__init__()
        queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(width, queries, bias=c.bias)
        self.k_proj, self.v_proj = (nn.Linear(width, keys, bias=c.bias) for _ in range(2))
        self.o_proj = nn.Linear(queries, c.hidden_size, bias=c.bias)
        self.q_norm, self.k_norm = (RmsNorm(c.head_dim, c.eps) if norms else nn.Identity() for _ in range(2))

    def rows(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Return keys and values [1, T, G, D] of rows x [1, T, H]."""
        keys = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim))), angles)
        return keys, self.v_proj(x).unflatten(-1, (-1, self.head_dim))

    def query(self, x: Tensor, angles: Angles) -> Tensor:
        """Return queries [1, T, heads, D] of rows x [1, T, H]."""
        return rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), angles)


class Mlp(nn.Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, c: DecoderConfig, act: Callable[[Tensor], Tensor] = F.silu) -> None:
        super().__init__()
        self.act = act
        self.gate_proj, self.up_proj = (nn.Linear(c.hidden_size, c.intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
        return out


class Rope(nn.Module):
    """A rotary embedding of frequencies [D / 2]. factor: multiplies cos and sin."""

    def __init__(self, frequencies: Tensor, factor: float) -> None:
        super().__init__()
        self.frequencies, self.factor = constant(frequencies.float()), factor

    def angles(self, positions: Tensor) -> Angles:
        """Return cos and sin at positions int64 [T]."""
        turns = positions[:, None].float() * self.frequencies
        turns = torch.cat([turns, turns], dim=-1)[None, :, None]
        return turns.cos() * self.factor, turns.sin() * self.factor


def load_rope(folder: Path, c: DecoderConfig) -> Rope:
    """Make the rotary embedding of the drafter in ``folder`` by transformers' rules. Raises CheckpointError if they refuse."""
    known = {"head_dim": c.head_dim, "hidden_size": c.hidden_size, "num_attention_heads": c.heads}
    try:
        return Rope(*rope_frequencies({**known, "num_key_value_heads": c.kv_heads, "rope_parameters": dict(c.rope)}))
    except Exception as error:  # whatever transformers' checks of a config run into
        raise CheckpointError(f"{folder / 'config.json'}: its rotary embedding cannot be made ({first_line(error)}).") from None


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate x [1, T, heads, D] by its positions, in pairs of channel i and i + D / 2."""
    cos, sin = angles
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def known(hidden: Tensor, block: Block) -> Tensor:
    """Return rows [1, T, H] with zeros for padding, by a select: padding may be NaN, which a product with 0 would keep."""
    return torch.where(block.real[:, None], hidden, 0.0)


@dataclass(frozen=True)
class SamplingInputs:
    """The inputs of sampling: noise int64 [1, N], 32 random bits each, and temperature float32 [1], 0 for the best token."""

    noise: Tensor
    temperature: Tensor


@dataclass(frozen=True)
class DraftProposals:
    """Draft tokens int64 [1, N], and the probability float32 [1, N] that each is right if those before it are."""

    tokens: Tensor
    probabilities: Tensor

    @classmethod
    def joined(cls, steps: list[DraftProposals]) -> DraftProposals:
        """Join the proposals of single tokens."""
        tokens, probabilities = (
            torch.cat([getattr(step, name) for step in steps], dim=1) for name in ("tokens", "probabilities")
        )
        return cls(tokens, probabilities)

    def answers(self, fits: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of a ``draft`` method. fits: bool [1], without which all tokens are -1."""
        return torch.where(fits, self.tokens, -1), self.probabilities


class TokenSelector:
    """Chooses draft tokens by their scores: the best, or drawn from softmax(scores / temperature) by its noise.

    ids: int64 [C], the tokens that the scores are of, if not of the whole vocabulary.
    """

    def __init__(self, kernels: Kernels, draws: SamplingInputs, ids: Tensor | None = None) -> None:
        self.kernels, self.draws, self.ids = kernels, draws, ids

    def choose(self, scores: Tensor, i: int | None = None, of: Tensor | None = None) -> DraftProposals:
        """Choose tokens by scores [1, N, C].

        Args:
            scores: of all draft tokens, or of one.
            i: the index of the one draft token, which has draw ``i``.
            of: candidates [1, N, C] that the scores are of, in place of ``ids``.
        """
        noise = self.draws.noise if i is None else self.draws.noise[:, i : i + 1]
        ids = of if of is not None or self.ids is None else self.ids[None, None]
        places = self.kernels.draw(scores, noise, self.draws.temperature, ids)
        tokens = self.named(places) if of is None else of.gather(-1, places.unsqueeze(-1)).squeeze(-1)
        return DraftProposals(tokens, self.kernels.top_probability(scores))

    def named(self, places: Tensor) -> Tensor:
        """Return the tokens at ``places`` int64 [...] of the scores."""
        return places if self.ids is None else self.ids.index_select(0, places.flatten()).view(places.shape)
