"""A session of the native core: tokens in, logits out, and a state that can be rolled back."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import Array, byref, c_int64, c_size_t
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hybridge.cache.errors import CommitError, DraftError, UsageError
from hybridge.runtime.core.failures import failure, run
from hybridge.runtime.core.generation import DrafterChoice, Generated, Mask, Watcher, Wishes, generate
from hybridge.runtime.core.interface import Floats, Handle, Kept, Status
from hybridge.runtime.core.library import load
from hybridge.runtime.core.model import Model, Owned, integers, not_loaded
from hybridge.runtime.core.refusals import check_block, check_slot, fitting
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.token_ids import Tokens, token_ids

Logits = NDArray[np.float32]
TOKENS_REFUSED = (Status.INVALID_ARGUMENT, Status.NO_ROOM)
GREEDY = Sampling()


class Checkpoint(Owned):
    """A state in memory that any session of its model goes on from, until it is closed.

    nbytes: those of its own; shared_nbytes: those of rows that it has in common with checkpoints of shorter texts.
    """

    def __init__(self, session: Session) -> None:
        handle, kept = Handle(), Kept()
        run("checkpoint_make", session.handle, byref(handle))
        super().__init__(handle.value, "checkpoint_close")
        run("checkpoint_info", self.handle, byref(kept))
        self.length: int = kept.length
        self.nbytes: int = kept.bytes
        self.shared_nbytes: int = kept.shared_bytes


class Session(Owned):
    """A state of its own over a model. Errors leave it as it was, but for NumericalError, after which tokens may be committed.

    One call at a time: another one, of another thread or of the session's own callbacks, raises UsageError. Sessions of one
    model wait for each other. Logits are float32 arrays of the caller's own.
    """

    def __init__(self, model: Model) -> None:
        """Raises ArtifactError where a method of the program does not load: an operator is missing, or memory."""
        handle = Handle()
        if status := load().hybridge_session_open(model.handle, byref(handle)):
            raise not_loaded(model.artifact, failure("session_open", status))
        super().__init__(handle.value, "session_close")
        self.model, self.manifest = model, model.manifest
        self.max_seq_len, self.vocab_size, self.prefill_chunk = model.max_seq_len, model.vocab_size, model.prefill_chunk
        self.verify_len, self.verify_lens, self.snapshot_slots = model.verify_len, model.verify_lens, model.snapshot_slots

    @property
    def tokens(self) -> list[int]:
        """Return the committed tokens."""
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

    def slot(self, number: int) -> list[int]:
        """Return the tokens that a snapshot slot keeps, none where it keeps nothing. Raises SnapshotError."""
        check_slot(number, self.snapshot_slots)
        return integers("slot_tokens", self.handle, number)

    def prefill(self, tokens: Tokens) -> Logits:
        """Commit any number of tokens; logits [V] after the last. Raises TokenError, CapacityError and NumericalError."""
        ids, logits = self._ids(tokens), np.empty(self.vocab_size, np.float32)
        self._extend("prefill", ids, ids, len(ids), logits.ctypes.data_as(Floats))
        return logits

    def decode(self, token: int) -> Logits:
        """Commit one token; logits [V] after it. Raises TokenError, CapacityError and NumericalError."""
        ids, logits = self._ids([token]), np.empty(self.vocab_size, np.float32)
        self._extend("decode", ids, ids[0], logits.ctypes.data_as(Floats))
        return logits

    def verify(self, tokens: Tokens) -> Logits:
        """Return logits [n, V] after each of n tokens, 1 ≤ n ≤ verify_len, of which none is committed.

        Raises TokenError, CapacityError and NumericalError.
        """
        ids = self._ids(tokens)
        if len(ids) > self.verify_len:
            fitting(list(ids), self.vocab_size, self.length, self.max_seq_len)
            check_block(list(ids), self.verify_len)
        logits = np.empty((len(ids), self.vocab_size), np.float32)
        self._extend("verify", ids, ids, len(ids), logits.ctypes.data_as(Floats))
        return logits

    def commit(self, count: int) -> int:
        """Accept the first ``count`` verified tokens; the new length. Raises CommitError."""
        if not isinstance(count, int) or not 0 <= count <= self.verify_len:
            raise CommitError(f"commit takes a count from 0 to the length of the verified block, not {count!r}.")
        run("commit", self.handle, count)
        return self.length

    def snapshot(self, slot: int) -> int:
        """Keep the committed state; its length. Raises SnapshotError."""
        check_slot(slot, self.snapshot_slots)
        run("snapshot", self.handle, slot)
        return self.length

    def restore(self, slot: int) -> int:
        """Go back to what ``slot`` keeps; the new length. Raises SnapshotError."""
        check_slot(slot, self.snapshot_slots)
        run("restore", self.handle, slot)
        return self.length

    def reset(self) -> int:
        """Empty the state and all slots; returns 0."""
        run("reset", self.handle)
        return 0

    def checkpoint(self) -> Checkpoint:
        """Return the committed state, which copies what the text added to this session's checkpoint before."""
        return Checkpoint(self)

    def resume(self, checkpoint: Checkpoint) -> int:
        """Continue where ``checkpoint`` was made, with empty slots; the length. Raises UsageError for a closed one."""
        run("resume", self.handle, checkpoint.handle)
        return self.length

    def bring_to(self, tokens: Tokens) -> int:
        """Leave the session at a text, without reading what it or a checkpoint of ``Model.cache`` has: so many tokens.

        Raises TokenError, CapacityError and NumericalError; the session is then at a beginning of the text.
        """
        ids, known = self._ids(tokens), c_size_t()
        fitting(list(ids), self.vocab_size, 0, self.max_seq_len)
        run("bring_to", self.handle, ids, len(ids), byref(known))
        return known.value

    def save(self, path: Path | str) -> None:
        """Write the whole state, slots included, in the core's own format. Raises OutputError."""
        run("save", self.handle, os.fsencode(path))

    def load_state(self, path: Path | str) -> int:
        """Go on where ``save`` was called, bit for bit; the length. Raises StateFileError."""
        run("load", self.handle, os.fsencode(path))
        return self.length

    def keep_hidden(self, wanted: bool) -> None:
        """Keep the hidden states of what is committed from now on, for ``draft``."""
        run("keep_hidden", self.handle, wanted)

    def draft(self, following: int, limit: int) -> list[int]:
        """Propose at most ``limit`` tokens behind ``following``, by the drafter inside the model. Raises DraftError."""
        if limit < 1:
            raise DraftError(f"a limit of {limit} leaves no room for draft tokens; give 1 or more.")
        token, tokens, count = self._ids([following])[0], (c_int64 * min(limit, self.max_seq_len))(), c_size_t()
        run("draft", self.handle, token, tokens, len(tokens), byref(count))
        return tokens[: count.value]

    def generate(
        self,
        tokens: Tokens,
        *,
        max_new_tokens: int = 64,
        drafter: DrafterChoice = None,
        block_length: int | None = None,
        sampling: Sampling = GREEDY,
        on_token: Watcher | None = None,
        on_read: Callable[[int], object] | None = None,
        mask: Mask | None = None,
        clock: Callable[[], float] | None = None,
        noise: int | None = None,
    ) -> Generated:
        """Continue ``tokens`` by at most ``max_new_tokens``; the session's text then ends just before the last of them.

        An end-of-sequence token, a full context, ``on_token`` and ``cancel`` end it earlier. What a callback raises ends it
        too and is raised from here, as is KeyboardInterrupt: tokens that were given before that stay in the text, and of a
        prompt that was not read to its end nothing does.

        Args:
            block_length: tokens that are verified at once, the known one included; None: what is measured to be fastest.
            on_read: called between two chunks of the prompt, with the number of its tokens that are read.
            mask: decides what each token may be, draft tokens that are verified included.
            clock: seconds, by which block lengths are chosen; for tests, as is noise, the seed of a sampling without one.

        Raises UsageError, TokenError, CapacityError, NumericalError, and DraftError for a draft model that does not fit.
        """
        if max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {max_new_tokens}, but must be at least 1.")
        if block_length is not None and not 1 <= block_length <= self.verify_len:
            raise UsageError(f"block_length is {block_length}, but must lie between 1 and the artifact's {self.verify_len}.")
        if isinstance(drafter, Model):
            self._check_draft_model(drafter)
        if drafter == "own" and not self.model.draft_len:
            raise DraftError("this model has no drafter inside it; export it with one.")
        if isinstance(drafter, str) and drafter not in ("lookup", "own"):
            raise UsageError(f"the drafter is {drafter!r}; give 'lookup', 'own', a Model, a function, or None.")
        ids = self._ids(tokens)
        wishes = Wishes(
            max_new_tokens=min(max_new_tokens, self.max_seq_len + 1),
            block_length=block_length,
            drafter=drafter,
            sampling=sampling,
            on_token=on_token,
            on_read=on_read,
            mask=mask,
            clock=clock,
            noise=noise,
        )
        fitting(list(ids), self.vocab_size, self.length, self.max_seq_len)
        return generate(self.handle, ids, wishes)

    def cancel(self) -> None:
        """End the generation that runs in this session, from any thread: behind its next token or chunk of its prompt."""
        run("cancel", self.handle)

    def _check_draft_model(self, draft: Model) -> None:
        if draft.vocab_size != self.vocab_size:
            raise DraftError(
                f"the draft model has {draft.vocab_size} tokens and the target {self.vocab_size}; use one that was trained "
                "with the target's tokenizer."
            )
        if draft.snapshot_slots < 1:
            raise DraftError("the draft model has no snapshot slots to go back by; export it with --snapshot-slots 1.")

    def _ids(self, tokens: Tokens) -> Array[c_int64]:
        """Return token ids as the core takes them, one of more than 64 bits as one outside any vocabulary."""
        ids = token_ids(tokens)
        return (c_int64 * len(ids))(*(token if -(2**63) <= token < 2**63 else -1 for token in ids))

    def _extend(self, call: str, ids: Array[c_int64], *arguments: object) -> None:
        """Run tokens. Where the core refuses them, say why in the words of the checks that it made."""
        status = getattr(load(), f"hybridge_{call}")(self.handle, *arguments)
        if status in TOKENS_REFUSED:
            fitting(list(ids), self.vocab_size, self.length, self.max_seq_len)
        if status:
            raise failure(call, status)
