"""The plainest thing that a Session can run over: a function from a text to the logits after it.

It stands for a model where only what is drawn from its logits matters, in simulations and in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hybridge.runtime.manifest import ExportOptions

Logits = Callable[[tuple[int, ...]], Tensor]


@dataclass(kw_only=True)
class TextDescription:
    """See ``hybridge.runtime.protocols.Description``."""

    vocab_size: int
    options: ExportOptions
    eos_ids: list[int] = field(default_factory=list)
    model_type: str = "text"
    identity: str | None = None


class TextMethods:
    """The methods of an artifact over a list of tokens; see ``hybridge.runtime.protocols.Methods``."""

    def __init__(self, logits: Logits) -> None:
        """logits: a text of at least one token to float32 [V]."""
        self.logits = logits
        self.text: list[int] = []
        self.block: list[int] = []
        self.slots: dict[int, list[int]] = {}

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        numbers = [each.flatten().tolist() for each in inputs]
        block, self.block = self.block, []
        match name.split("_")[0], numbers:
            case "verify", [tokens]:
                self.block = tokens
                return (torch.stack([self._after(tokens[: i + 1]) for i in range(len(tokens))])[None],)
            case "prefill" | "decode", [tokens, *count]:
                self.text += tokens[: count[0][0]] if count else tokens
                return (self._after([])[None, None],)
            case "commit", [[count]]:
                self.text += block[:count]
            case "snapshot", [[slot]]:
                self.slots[slot] = self.text.copy()
            case "restore", [[slot]]:
                if slot not in self.slots or self.slots[slot] != self.text[: len(self.slots[slot])]:
                    return (torch.tensor([-1]),)
                self.text = self.slots[slot].copy()
            case "reset", []:
                self.text, self.slots = [], {}
        return (torch.tensor([len(self.text)]),)

    def state(self) -> Mapping[str, Tensor]:
        return {"length": torch.tensor([len(self.text)])}

    def _after(self, tokens: list[int]) -> Tensor:
        return self.logits((*self.text, *tokens))
