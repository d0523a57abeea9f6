"""A Session drives one model: tokens in, logits out, and a state that can be rolled back."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from ctypes import Array, byref, c_int64, c_size_t, create_string_buffer
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.ctypeslib import as_array
from numpy.typing import ArrayLike, NDArray

from hybridge.cache.errors import CommitError, DraftError, StateFileError, TokenError, UsageError
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.core import interface
from hybridge.runtime.core.checkpoint import Checkpoint
from hybridge.runtime.core.drafters import BlockDrafter, Drafter, DraftModel, check_draft
from hybridge.runtime.core.generation import Constraint, Generation, GenerationArguments, Until, Watch, signals_wait
from hybridge.runtime.core.interface import ArrayStruct, Floats, Handle, Status
from hybridge.runtime.core.library import failure, load, run
from hybridge.runtime.core.model import Model, Owned, integers, not_loaded
from hybridge.runtime.core.programs import Program, seen
from hybridge.runtime.core.sampling import Sampling, Tokens, check_block, check_slot, fitting, token_ids
from hybridge.runtime.core.statistics import GenerationStats

Logits = NDArray[np.float32]
TOKENS_REFUSED = (Status.INVALID_ARGUMENT, Status.NO_ROOM)


@dataclass(frozen=True)
class DraftNoise:
    """Draw draft tokens from softmax(scores / temperature) by noise in [0, 1), one number for each."""

    noise: Sequence[float]
    temperature: float


@dataclass(frozen=True)
class Drafted:
    """Draft tokens, none where the drafter's context is full.

    confidences: the drafter's own estimate that each is right if those before it are. scores float32 [n, C], if they were
    drawn: what each was chosen by; of the candidates int64 [n, C], or [1, C] where they are the same for all, or of all tokens.
    """

    tokens: list[int]
    confidences: list[float]
    scores: NDArray[np.float32] | None = None
    candidates: NDArray[np.int64] | None = None


class Session(Owned):
    """The state of one sequence over one model.

    Every method either does what it says or raises an error and leaves the state as it was, but for NumericalError, after which
    tokens may be committed: ``tokens`` says. Logits are float32 arrays of the caller's own. Any call after ``verify`` other
    than ``commit`` drops the verified block. Ctrl-C ends a generation between two tokens, and nothing in the middle of a call.
    One call at a time: another one, of another thread or of the session's own callbacks, raises UsageError. Sessions of one
    model wait for each other.
    """

    def __init__(self, model: Model) -> None:
        """Open a session. Raises ArtifactError if a method does not load, because an operator or memory is missing."""
        handle = Handle()
        if status := load().hybridge_session_open(model.handle, byref(handle)):
            raise model.raised() or not_loaded(model, failure("session_open", status))
        super().__init__(handle.value, "session_close")
        self.model, self.manifest, self.generations = model, model.manifest, 0
        self.max_seq_len, self.vocab_size, self.prefill_chunk = model.max_seq_len, model.vocab_size, model.prefill_chunk
        self.verify_len, self.verify_lens, self.snapshot_slots = model.verify_len, model.verify_lens, model.snapshot_slots
        self._block = 0  # tokens of the last verified block

    @classmethod
    def load(cls, folder: str | Path, *, private_copy: bool = False) -> Session:
        """Open an artifact after checking sizes, hashes and the program.

        Its program is mapped: a change of the file is noticed at the next call, which raises ArtifactError. private_copy keeps
        it in memory of its own instead, for folders that others may write to; see ``open_artifact``.
        Raises ArtifactError, saying what is wrong with the folder.
        """
        return cls.of(open_artifact(folder, private_copy=private_copy))

    @classmethod
    def of(cls, artifact: Artifact) -> Session:
        """Make a session over an artifact that was opened. Raises ArtifactError if its program is not what it should be.

        Several sessions over one copy of the weights are those of one ``Model``.
        """
        return cls(Model.open(artifact))

    @classmethod
    def over(cls, program: Program, manifest: Description) -> Session:
        """Make a session over a program in Python."""
        return cls(Model.over(program, manifest))

    @property
    def tokens(self) -> list[int]:
        """Return the committed tokens, a copy."""
        return integers("tokens", self.handle)

    @property
    def length(self) -> int:
        """Return how many tokens are committed."""
        count = c_size_t()
        run("tokens", self.handle, None, 0, byref(count))
        return count.value

    @property
    def room(self) -> int:
        """Return how many tokens can still be committed."""
        return self.max_seq_len - self.length

    @property
    def slots(self) -> dict[int, list[int]]:
        """Return the tokens that each snapshot slot was filled with; whether one can still be restored, ``restore`` says."""
        kept = {slot: integers("slot_tokens", self.handle, slot) for slot in range(self.snapshot_slots)}
        return {slot: tokens for slot, tokens in kept.items() if tokens}

    @property
    def note(self) -> str:
        """Return what was noted in the state that was loaded last."""
        size = c_size_t()
        run("note", self.handle, None, 0, byref(size))
        note = create_string_buffer(size.value)
        run("note", self.handle, note, size.value, byref(size))
        return note.raw.decode(errors="replace")

    @property
    def hidden(self) -> NDArray[np.float32]:
        """Return the tapped hidden states [n, F] of the last call's tokens, where the artifact has --tap-layers."""
        rows, width, first = c_size_t(), c_size_t(), Floats()
        run("hidden", self.handle, byref(first), byref(rows), byref(width))
        shape = rows.value, width.value
        return as_array(first, shape).copy() if first and rows.value else np.empty(shape, np.float32)

    def prefill(self, tokens: Tokens) -> Logits:
        """Commit any number of tokens ≥ 1; returns the logits [V] after the last.

        Raises TokenError and CapacityError before anything is done, and NumericalError for logits that are NaN or infinite.
        """
        ids, logits = self._ids(tokens), np.empty(self.vocab_size, np.float32)
        self._extend("prefill", ids, ids, len(ids), logits.ctypes.data_as(Floats))
        return logits

    def decode(self, token: int) -> Logits:
        """Commit one token; returns the logits [V] after it. Raises TokenError, CapacityError and NumericalError."""
        ids, logits = self._ids([token]), np.empty(self.vocab_size, np.float32)
        self._extend("decode", ids, ids[0], logits.ctypes.data_as(Floats))
        return logits

    def verify(self, tokens: Tokens) -> Logits:
        """Return logits [n, V] after each of n tokens, 1 ≤ n ≤ ``verify_len``, without committing any.

        Raises TokenError for too many or none, CapacityError where they do not fit, NumericalError like ``prefill``.
        """
        ids = self._ids(tokens)
        if len(ids) > self.verify_len:
            fitting(list(ids), self.vocab_size, self.length, self.max_seq_len)
            check_block(list(ids), self.verify_len)
        logits = np.empty((len(ids), self.vocab_size), np.float32)
        self._extend("verify", ids, ids, len(ids), logits.ctypes.data_as(Floats))
        self._block = len(ids)
        return logits

    def commit(self, count: int) -> int:
        """Accept the first ``count`` tokens of the verified block, or none; returns the new length.

        Runs no forward: it replays only the recurrence. Raises CommitError without a block or for more than it has.
        """
        possible = type(count) is int and 0 <= count <= self.verify_len
        status = self._call("commit", count if possible else -1)
        if status == Status.INVALID_ARGUMENT:
            block = self._block
            raise CommitError(f"the verified block has {block} tokens, so commit takes 0 to {block}, not {count!r}.")
        if status:
            raise self.model.reason("commit", status)
        return self.length

    def snapshot(self, slot: int) -> int:
        """Keep the committed state in ``slot``; returns its length. Raises SnapshotError for a slot out of range."""
        check_slot(slot, self.snapshot_slots)
        self._run("snapshot", slot)
        return self.length

    def restore(self, slot: int) -> int:
        """Go back to what ``slot`` keeps; returns the new length.

        Raises SnapshotError for a slot out of range, never filled, or whose positions were overwritten since.
        """
        check_slot(slot, self.snapshot_slots)
        self._run("restore", slot)
        return self.length

    def reset(self) -> int:
        """Empty the state and all slots; returns 0."""
        self._run("reset")
        return 0

    def checkpoint(self) -> Checkpoint:
        """Return the committed state, in memory of its own: valid whatever comes after, and for other sessions too.

        Rows by position are copied only from the last checkpoint on that this session made or resumed on its way here, if that
        is still kept. A staged block is not part of it, and goes on waiting.
        """
        handle = Handle()
        self._run("checkpoint_make", byref(handle))
        return Checkpoint(handle.value)

    def read_checkpoint(self, parts: Sequence[bytes], like: Checkpoint | None = None, shared: int = 0) -> Checkpoint:
        """Return the checkpoint of parts (``Checkpoint.part``), whose first ``shared`` segments are those of ``like``.

        Raises StateFileError where no session of this model could have made them.
        """
        views, handle = (interface.PartStruct * len(parts))(), Handle()
        for view, part in zip(views, parts, strict=True):
            view.bytes, view.size = part, len(part)
        self._run("checkpoint_read", like.handle if like else 0, shared, views, len(views), byref(handle))
        return Checkpoint(handle.value)

    def resume(self, checkpoint: Checkpoint) -> int:
        """Go on where ``checkpoint`` was made, bit for bit; returns the length. Slots are empty then.

        Rows by position that the state still has are not written again. Raises UsageError for a checkpoint of another model.
        """
        self._run("resume", checkpoint.handle)
        return self.length

    def generate(
        self,
        tokens: Tokens,
        *,
        max_new_tokens: int = 64,
        drafter: Drafter | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        sampling: Sampling | None = None,
        block_length: int | None = None,
        eos_ids: Collection[int] | None = None,
        until: Until | None = None,
        watch: Watch | None = None,
        constraint: Constraint | None = None,
        stats: GenerationStats | None = None,
        clock: Callable[[], float] | None = None,
        noise: int | None = None,
    ) -> Iterator[int]:
        """Yield up to ``max_new_tokens`` tokens that continue ``tokens``; an end-of-sequence token is the last one.

        Greedy output is the same with any drafter and without one. With a temperature the distribution is the model's own.

        Starts from the session's state and stops early where the context is full. Leave the session alone while the generator
        waits: another change of its text ends it. Once it is closed or done, the session's text ends just before the last token
        that it has yielded, wherever that was.

        Args:
            sampling: replaces ``temperature`` and ``seed`` and has more options.
            block_length: tokens that are verified at once, which else follows acceptance and costs.
            eos_ids: end a text, the model's own if left out.
            until: called with each other new token, before it is yielded, and makes it the last by answering True.
            watch: called with each new token and its logits, once they are there.
            constraint: a fresh one, which decides what each token may be; the tokens that it forces are draft tokens, with a
                drafter and without.
            clock: seconds, by which block lengths are chosen; for tests, as is noise, the seed of a sampling without one.

        Raises UsageError, TokenError and CapacityError before the first token. NumericalError may come at any: the session's
        text then says whether the last token that was yielded is committed. What a function raises ends it, too.
        """
        self._check_arguments(max_new_tokens, drafter, block_length)
        ids = self._ids(tokens)
        if not len(ids):
            raise TokenError("the prompt is empty; give at least one token.")
        fitting(list(ids), self.vocab_size, self.length, self.max_seq_len)
        arguments = GenerationArguments(
            max_new_tokens=min(max_new_tokens, self.max_seq_len + 1),
            block_length=block_length,
            drafter=drafter,
            sampling=sampling or Sampling(temperature=temperature, seed=seed),
            ends=frozenset(self.manifest.eos_ids if eos_ids is None else eos_ids),
            until=until,
            watch=watch,
            constraint=constraint,
            stats=stats if stats is not None else GenerationStats(),
            clock=clock,
            noise=noise,
        )
        return Generation(self, ids, arguments).tokens()

    def keep_hidden(self, wanted: bool) -> None:
        """Keep the hidden states of what is committed from now on, for the drafter of the next generation."""
        self._run("keep_hidden", wanted)

    def draft(
        self, hidden: ArrayLike, following: Sequence[int], *, limit: int | None = None, draws: DraftNoise | None = None
    ) -> Drafted:
        """Propose tokens to come after ``following``, tokens that followed ``hidden``, by the artifact's own drafter.

        hidden [n, F]: tapped hidden states of committed tokens since the last call, n ≥ 1; following: the token after each.
        limit: most draft tokens; as many as the drafter proposes if it is left out. draws: how they are drawn by a drafter that
        samples; left out, they are its best.
        Raises TokenError where the numbers differ, DraftError without a drafter. Answers with no tokens where the drafter's own
        context is full.
        """
        rows, ids = np.ascontiguousarray(hidden, np.float32), self._ids(following)
        if rows.ndim != 2 or not 0 < len(rows) == len(ids):
            raise TokenError(f"{len(rows)} hidden states and {len(ids)} tokens; each state needs the token after it.")
        self._check_drafter()
        limit = self.model.draft_len if limit is None else limit
        if limit < 1:
            raise DraftError(f"a limit of {limit} leaves no room for draft tokens; give 1 or more.")
        noise = np.zeros(limit, np.float32) if draws is not None else None
        if draws is not None and noise is not None:
            noise[: len(draws.noise)] = draws.noise[:limit]
        found = interface.DraftedStruct()
        self._run(
            "draft", rows.ctypes.data_as(Floats), *rows.shape, ids, limit,
            noise.ctypes.data_as(Floats) if noise is not None else None, draws.temperature if draws else 0.0, byref(found),
        )  # fmt: skip
        return _drafted(found)

    def save(self, path: str | Path, note: str = "") -> None:
        """Write the whole state, slots included, and ``note`` to ``path``; a staged block is not part of it.

        Raises OutputError where it cannot be written; what was at ``path`` then stays.
        """
        self._check_artifact()
        self._run("save", os.fsencode(path), note.encode())

    def load_state(self, path: str | Path) -> int:
        """Go on where ``save`` was called, bit for bit; returns the length. ``note`` is then what was noted there.

        Raises StateFileError for a file that is damaged or of another artifact; the state then stays as it was.
        """
        self._check_artifact()
        try:
            self._run("load", os.fsencode(path))
        except StateFileError as error:
            raise StateFileError(f"{path}: {error}") from None
        return self.length

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return a copy of every buffer of the state by name, for inspection."""
        count = c_size_t()
        run("buffers", self.handle, None, 0, byref(count))
        views = (ArrayStruct * count.value)()
        self._run("buffers", views, count.value, byref(count))
        return {view.name.decode(): seen(view).copy() for view in views}

    def cancel(self) -> None:
        """End the generation that runs in this session, from any thread: behind its next token or chunk of its prompt."""
        run("cancel", self.handle)

    def _check_artifact(self) -> None:
        """Raise UsageError over a program in Python: a saved state belongs to an artifact, which is identified by its hash."""
        if self.manifest.identity is None:
            raise UsageError("only a session over an exported artifact can be saved and loaded.")

    def _check_arguments(self, max_new_tokens: int, drafter: Drafter | None, block_length: int | None) -> None:
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {max_new_tokens}, but must be at least 1.")
        if drafter is not None and self.verify_len < 2:
            raise UsageError(
                "this artifact verifies one token at a time, which leaves no room for draft tokens; "
                "export with --verify-len 2 or more, or generate without a drafter."
            )
        if block_length is not None and not 2 <= block_length <= self.verify_len:
            raise UsageError(f"block_length is {block_length}, but must lie between 2 and the artifact's {self.verify_len}.")
        if isinstance(drafter, DraftModel):
            check_draft(drafter.model, self.model)
        if isinstance(drafter, BlockDrafter):
            self._check_drafter()

    def _check_drafter(self) -> None:
        if not self.model.draft_len:
            raise DraftError("this artifact has no drafter of its own; export it again with --drafter or --mtp.")

    def _ids(self, tokens: Tokens) -> Array[c_int64]:
        """Return token ids as the core takes them, one of more than 64 bits as one outside any vocabulary."""
        ids = token_ids(tokens)
        return (c_int64 * len(ids))(*(token if -(2**63) <= token < 2**63 else -1 for token in ids))

    def _run(self, call: str, *arguments: object) -> None:
        """Call a function of the core on this session. Raises what a program in Python has raised, or the core refuses."""
        if status := self._call(call, *arguments):
            raise self.model.reason(call, status)

    def _extend(self, call: str, ids: Array[c_int64], *arguments: object) -> None:
        """Run tokens. Where the core refuses them, say why in the words of the checks that it made."""
        status = self._call(call, *arguments)
        if status in TOKENS_REFUSED:
            fitting(list(ids), self.vocab_size, self.length, self.max_seq_len)
        if status:
            raise self.model.reason(call, status)

    def _call(self, call: str, *arguments: object) -> int:
        """Return the status of a call, which Ctrl-C ends in no program: what its handler raises comes behind it."""
        function: Callable[..., int] = getattr(load(), f"hybridge_{call}")
        if self.model.program is None:
            return function(self.handle, *arguments)
        with signals_wait(lambda error: None):
            return function(self.handle, *arguments)


def _drafted(found: interface.DraftedStruct) -> Drafted:
    """Return what the core points to, in memory of its own."""
    count, width = found.count, found.width
    if not count:
        return Drafted([], [])
    scores = as_array(found.scores, (count, width)).copy() if found.scores else None
    rows = 1 if found.shared_candidates else count
    candidates = as_array(found.candidates, (rows, width)).copy() if found.candidates else None
    return Drafted(found.tokens[:count], found.confidences[:count], scores, candidates)
