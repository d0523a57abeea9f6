"""Run the methods of the drafter inside an artifact: pairs in, a block of draft tokens out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.backends.methods import Methods, number, padded


@dataclass(frozen=True)
class Draws:
    """How draft tokens are drawn: by noise in [0, 1), one number for each of them, from softmax(scores / temperature)."""

    noise: Sequence[float]
    temperature: float


@dataclass(frozen=True)
class Drafted:
    """Draft tokens, none where the drafter's context is full.

    chances: the drafter's own estimate that each is right if those before it are. scores float32 [n, C], where the drafter can
    sample: what each was chosen by; of the candidates int64 [n, C], or [1, C] where they are the same for all, or of all
    tokens.
    """

    tokens: list[int]
    chances: list[float]
    scores: Tensor | None = None
    candidates: Tensor | None = None


class DraftRunner:
    """Runs the drafter's methods, and decides nothing."""

    def __init__(self, options: ExportOptions, drafter: DrafterDescription) -> None:
        self.options, self.drafter = options, drafter
        self._taps = [options.tap_layers.index(tap) for tap in drafter.taps]

    def calls(self, pairs: int) -> int:
        """Methods that ``draft`` calls for so many pairs."""
        return 1 + sum(1 for _ in self._early(pairs))

    def draft(
        self, program: Methods, hidden: Tensor, following: Sequence[int], limit: int | None, draws: Draws | None
    ) -> Drafted:
        """Let the drafter read pairs of tapped hidden states [n, F] and the tokens after them, then propose up to ``limit``."""
        rows = hidden.unflatten(-1, (len(self.options.tap_layers), -1))[:, self._taps].flatten(1)
        ids, end = list(following), 0
        for start, end in self._early(len(ids)):
            program.call("draft_prefill", *_pairs(self.options.prefill_chunk, rows[start:end], ids[start:end]))
        name = self.drafter.method_for(self.drafter.blocks[-1] if limit is None else limit)
        pairs = _pairs(self.options.verify_len, rows[end:], ids[end:])
        tokens, chances, *scores = program.call(name, *pairs, *self._draws(name, draws))
        if int(tokens[0, 0]) < 0:
            return Drafted([], [])
        given = tokens.shape[1] if limit is None else min(limit, tokens.shape[1])
        return Drafted(tokens[0, :given].tolist(), chances[0, :given].tolist(), *(each[0, :given] for each in scores))

    def _draws(self, name: str, draws: Draws | None) -> tuple[Tensor, ...]:
        if not self.drafter.samples:
            return ()
        count = self.drafter.methods[name]
        noise = [*(draws.noise if draws else ()), *[0.0] * count][:count]
        return torch.tensor([noise], dtype=torch.float32), torch.tensor([draws.temperature if draws else 0.0])

    def _early(self, pairs: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each chunk of pairs in front of those that the last call reads."""
        early = max(0, pairs - self.options.verify_len)
        for start in range(0, early, self.options.prefill_chunk):
            yield start, min(start + self.options.prefill_chunk, early)


def _pairs(size: int, hidden: Tensor, ids: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.zeros(1, size, hidden.shape[-1])
    rows[0, : len(ids)] = hidden
    return rows, padded(ids, size), number(len(ids))
