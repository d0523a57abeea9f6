"""Tokens over the methods of a program: in chunks, padded to the shapes that it was exported with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hybridge.runtime.artifacts.options import ExportOptions, shorter_verify
from hybridge.runtime.backends.methods import Methods, number, padded

Answer = tuple[Tensor, Tensor]
"""Logits [n, V], and tapped hidden states [n, F] where the program has taps, else [0, 0]."""


class TokenRunner:
    """Runs tokens, and decides nothing: whether they fit and what they change is for the caller to know."""

    def __init__(self, options: ExportOptions) -> None:
        self.options = options

    def chunks(self, ids: list[int]) -> list[list[int]]:
        """``ids`` in pieces that ``extend`` takes."""
        size = self.options.prefill_chunk
        return [ids[start : start + size] for start in range(0, len(ids), size)]

    def calls(self, chunk: list[int]) -> int:
        """Methods that ``extend`` calls for ``chunk``: a verify and a commit of a few tokens take less time than a chunk."""
        few = 1 < len(chunk) <= self.options.verify_len < self.options.prefill_chunk
        return 2 if few and self.options.fixed_shapes else 1

    def extend(self, program: Methods, chunk: list[int]) -> Answer:
        """Commit a chunk; logits [1, V] after its last token, hidden states of all."""
        if self.calls(chunk) == 2:
            logits, hidden = self.verify(program, chunk)
            program.call("commit", number(len(chunk)))
            return logits[-1:], hidden
        if len(chunk) == 1:
            return _answer(program.call("decode", torch.tensor([chunk])), 1, 1)
        inputs = (padded(chunk, self.options.prefill_chunk), number(len(chunk)))
        return _answer(program.call("prefill", *inputs), 1, len(chunk))

    def verify(self, program: Methods, ids: list[int]) -> Answer:
        """Stage at most ``verify_len`` tokens; logits and hidden states after each."""
        size = next(length for length in self.options.verify_lens if length >= len(ids))
        name = "verify" if size == self.options.verify_len else shorter_verify(size)
        outputs = program.call(name, padded(ids, size if self.options.fixed_shapes else len(ids)))
        return _answer(outputs, len(ids), len(ids))

    def draft_calls(self, pairs: int) -> int:
        """Methods that ``draft`` calls for so many pairs."""
        return 1 + sum(1 for _ in self._early(pairs))

    def draft(self, program: Methods, hidden: Tensor, following: Sequence[int]) -> list[int]:
        """Let the drafter read pairs of tapped hidden states [n, F] and the tokens after them; its draft tokens, or none."""
        taps = self.options.tap_layers
        last = hidden.unflatten(-1, (len(taps), -1))[:, taps.index(-1)]
        ids, end = list(following), 0
        for start, end in self._early(len(ids)):
            _read_pairs(program, "draft_prefill", self.options.prefill_chunk, last[start:end], ids[start:end])
        tokens = _read_pairs(program, "draft", self.options.verify_len, last[end:], ids[end:])[0].tolist()
        return [] if tokens[0] < 0 else tokens

    def _early(self, pairs: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each chunk of pairs in front of those that the last call reads."""
        early = max(0, pairs - self.options.verify_len)
        for start in range(0, early, self.options.prefill_chunk):
            yield start, min(start + self.options.prefill_chunk, early)


def _answer(outputs: Sequence[Tensor], rows: int, tokens: int) -> Answer:
    logits, *hidden = outputs
    return logits[0, :rows], hidden[0][0, :tokens] if hidden else torch.empty(0, 0)


def _read_pairs(program: Methods, name: str, size: int, hidden: Tensor, ids: list[int]) -> Tensor:
    rows = torch.zeros(1, size, hidden.shape[-1])
    rows[0, : len(ids)] = hidden
    return program.call(name, rows, padded(ids, size), number(len(ids)))[0]
