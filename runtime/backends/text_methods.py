"""The plainest thing that a Session can run over: a function from a text to the logits after it.

It stands for a model where only what is drawn from its logits matters, in simulations and in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridge.runtime.artifacts.drafter_description import DrafterDescription
from hybridge.runtime.artifacts.options import ExportOptions

Logits = Callable[[tuple[int, ...]], Tensor]

BLOCK = 512
"""Rows behind the last position, for a block that may start there."""


@dataclass(kw_only=True)
class TextDescription:
    """See ``hybridge.runtime.artifacts.options.Description``."""

    vocab_size: int
    options: ExportOptions
    eos_ids: list[int] = field(default_factory=list)
    model_type: str = "text"
    drafter: DrafterDescription | None = None
    identity: str | None = None


class TextMethods:
    """The methods of an artifact over a list of tokens; see ``hybridge.runtime.backends.methods.Methods``.

    rows int64 [R] hold a token for each position. numbers int64 [3 + slots], length, staged, operations and the slots' lengths,
    change all at once.
    """

    def __init__(self, logits: Logits, max_seq_len: int = 4096, snapshot_slots: int = 4) -> None:
        """logits: a text of at least one token to float32 [V]."""
        self.logits = logits
        self.rows = torch.zeros(max_seq_len + BLOCK, dtype=torch.long)
        self.numbers = torch.tensor([0, 0, 0] + [-1] * snapshot_slots)

    @property
    def text(self) -> list[int]:
        """The committed tokens."""
        return self.rows[: int(self.numbers[0])].tolist()

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        length, staged, operations, *slots = self.numbers.tolist()
        match name.split("_")[0], [each.flatten().tolist() for each in inputs]:
            case "verify", [tokens]:
                text = self._write(length, tokens)
                self._move(length, len(tokens), operations, _within(slots, length))
                return (torch.stack([self.logits(tuple(text[: length + i + 1])) for i in range(len(tokens))])[None],)
            case "prefill" | "decode", [tokens, *count]:
                text = self._write(length, tokens[: count[0][0]] if count else tokens)
                self._move(len(text), 0, operations, _within(slots, length))
                return (self.logits(tuple(text))[None, None],)
            case "commit", [[count]] if 0 <= count <= staged and staged:
                length += count
            case "snapshot", [[slot]]:
                slots[slot] = length
            case "restore", [[slot]] if slots[slot] >= 0:
                length = slots[slot]
            case "reset", []:
                length, slots = 0, [-1] * len(slots)
            case _:
                return (torch.tensor([-1]),)
        self._move(length, 0, operations, slots)
        return (torch.tensor([length]),)

    def state(self) -> Mapping[str, Tensor]:
        return {
            **self.bounded(),
            "staged": self.numbers[1:2],
            "operations": self.numbers[2:3],
            "slot_length": self.numbers[3:],
            "rows": self.rows,
        }

    def bounded(self) -> Mapping[str, Tensor]:
        return {"length": self.numbers[:1]}

    def operations(self) -> int:
        return int(self.numbers[2])

    def _write(self, length: int, tokens: list[int]) -> list[int]:
        """Write rows behind the length; returns the text with them."""
        self.rows[length : length + len(tokens)] = torch.tensor(tokens)
        return self.rows[: length + len(tokens)].tolist()

    def _move(self, length: int, staged: int, operations: int, slots: list[int]) -> None:
        self.numbers.copy_(torch.tensor([length, staged, operations + 1, *slots]))


def _within(slots: list[int], length: int) -> list[int]:
    """The lengths that slots keep once rows behind ``length`` are written."""
    return [kept if kept <= length else -1 for kept in slots]
