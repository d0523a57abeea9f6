"""A saved state: whether its numbers are those of a state that this session may be in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hybridge.cache.errors import StateFileError

MOST_OPERATIONS = 1 << 62
"""More than can ever be counted, and far from where a count would wrap."""


@dataclass(frozen=True)
class SavedState:
    """buffers by name; tokens that they are the state of; tokens of each filled snapshot slot; whatever the caller notes."""

    buffers: Mapping[str, Tensor]
    tokens: list[int]
    slots: dict[int, list[int]]
    note: str = ""

    def check(self, vocab_size: int, max_seq_len: int, snapshot_slots: int) -> None:
        """Raises StateFileError where a program could not have left this: it goes by these numbers without looking again.

        Buffers have the program's own shapes. Other numbers than those below index nothing: wrong ones give wrong logits.
        """
        _check_text("the text", self.tokens, vocab_size, max_seq_len)
        for slot, text in self.slots.items():
            _require(0 <= slot < snapshot_slots, f"it has a slot {slot}, of {snapshot_slots}")
            _check_text(f"the text of slot {slot}", text, vocab_size, max_seq_len)
        _check_lengths("the text", _numbers(self.buffers["length"]), [len(self.tokens)])
        for slot, length in enumerate(self._slot_lengths()):
            if length != -1:  # a slot that keeps nothing
                _check_lengths(f"slot {slot}", [length], [len(self.slots[slot])] if slot in self.slots else [])
        (operations,) = _numbers(self.buffers["operations"])
        _require(0 <= operations < MOST_OPERATIONS, f"it counts {operations} operations")
        self._check_drafted(max_seq_len)

    def _slot_lengths(self) -> list[int]:
        """In the order of the slots: from the one buffer of a program, or from each slot's own of onnxruntime's."""
        if (lengths := self.buffers.get("slot_length")) is not None:
            return _numbers(lengths)
        own = [name for name in self.buffers if name.startswith("slots.") and name.endswith(".length")]
        return [_numbers(self.buffers[f"slots.{slot}.length"])[0] for slot in range(len(own))]

    def _check_drafted(self, max_seq_len: int) -> None:
        """What a drafter has read, a number that is kept as float32; in a slot that keeps nothing it may be anything."""
        for name, buffer in self.buffers.items():
            if name.endswith(".drafted_length"):
                kept = self.buffers.get(f"{name}_slots")
                slots = [] if kept is None else [kept.flatten()[i] for i, n in enumerate(self._slot_lengths()) if n != -1]
                for length in [*map(float, buffer.flatten()), *map(float, slots)]:
                    _require(0 <= length <= max_seq_len and length.is_integer(), f"a drafter has read {length} tokens")


def _check_text(what: str, text: Sequence[int], vocab_size: int, max_seq_len: int) -> None:
    _require(len(text) <= max_seq_len, f"{what} has {len(text)} tokens, of at most {max_seq_len}")
    if wrong := [token for token in text if not 0 <= token < vocab_size]:
        _require(False, f"{what} has the token {str(wrong[0])[:30]}, of a vocabulary of {vocab_size}")


def _check_lengths(what: str, lengths: list[int], wanted: list[int]) -> None:
    _require(lengths == wanted, f"the state of {what} has the length {lengths}, and its tokens {wanted or 'are missing'}")


def _numbers(buffer: Tensor) -> list[int]:
    numbers: list[int] = buffer.flatten().tolist()
    return numbers


def _require(fine: bool, reason: str) -> None:
    if not fine:
        raise StateFileError(f"this is no state of this artifact: {reason}. The file is damaged; save it again.")
