"""A Session drives one artifact: tokens in, logits out, and a state that can be rolled back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hybridge.cache.errors import CommitError, DraftError, SnapshotError, TokenError, UsageError
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.artifacts.options import Description
from hybridge.runtime.backends.load import load_program
from hybridge.runtime.backends.methods import Methods
from hybridge.runtime.core.refusals import check_block, check_commit, check_slot, fitting
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.token_ids import Tokens, token_ids
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.generation.drafter import Drafter
from hybridge.runtime.generation.generate import Until, generate
from hybridge.runtime.generation.pace import Pace
from hybridge.runtime.generation.paces import Paces
from hybridge.runtime.generation.sampling import Watch
from hybridge.runtime.generation.stats import GenerationStats
from hybridge.runtime.sessions.checkpoint import Checkpoint, Lineage, make_checkpoint
from hybridge.runtime.sessions.checkpoint_file import Layout
from hybridge.runtime.sessions.committed_text import Change, CommittedText
from hybridge.runtime.sessions.draft_runner import Drafted, DraftRunner, Draws
from hybridge.runtime.sessions.one_thread import OneThread
from hybridge.runtime.sessions.row_buffers import LENGTH, RowBuffer, row_buffers
from hybridge.runtime.sessions.saved_state import SavedState
from hybridge.runtime.sessions.state_file import read_state, write_state
from hybridge.runtime.sessions.transactions import Transactions
from hybridge.runtime.sessions.unfinished import PutBack, Reset, Resume


class Session:
    """The state of one sequence over one artifact.

    Every method either does what it says or raises an error and leaves the state as it was. Logits come back as float32 tensors
    that belong to the caller. Any call after ``verify`` other than ``commit`` drops the verified block. An interrupt (Ctrl-C)
    in the middle of a call leaves the session usable: the call then either happened or did not. One thread at a time may call;
    another one gets a UsageError.
    """

    def __init__(self, program: Methods, manifest: Description) -> None:
        options = manifest.options
        self.manifest = manifest
        self.max_seq_len = options.max_seq_len
        self.prefill_chunk = options.prefill_chunk
        self.verify_len = options.verify_len
        self.verify_lens = options.verify_lens
        self.snapshot_slots = options.snapshot_slots
        self.vocab_size = manifest.vocab_size
        self.hidden = torch.empty(0, 0)
        """Tapped hidden states [n, F] of the last call's tokens, where the artifact was exported with --tap-layers."""
        self._paces = Paces(options.verify_lens)
        self._drafts = DraftRunner(options, manifest.drafter) if manifest.drafter is not None else None
        self._transactions = Transactions(program, options)
        self._alone = OneThread()
        self.reset()  # the runtime does not promise what fresh state memory holds

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
        """Make a session over an artifact that was opened. Raises ArtifactError if its program is not what it should be."""
        return cls(load_program(artifact), artifact.manifest)

    @property
    def tokens(self) -> list[int]:
        """Return the committed tokens, a copy."""
        with self._alone:
            return self._transactions.text().tokens.copy()

    @property
    def slots(self) -> dict[int, list[int]]:
        """Return the tokens that each snapshot slot was filled with; whether one can still be restored, ``restore`` says."""
        with self._alone:
            return {slot: tokens.copy() for slot, tokens in self._transactions.text().slots.items()}

    @property
    def length(self) -> int:
        """Return the number of committed tokens."""
        with self._alone:
            return len(self._transactions.text().tokens)

    @property
    def room(self) -> int:
        """Return how many tokens can still be committed."""
        return self.max_seq_len - self.length

    @property
    def note(self) -> str:
        """Return what was noted in the state that was loaded last."""
        with self._alone:
            return self._transactions.text().note

    def prefill(self, tokens: Tokens) -> Tensor:
        """Commit any number of tokens ≥ 1; returns the logits [V] after the last.

        Raises TokenError and CapacityError before anything is done, and NumericalError for logits that are NaN or infinite. The
        state is then as it was, but for tokens that one call of the program committed: it says which of the two.
        """
        with self._alone:
            return self._extend(tokens)

    def decode(self, token: int) -> Tensor:
        """Commit one token; returns the logits [V] after it. Raises TokenError, CapacityError and NumericalError."""
        with self._alone:
            return self._extend([token])

    def verify(self, tokens: Tokens) -> Tensor:
        """Return logits [n, V] after each of n tokens, 1 ≤ n ≤ ``verify_len``, without committing any.

        Raises TokenError for too many or none, CapacityError where they do not fit, NumericalError like ``prefill``.
        """
        with self._alone:
            ids = fitting(tokens, self.vocab_size, len(self._transactions.text().tokens), self.max_seq_len)
            check_block(ids, self.verify_len)
            logits, self.hidden = self._transactions.verify(ids)
            return logits

    def commit(self, count: int) -> int:
        """Accept the first ``count`` tokens of the verified block, or none; returns the new length.

        Runs no forward: it replays only the recurrence. Raises CommitError without a block or for more than it has.
        """
        with self._alone:
            text = self._transactions.text()
            check_commit(count, text.staged)
            change = Change(base=len(text.tokens), tokens=text.staged[:count])
            return self._transactions.move("commit", count, change, CommitError("the program refused the commit."))

    def snapshot(self, slot: int) -> int:
        """Keep the committed state in ``slot``; returns its length. Raises SnapshotError for a slot out of range."""
        with self._alone:
            text = self._transactions.text()
            check_slot(slot, self.snapshot_slots)
            change = Change(base=len(text.tokens), slot=slot)
            return self._transactions.move("snapshot", slot, change, SnapshotError(f"the program refused to fill slot {slot}."))

    def restore(self, slot: int) -> int:
        """Go back to what ``slot`` keeps; returns the new length.

        Raises SnapshotError for a slot out of range, never filled, or whose positions were overwritten since.
        """
        with self._alone:
            text = self._transactions.text()
            check_slot(slot, self.snapshot_slots)
            refused = SnapshotError(
                f"slot {slot} keeps nothing to restore: it was never filled, or tokens were written below its length since "
                "(an earlier snapshot was restored and another way taken)."
            )
            tokens = text.slots.get(slot, [])
            # A drafter's rows may be others than those of the slot: which ones it had is known to no one.
            back_to = len(tokens) if self.manifest.drafter is None else 0
            return self._transactions.move("restore", slot, Change(base=0, tokens=tokens, back_to=back_to), refused)

    def reset(self) -> int:
        """Empty the state and all slots; returns 0."""
        with self._alone:
            return len(self._transactions.become(Reset()).tokens)

    def checkpoint(self) -> Checkpoint:
        """Return the committed state, in memory of its own: valid whatever comes after, and for other sessions too.

        Rows by position are copied only from the last checkpoint on that this session made or resumed on its way here, if that
        is still kept. A staged block is not part of it, and goes on waiting.
        """
        with self._alone:
            text = self._transactions.text()
            state, bounded = self._transactions.program.state(), self._transactions.program.bounded()
            buffers, parent = self._row_buffers(state, bounded), text.lineage.last()
            made = make_checkpoint(self._model(), text.tokens, state, bounded, buffers, parent)
            text.lineage = Lineage(made.segment.chain())
            return made

    def resume(self, checkpoint: Checkpoint) -> int:
        """Go on where ``checkpoint`` was made, bit for bit; returns the length. Slots are empty then.

        Rows by position that the state still has are not written again. Raises UsageError for a checkpoint of another model.
        """
        with self._alone:
            text = self._transactions.text()
            model = self._model()
            if checkpoint.model is not model and (self.manifest.identity is None or checkpoint.model != model):
                raise UsageError("this checkpoint is of another model; resume it in a session over the one that made it.")
            last, ours = text.lineage.last(), set(checkpoint.segment.chain())
            common = [each for each in (last.chain() if last is not None else ()) if each in ours]
            buffers = self._row_buffers(self._transactions.program.state(), self._transactions.program.bounded())
            resume = Resume(checkpoint, common[-1] if common else None, buffers)
            return len(self._transactions.become(resume).tokens)

    def layout(self) -> Layout:
        """Return what this session's checkpoints look like. Raises UsageError without an artifact."""
        with self._alone:
            self._transactions.text()
            state, bounded = self._transactions.program.state(), self._transactions.program.bounded()
            kept = {name: buffer for name, buffer in bounded.items() if name != LENGTH}
            return Layout(self._identity(), self.vocab_size, self.max_seq_len, kept, self._row_buffers(state, bounded))

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
        hidden: Tensor | None = None,
        stats: GenerationStats | None = None,
    ) -> Iterator[int]:
        """Continue ``tokens`` from the current state; see ``hybridge.runtime.generation.generate``.

        sampling replaces ``temperature`` and ``seed`` and has more options. block_length fixes how many tokens are
        verified at once, which else follows acceptance and costs. eos_ids end a text, the model's own if left out.
        until is called with each other new token, before it is yielded, and makes it the last by answering True. watch is
        called with each new token and its logits, once they are there. hidden and constraint: see there.
        """
        return generate(
            self,
            tokens,
            max_new_tokens=max_new_tokens,
            drafter=drafter,
            sampling=sampling or Sampling(temperature=temperature, seed=seed),
            block_length=block_length,
            eos_ids=eos_ids,
            until=until,
            watch=watch,
            constraint=constraint,
            hidden=hidden,
            stats=stats if stats is not None else GenerationStats(),
        )

    def draft(
        self, hidden: Tensor, following: Sequence[int], *, limit: int | None = None, draws: Draws | None = None
    ) -> Drafted:
        """Propose tokens to come after ``following``, tokens that followed ``hidden``, by the artifact's own drafter.

        hidden [n, F]: tapped hidden states of committed tokens since the last call, n ≥ 1; following: the token after each.
        limit: most draft tokens; as many as the drafter proposes if it is left out. draws: how they are drawn by a drafter that
        samples; left out, they are its best.
        Raises TokenError where the numbers differ, DraftError without a drafter. Answers with no tokens where the drafter's own
        context is full.
        """
        following = token_ids(following)
        if not 0 < len(hidden) == len(following):
            raise TokenError(f"{len(hidden)} hidden states and {len(following)} tokens; each state needs the token after it.")
        if self._drafts is None:
            raise DraftError("this artifact has no drafter of its own; export it with --drafter or --mtp.")
        with self._alone, self._transactions.drafting(self._drafts.calls(len(following))):
            return self._drafts.draft(self._transactions.program, hidden, following, limit, draws)

    def save(self, path: str | Path, note: str = "") -> None:
        """Write the whole state, slots included, and ``note`` to ``path``; a staged block is not part of it.

        Raises OutputError where it cannot be written; what was at ``path`` then stays.
        """
        with self._alone:
            text = self._transactions.text()
            write_state(Path(path), self._identity(), SavedState(self._saved_buffers(), text.tokens, text.slots, note))

    def load_state(self, path: str | Path) -> int:
        """Go on where ``save`` was called, bit for bit; returns the length. ``note`` is then what was noted there.

        Raises StateFileError for a file that is damaged or of another artifact; the state then stays as it was.
        """
        with self._alone:
            saved = read_state(Path(path), self._identity(), self._saved_buffers())
            saved.check(self.vocab_size, self.max_seq_len, self.snapshot_slots)
            text = CommittedText(saved.tokens, saved.slots, note=saved.note)
            return len(self._transactions.become(PutBack(saved.buffers, text)).tokens)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of every buffer of the state by name, for inspection."""
        with self._alone:
            self._transactions.text()
            return {name: tensor.clone() for name, tensor in self._transactions.program.state().items()}

    def pace(self, drafter: Drafter) -> Pace:
        """Return what this session has measured with ``drafter`` so far, one generation after the other."""
        return self._paces.of(drafter)

    def _extend(self, tokens: Tokens) -> Tensor:
        """Commit tokens; returns the logits [V] after the last."""
        ids = fitting(tokens, self.vocab_size, len(self._transactions.text().tokens), self.max_seq_len)
        logits, self.hidden = self._transactions.extend(ids)
        return logits[0]

    def _model(self) -> object:
        """Return what checkpoints belong to: the artifact, however often it was opened, else this very model."""
        return self.manifest.identity or self.manifest

    def _row_buffers(self, state: Mapping[str, Tensor], bounded: Mapping[str, Tensor]) -> Mapping[str, RowBuffer]:
        return row_buffers(state, bounded, self.manifest.options)

    def _identity(self) -> str:
        """Return what a saved state belongs to."""
        if self.manifest.identity is None:
            raise UsageError("only a session over an exported artifact can be saved and loaded.")
        return self.manifest.identity

    def _saved_buffers(self) -> dict[str, Tensor]:
        """The runtime's own memory, without what is staged."""
        state = self._transactions.program.state()
        return {name: buffer for name, buffer in state.items() if not name.rpartition(".")[2].startswith("staged")}
