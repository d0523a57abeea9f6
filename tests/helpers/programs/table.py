"""A language model that is a table: the logits depend on the last two tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.runtime import ExportOptions, Model, Session
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.programs import TextProgram

VOCABULARY, END = 7, 6


class Table:
    """Logits [V] after a text; noise moves it away from the table of the same seed without."""

    def __init__(self, seed: int = 0, noise: float = 0.0, ends: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=generator)
        self.rows += noise * torch.randn(self.rows.shape, generator=generator)
        if not ends:
            self.rows[..., END] = -100.0

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        return self.rows[text[-2] if len(text) > 1 else 0, text[-1]]


def table_model(
    table: Callable[[tuple[int, ...]], Tensor] | None = None,
    max_seq_len: int = 60,
    verify_lens: tuple[int, ...] = (2, 4),
    vocab_size: int = VOCABULARY,
) -> Model:
    """A model over a table, for one session, with END as its end of sequence."""
    options = ExportOptions(
        max_seq_len=max_seq_len, prefill_chunk=5, verify_len=verify_lens[-1], shorter_verify_lens=verify_lens[:-1]
    )
    description = ProgramInfo(vocab_size=vocab_size, options=options, eos_ids=[END])
    return Model.over(TextProgram(table or Table(), max_seq_len, options.snapshot_slots), description)


def table_session(
    table: Callable[[tuple[int, ...]], Tensor] | None = None,
    max_seq_len: int = 60,
    verify_lens: tuple[int, ...] = (2, 4),
    vocab_size: int = VOCABULARY,
) -> Session:
    """A session over ``table_model``."""
    return Session(table_model(table, max_seq_len, verify_lens, vocab_size))
