"""Drive every client through one interface, with the same questions: a prompt, a second turn, a reset, the prompt again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, Protocol

from hybridge.export.check.random_program import Oracle

Ends = Literal["before", "after"]
"""End of a client's text after a generation: before the last new token, which was not read yet, or after it."""


class ClientError(Exception):
    """A client cannot be set up on this machine, or gave up; the message says why."""


class Client(Protocol):
    """One text that grows by turns."""

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """Return at most ``count`` greedy tokens after ``tokens``, which continue the text."""

    def reset(self) -> None:
        """Start an empty text."""


@dataclass(frozen=True)
class Row:
    """A client by name; ``start`` may leave what has to be ended in the stack. turns is None where it has no second turn."""

    name: str
    start: Callable[[ExitStack], Client]
    turns: Ends | None = "before"


@dataclass(frozen=True)
class Functions:
    """A client of two functions."""

    generate: Callable[[list[int], int], list[int]]
    reset: Callable[[], object]


NEW, NEW_LATER = 100, 20
"""Greedy tokens after a prompt, and after a second turn or the same prompt after a reset."""


@dataclass(frozen=True)
class Conversation:
    """A prompt and a second turn, and what the uncached model writes after each; after the turn by where the text ended."""

    prompt: list[int]
    turn: list[int]
    after_prompt: list[int]
    after_turn: dict[Ends, list[int]]


@dataclass
class Score:
    """Numbers of conversations in which a client gave the right tokens; turns is None for a client without them."""

    prompts: int = 0
    turns: int | None = 0
    resets: int = 0

    def is_perfect(self, count: int) -> bool:
        """Return whether all ``count`` conversations were right."""
        return self.prompts == self.resets == count and self.turns in (None, count)


def conversation(oracle: Oracle, eos_ids: Sequence[int], prompt: list[int], turn: list[int]) -> Conversation:
    """Ask the uncached model: one forward over the whole text for each token."""

    def continued(text: list[int], count: int) -> list[int]:
        new: list[int] = []
        while len(new) < count and (not new or new[-1] not in eos_ids):
            new.append(int(oracle(text + new)[-1].argmax()))
        return new

    first = continued(prompt, NEW)
    after_turn: dict[Ends, list[int]] = {
        "before": continued(prompt + first[:-1] + turn, NEW_LATER),
        "after": continued(prompt + first + turn, NEW_LATER),
    }
    return Conversation(prompt, turn, first, after_turn)


def score(client: Client, turns: Ends | None, conversations: Sequence[Conversation]) -> Score:
    """Hold ``client`` to every conversation."""
    total = Score(turns=None if turns is None else 0)
    for each in conversations:
        client.reset()
        total.prompts += client.generate(each.prompt, NEW) == each.after_prompt
        if turns is not None:
            total.turns += client.generate(each.turn, NEW_LATER) == each.after_turn[turns]
        client.reset()
        total.resets += client.generate(each.prompt, NEW_LATER) == each.after_prompt[:NEW_LATER]
    return total
