"""A session of the native harness with the interface of Python's, so that the same checks drive both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from torch import Tensor

from hybridge.cache.errors import (
    ArtifactError,
    CapacityError,
    CommitError,
    DraftError,
    HybridgeError,
    NumericalError,
    OutputError,
    SnapshotError,
    StateFileError,
    TokenError,
    UsageError,
)
from hybridge.runtime.generation.drafter import Context, Drafter
from hybridge.runtime.generation.sampling import Sampler, Sampling
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.generation.token_ids import token_id, token_ids
from hybridge.runtime.native.process import Answer, Draft, NativeProcess

FAILED = ("Error::Internal", "Error::InvalidProgram")
"""What is no refusal: the runtime gave up inside a method."""

NOT_FINITE = "Error::NotSupported"
"""Its word for logits that are no numbers."""
CHANGED = "Error::InvalidExternalData"
"""Its word for a program that was written to since it was opened, and for a saved state that is none."""

ERRORS: dict[str, type[HybridgeError]] = {
    "prefill": TokenError,
    "decode": TokenError,
    "verify": TokenError,
    "generate": TokenError,
    "draft": DraftError,
    "sampling": UsageError,
    "clock": UsageError,
    "mask": UsageError,
    "draft_model": DraftError,
    "commit": CommitError,
    "snapshot": SnapshotError,
    "restore": SnapshotError,
    "save": OutputError,
    "load": StateFileError,
    "resume": UsageError,
    "drop": UsageError,
    "bring": TokenError,
}
"""By operation: what its refusals are here."""


NativeDrafter = Literal["lookup", "own", "model"]
"""Those of the native harness: prompt lookup, the artifact's own, and the draft model of ``use_draft_model``."""

NUMBERS = count()
"""Of checkpoints."""


@dataclass(frozen=True)
class NativeCheckpoint:
    """A checkpoint of the process. nbytes: those of its own; shares: whether it has rows in common with another one."""

    number: int
    length: int
    nbytes: int
    shares: bool
    process: NativeProcess

    def close(self) -> None:
        """Let go of it."""
        self.process.ask(f"0 drop {self.number}")


@dataclass(frozen=True)
class Brought:
    """known: tokens that were not read; kept: checkpoints that there are then, of nbytes together."""

    known: int
    kept: int
    nbytes: int


class NativeSession:
    """One of a process's sessions. All that is decided about an operation is decided over there, refusals included."""

    def __init__(self, process: NativeProcess, index: int = 0) -> None:
        options = process.artifact.manifest.options
        self.manifest = process.artifact.manifest
        self.max_seq_len = options.max_seq_len
        self.prefill_chunk = options.prefill_chunk
        self.verify_len = options.verify_len
        self.snapshot_slots = options.snapshot_slots
        self.vocab_size = process.artifact.manifest.vocab_size
        self.length = 0
        """Committed tokens."""
        self._process, self._index = process, index

    @property
    def room(self) -> int:
        """Return how many tokens can still be committed."""
        return self.max_seq_len - self.length

    def prefill(self, tokens: Sequence[int]) -> Tensor:
        """Commit tokens; logits [V] after the last. Raises TokenError, CapacityError and NumericalError."""
        return self._ask("prefill", *token_ids(tokens)).logits

    def decode(self, token: int) -> Tensor:
        """Commit one token; logits [V] after it. Raises TokenError, CapacityError and NumericalError."""
        return self._ask("decode", token_id(token)).logits

    def verify(self, tokens: Sequence[int]) -> Tensor:
        """Return logits [n, V] after each of n tokens, of which none is committed.

        Raises TokenError, CapacityError and NumericalError.
        """
        return self._ask("verify", *token_ids(tokens)).logits.view(len(tokens), self.vocab_size)

    def commit(self, count: int) -> int:
        """Accept the first ``count`` verified tokens; the new length. Raises CommitError."""
        return self._ask("commit", count).length

    def keep_hidden(self, wanted: bool) -> None:
        """Keep the hidden states of what is committed from now on, for ``draft``."""
        self._ask("keep", int(wanted))

    def draft(self, following: int, limit: int) -> Sequence[int]:
        """Propose at most ``limit`` tokens behind ``following``, by the artifact's own drafter. Raises DraftError."""
        return self._ask("draft", following, limit).generated

    def snapshot(self, slot: int) -> int:
        """Keep the committed state; its length. Raises SnapshotError."""
        return self._ask("snapshot", slot).length

    def restore(self, slot: int) -> int:
        """Go back to what ``slot`` keeps; the new length. Raises SnapshotError."""
        return self._ask("restore", slot).length

    def reset(self) -> int:
        """Empty the state and all slots; returns 0."""
        return self._ask("reset").length

    def checkpoint(self) -> NativeCheckpoint:
        """Return the committed state, which any session of the process can resume until it is closed."""
        number = next(NUMBERS)
        nbytes, shares = self._ask("keep_as", number).generated
        return NativeCheckpoint(number, self.length, nbytes, bool(shares), self._process)

    def resume(self, checkpoint: NativeCheckpoint) -> int:
        """Go on where ``checkpoint`` was made, bit for bit; the length. Raises UsageError for one that was closed."""
        return self._ask("resume", checkpoint.number).length

    def cache(self, budget: int) -> None:
        """Let ``bring_to`` keep checkpoints of so many bytes, for all sessions of the process; forgets those of before."""
        self._ask("cache", budget)

    def bring_to(self, tokens: Sequence[int]) -> Brought:
        """Leave the session at a text without reading what it or a checkpoint knows. Raises what ``prefill`` does."""
        return Brought(*self._ask("bring", *token_ids(tokens)).generated)

    def save(self, path: Path) -> None:
        """Write the whole state, in the native harness's own format. Raises OutputError."""
        self._ask("save", str(path))

    def load_state(self, path: Path) -> int:
        """Go on where ``save`` was called, bit for bit; the length. Raises StateFileError."""
        return self._ask("load", str(path)).length

    def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int = 64,
        drafter: Drafter | None = None,
        block_length: int | None = None,
        stats: GenerationStats | None = None,
    ) -> Iterator[int]:
        """Continue ``tokens``, greedily or by ``sample``; the loop runs over there and asks ``drafter`` here for its tokens."""
        if drafter is None:
            return self._generate("plain", tokens, max_new_tokens, block_length, stats)
        context = Context([], Sampler(Sampling()))

        def propose(new: Sequence[int], limit: int) -> Sequence[int]:
            context.tokens += new
            return drafter.propose(context, limit).tokens

        return self._generate("ask", tokens, max_new_tokens, block_length, stats, propose)

    def generate_by(
        self,
        drafter: NativeDrafter,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        block_length: int | None = None,
        stats: GenerationStats | None = None,
    ) -> Iterator[int]:
        """Generate likewise with a drafter of the native harness."""
        return self._generate(drafter, tokens, max_new_tokens, block_length, stats)

    def use_draft_model(self, program: Path) -> None:
        """Load the ``model.pte`` of a draft model. Raises DraftError where it does not load or does not fit."""
        self._ask("draft_model", str(program))

    def set_mask(self, modulus: int) -> None:
        """Let only those tokens come that add up with the text's length to a multiple of ``modulus``; 0: any token."""
        self._ask("mask", modulus)

    def set_clock(self, steps: Sequence[float]) -> None:
        """Let each look at the clock in a generation be some seconds later: by ``steps``, again and again; none: as it is."""
        self._ask("clock", *map(repr, steps))

    def sample(self, sampling: Sampling, noise: int | None = None) -> None:
        """Draw the tokens of all generations from now on, in every session of the process, by ``sampling``.

        noise: the ``Sampler.seed`` of a sampling that has no seed, so that it can be repeated. A generation raises TokenError
        for what makes no distribution.
        """
        use, number = ("noise", noise) if sampling.seed is None else ("seed", sampling.seed)
        assert number is not None, "draws that nobody can repeat show nothing"
        c = sampling
        self._ask("sampling", *map(str, (c.temperature, c.top_k, c.top_p, c.min_p, c.repetition_penalty, use, number)))

    def _generate(
        self,
        drafter: str,
        tokens: Sequence[int],
        most: int,
        block_length: int | None,
        stats: GenerationStats | None,
        propose: Draft | None = None,
    ) -> Iterator[int]:
        answer = self._ask("generate", most, block_length or 0, drafter, *token_ids(tokens), propose=propose)
        proposed, accepted, verifies, rollbacks, *new = answer.generated
        if stats is not None:
            stats.prompt_tokens, stats.new_tokens = len(tokens), len(new)
            stats.proposed, stats.accepted, stats.verifies, stats.rollbacks = proposed, accepted, verifies, rollbacks
        return iter(new)

    def _ask(self, operation: str, *words: int | str, propose: Draft | None = None) -> Answer:
        answer = self._process.ask(" ".join(map(str, (self._index, operation, *words))), propose)
        self.length = answer.length
        if answer.refused:
            raise _error(operation, answer.refused)
        return answer


def _error(operation: str, reason: str) -> HybridgeError:
    if reason == NOT_FINITE:
        return NumericalError(f"the native harness gave logits in {operation!r} that are NaN or infinite.")
    if reason in FAILED or (reason == CHANGED and operation != "load"):
        return ArtifactError(f"the program failed in {operation!r}: {reason}.")
    kind = CapacityError if reason == "Error::OutOfResources" else ERRORS[operation]
    return kind(f"the native harness refused {operation!r}: {reason}.")
