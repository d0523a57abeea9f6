"""A Session drives one artifact: tokens in, logits out, and a state that can be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from hybridge.cache.errors import CapacityError, CommitError, SnapshotError, TokenError
from hybridge.runtime.artifact import open_artifact
from hybridge.runtime.generate import Drafter, GenerationStats, generate
from hybridge.runtime.manifest import ExportOptions
from hybridge.runtime.program import Program

Tokens = Sequence[int] | Tensor


class Methods(Protocol):
    """What runs the methods of an artifact over one state; ``hybridge.runtime.program`` does it for an artifact."""

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; the outputs are the caller's own."""

    def state(self) -> Mapping[str, Tensor]:
        """Every buffer of the state by name."""


class Description(Protocol):
    """What a Session must know of its model; an artifact's manifest says it."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_ids(self) -> list[int]: ...
    @property
    def options(self) -> ExportOptions: ...


class Session:
    """The state of one sequence over one artifact.

    Every method either does what it says or raises an error and leaves the state as it was. Logits come back as float32 tensors
    that belong to the caller. Any call after ``verify`` other than ``commit`` drops the verified block.
    """

    def __init__(self, program: Methods, manifest: Description) -> None:
        options = manifest.options
        self.manifest = manifest
        self.max_seq_len = options.max_seq_len
        self.prefill_chunk = options.prefill_chunk
        self.verify_len = options.verify_len
        self.snapshot_slots = options.snapshot_slots
        self.vocab_size = manifest.vocab_size
        self._program = program
        self._length = 0
        self._staged = 0
        self.reset()  # the runtime does not promise what fresh state memory holds

    @classmethod
    def load(cls, folder: str | Path) -> Session:
        """Open an artifact after checking sizes, hashes and the program.

        Raises ArtifactError, saying what is wrong with the folder.
        """
        artifact = open_artifact(folder)
        return cls(Program(artifact), artifact.manifest)

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def room(self) -> int:
        """Tokens that can still be committed."""
        return self.max_seq_len - self._length

    def prefill(self, tokens: Tokens) -> Tensor:
        """Commit any number of tokens ≥ 1; returns the logits [V] after the last.

        Raises TokenError and CapacityError before anything is done.
        """
        ids = self._checked(tokens)
        for start in range(0, len(ids), self.prefill_chunk):
            piece = ids[start : start + self.prefill_chunk]
            logits = self._extend(piece)
        return logits

    def decode(self, token: int) -> Tensor:
        """Commit one token; returns the logits [V] after it. Raises TokenError and CapacityError."""
        return self._extend(self._checked([token]))

    def verify(self, tokens: Tokens) -> Tensor:
        """Logits [n, V] after each of n tokens, 1 ≤ n ≤ ``verify_len``, without committing any.

        Raises TokenError for too many or none, CapacityError where they do not fit.
        """
        ids = self._checked(tokens)
        if len(ids) > self.verify_len:
            raise TokenError(
                f"verify takes at most {self.verify_len} tokens, got {len(ids)}; export with a larger --verify-len."
            )
        (logits,) = self._program.call("verify", padded(ids, self.verify_len))
        self._staged = len(ids)
        return logits[0, : len(ids)]

    def commit(self, count: int) -> int:
        """Accept the first ``count`` tokens of the verified block, or none; returns the new length.

        Runs no forward: it replays only the recurrence. Raises CommitError without a block or for more than it has.
        """
        if not self._staged:
            raise CommitError("commit needs a verified block: call verify first, and commit before anything else.")
        if not 0 <= count <= self._staged:
            raise CommitError(
                f"the verified block has {self._staged} tokens, so commit takes 0 to {self._staged}, not {count}."
            )
        return self._moved(self._program.call("commit", number(count)), CommitError("the program refused the commit."))

    def snapshot(self, slot: int) -> int:
        """Keep the committed state in ``slot``; returns its length. Raises SnapshotError for a slot out of range."""
        self._check_slot(slot)
        return self._moved(
            self._program.call("snapshot", number(slot)), SnapshotError(f"the program refused to fill slot {slot}.")
        )

    def restore(self, slot: int) -> int:
        """Go back to what ``slot`` keeps; returns the new length.

        Raises SnapshotError for a slot out of range, never filled, or whose positions were overwritten since.
        """
        self._check_slot(slot)
        refused = SnapshotError(
            f"slot {slot} keeps nothing to restore: it was never filled, or tokens were written below its length since "
            "(an earlier snapshot was restored and another way taken)."
        )
        return self._moved(self._program.call("restore", number(slot)), refused)

    def reset(self) -> int:
        """Empty the state and all slots; returns 0."""
        self._length = int(self._program.call("reset")[0])
        self._staged = 0
        return self._length

    def generate(
        self,
        tokens: Tokens,
        *,
        max_new_tokens: int = 64,
        drafter: Drafter | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        stats: GenerationStats | None = None,
    ) -> Iterator[int]:
        """Continue ``tokens`` from the current state; see ``hybridge.runtime.generate``."""
        return generate(
            self,
            tokens,
            max_new_tokens=max_new_tokens,
            drafter=drafter,
            temperature=temperature,
            seed=seed,
            stats=stats if stats is not None else GenerationStats(),
        )

    def state(self) -> dict[str, Tensor]:
        """A copy of every buffer of the state by name, for inspection."""
        return {name: tensor.clone() for name, tensor in self._program.state().items()}

    def _extend(self, ids: list[int]) -> Tensor:
        if len(ids) == 1:
            (logits,) = self._program.call("decode", torch.tensor([ids]))
        else:
            (logits,) = self._program.call("prefill", padded(ids, self.prefill_chunk), number(len(ids)))
        self._length += len(ids)
        self._staged = 0
        return logits[0, 0]

    def _moved(self, answer: tuple[Tensor, ...], refused: Exception) -> int:
        """Take the length that a method answered, or raise ``refused`` for its -1."""
        length = int(answer[0])
        if length < 0:
            raise refused
        self._length, self._staged = length, 0
        return self._length

    def _checked(self, tokens: Tokens) -> list[int]:
        ids = [int(token) for token in (tokens.tolist() if isinstance(tokens, Tensor) else tokens)]
        if not ids:
            raise TokenError("got no tokens; give at least one.")
        if wrong := [token for token in ids if not 0 <= token < self.vocab_size]:
            raise TokenError(f"token id {wrong[0]} is outside the vocabulary, 0 to {self.vocab_size - 1}.")
        if len(ids) > self.room:
            raise CapacityError(
                f"{len(ids)} tokens do not fit: {self._length} of max_seq_len = {self.max_seq_len} are used. "
                "Reset the session, or export with a larger --max-seq-len."
            )
        return ids

    def _check_slot(self, slot: int) -> None:
        if not self.snapshot_slots:
            raise SnapshotError("this artifact has no snapshot slots; export with --snapshot-slots.")
        if not 0 <= slot < self.snapshot_slots:
            raise SnapshotError(f"slot {slot} does not exist; this artifact has slots 0 to {self.snapshot_slots - 1}.")


def padded(ids: list[int], size: int) -> Tensor:
    """int64 [1, size]; the padding repeats token 0, which every vocabulary has."""
    return torch.tensor([ids + [0] * (size - len(ids))])


def number(value: int) -> Tensor:
    """int64 [1]."""
    return torch.tensor([value])
