"""Tokens over the methods of a program: in chunks, padded to the shapes that it was exported with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hybridge.runtime.artifacts.options import ExportOptions, shorter_verify
from hybridge.runtime.backends.methods import Methods, number, padded
from hybridge.runtime.sessions.outcomes import check_numbers, run

Answer = tuple[Tensor, Tensor]
"""Logits [n, V], and tapped hidden states [n, F] where the program has taps, else [0, 0]."""


class TokenRunner:
    """Runs tokens, and decides nothing: whether they fit and what they change is for the caller to know."""

    def __init__(self, options: ExportOptions) -> None:
        self.options = options

    def chunks(self, ids: list[int]) -> list[list[int]]:
        """``ids`` in pieces that ``extend`` takes: prefill's, and at the end verify's if they are a quarter of one at most.

        A prefill of a fixed shape takes at least half of its time, however few tokens it is given, and a token in a verify up
        to twice the time that it takes in a full prefill (Qwen3.5-0.8B, chunks of 64: 12 tokens in 105 ms, in two verifies 56).
        """
        size, block = self.options.prefill_chunk, self.options.verify_len
        whole = len(ids) // size * size
        few = self.options.fixed_shapes and block > 1 and 4 * (len(ids) - whole) <= size
        return [*_pieces(ids[:whole], size), *_pieces(ids[whole:], block if few else size)]

    def calls(self, chunk: list[int]) -> int:
        """Methods that ``extend`` calls for ``chunk``: a verify and a commit of a few tokens take less time than a chunk."""
        few = 1 < len(chunk) <= self.options.verify_len < self.options.prefill_chunk
        return 2 if few and self.options.fixed_shapes else 1

    def extend(self, program: Methods, chunk: list[int], position: int) -> Answer:
        """Commit a chunk, whose first token is at ``position``; logits [1, V] after its last token, hidden states of all.

        Raises NumericalError, before the commit where there is one, and ArtifactError for a refusal.
        """
        if self.calls(chunk) == 2:
            logits, hidden = self.verify(program, chunk, position)
            run(program, "commit", number(len(chunk)), tokens=len(chunk))
            return logits[-1:], hidden
        if len(chunk) == 1:
            name, inputs = "decode", [torch.tensor([chunk])]
        else:
            name, inputs = "prefill", [padded(chunk, self.options.prefill_chunk), number(len(chunk))]
        answer = _answer(run(program, name, *inputs, tokens=len(chunk)), 1, len(chunk))
        check_numbers(answer[0], name, position + len(chunk) - 1)
        return answer

    def verify(self, program: Methods, ids: list[int], position: int) -> Answer:
        """Stage at most ``verify_len`` tokens, the first at ``position``; logits and hidden states after each.

        Raises NumericalError, and ArtifactError for a refusal.
        """
        size = next(length for length in self.options.verify_lens if length >= len(ids))
        name = "verify" if size == self.options.verify_len else shorter_verify(size)
        tokens = padded(ids, size if self.options.fixed_shapes else len(ids))
        answer = _answer(run(program, name, tokens, tokens=len(ids)), len(ids), len(ids))
        check_numbers(answer[0], name, position)
        return answer


def _pieces(ids: list[int], size: int) -> list[list[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _answer(outputs: Sequence[Tensor], rows: int, tokens: int) -> Answer:
    logits, *hidden = outputs
    return logits[0, :rows], hidden[0][0, :tokens] if hidden else torch.empty(0, 0)
