"""A Session drives one artifact: tokens in, logits out, and a state that can be taken back."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hybridge.cache.errors import CapacityError, CommitError, SnapshotError, TokenError, UsageError
from hybridge.runtime.artifact import Artifact, open_artifact
from hybridge.runtime.backends import load_program
from hybridge.runtime.committed_text import CommittedText
from hybridge.runtime.drafter import Drafter
from hybridge.runtime.generate import Until, generate
from hybridge.runtime.generation_stats import GenerationStats
from hybridge.runtime.manifest import shorter_verify
from hybridge.runtime.pace import Pace
from hybridge.runtime.protocols import Description, Methods
from hybridge.runtime.sampling import Sampling
from hybridge.runtime.state_file import SavedState, read_state, write_state

Tokens = Sequence[int] | Tensor


class Session:
    """The state of one sequence over one artifact.

    Every method either does what it says or raises an error and leaves the state as it was. Logits come back as float32 tensors
    that belong to the caller. Any call after ``verify`` other than ``commit`` drops the verified block. An interrupt (Ctrl-C)
    in the middle of a call leaves the session usable: the call then either happened or did not.
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
        self.note = ""
        """What was noted in the state that was loaded last."""
        self._paces: dict[int, tuple[Drafter, Pace]] = {}
        self._program = program
        self._fixed_shapes = options.fixed_shapes
        self._text = CommittedText()
        self._staged: list[int] = []
        self.reset()  # the runtime does not promise what fresh state memory holds

    @classmethod
    def load(cls, folder: str | Path) -> Session:
        """Open an artifact after checking sizes, hashes and the program.

        Raises ArtifactError, saying what is wrong with the folder.
        """
        return cls.of(open_artifact(folder))

    @classmethod
    def of(cls, artifact: Artifact) -> Session:
        """A session over an artifact that was opened. Raises ArtifactError where its program is not what it should be."""
        return cls(load_program(artifact), artifact.manifest)

    @property
    def tokens(self) -> list[int]:
        """The committed tokens, a copy."""
        return self._settled().tokens.copy()

    @property
    def slots(self) -> dict[int, list[int]]:
        """The tokens that each snapshot slot was filled with; whether one can still be restored, ``restore`` says."""
        return {slot: tokens.copy() for slot, tokens in self._settled().slots.items()}

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self._settled().tokens)

    @property
    def room(self) -> int:
        """Tokens that can still be committed."""
        return self.max_seq_len - self.length

    def prefill(self, tokens: Tokens) -> Tensor:
        """Commit any number of tokens ≥ 1; returns the logits [V] after the last.

        Raises TokenError and CapacityError before anything is done.
        """
        ids = self._checked(tokens)
        hidden = []
        for start in range(0, len(ids), self.prefill_chunk):
            logits = self._extend(ids[start : start + self.prefill_chunk])
            hidden.append(self.hidden)
        self.hidden = torch.cat(hidden)
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
        size = next(length for length in self.verify_lens if length >= len(ids))
        name = "verify" if size == self.verify_len else shorter_verify(size)
        logits = self._run(name, len(ids), padded(ids, size if self._fixed_shapes else len(ids)))
        self._staged = ids
        return logits[0, : len(ids)]

    def commit(self, count: int) -> int:
        """Accept the first ``count`` tokens of the verified block, or none; returns the new length.

        Runs no forward: it replays only the recurrence. Raises CommitError without a block or for more than it has.
        """
        if not self._staged:
            raise CommitError("commit needs a verified block: call verify first, and commit before anything else.")
        if not 0 <= count <= len(self._staged):
            raise CommitError(
                f"the verified block has {len(self._staged)} tokens, so commit takes 0 to {len(self._staged)}, not {count}."
            )
        refused = CommitError("the program refused the commit.")
        return self._move("commit", count, self.length, self._staged[:count], refused)

    def snapshot(self, slot: int) -> int:
        """Keep the committed state in ``slot``; returns its length. Raises SnapshotError for a slot out of range."""
        self._check_slot(slot)
        length = self._move("snapshot", slot, self.length, [], SnapshotError(f"the program refused to fill slot {slot}."))
        self._text.slots[slot] = self.tokens
        return length

    def restore(self, slot: int) -> int:
        """Go back to what ``slot`` keeps; returns the new length.

        Raises SnapshotError for a slot out of range, never filled, or whose positions were overwritten since.
        """
        self._check_slot(slot)
        refused = SnapshotError(
            f"slot {slot} keeps nothing to restore: it was never filled, or tokens were written below its length since "
            "(an earlier snapshot was restored and another way taken)."
        )
        return self._move("restore", slot, 0, self._text.slots.get(slot, []), refused)

    def reset(self) -> int:
        """Empty the state and all slots; returns 0."""
        self._text.coming(0, [])
        self._program.call("reset")
        self._text.arrive()
        self._staged = []
        return 0

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
        stats: GenerationStats | None = None,
    ) -> Iterator[int]:
        """Continue ``tokens`` from the current state; see ``hybridge.runtime.generate``.

        sampling says all that ``temperature`` and ``seed`` say and more, in their place. block_length fixes how many tokens are
        verified at once, which else follows acceptance and costs. eos_ids end a text, the model's own if left out.
        until is called with each other new token, before it is yielded, and makes it the last by answering True.
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
            stats=stats if stats is not None else GenerationStats(),
        )

    def draft(self, hidden: Tensor, following: Sequence[int]) -> list[int]:
        """What the artifact's own drafter guesses to come after ``following``, tokens that followed ``hidden``.

        hidden [n, F]: tapped hidden states of committed tokens since the last call, n ≥ 1; following: the token after each.
        Raises TokenError where the numbers differ. Answers with no tokens where the drafter's own context is full.
        """
        if not 0 < len(hidden) == len(following):
            raise TokenError(
                f"got {len(hidden)} hidden states and {len(following)} tokens; each state needs the token after it."
            )
        taps, last = self.manifest.options.tap_layers, self.hidden.shape[-1] // max(1, len(self.manifest.options.tap_layers))
        hidden = hidden.unflatten(-1, (-1, last))[:, taps.index(-1)]
        ids, early = list(following), max(0, len(following) - self.verify_len)
        for start in range(0, early, self.prefill_chunk):
            end = min(start + self.prefill_chunk, early)
            self._draft("draft_prefill", self.prefill_chunk, hidden[start:end], ids[start:end])
        guesses = self._draft("draft", self.verify_len, hidden[early:], ids[early:])[0].tolist()
        return [] if guesses[0] < 0 else guesses

    def _draft(self, name: str, size: int, hidden: Tensor, ids: list[int]) -> Tensor:
        rows = torch.zeros(1, size, hidden.shape[-1])
        rows[0, : len(ids)] = hidden
        return self._program.call(name, rows, padded(ids, size), number(len(ids)))[0]

    def save(self, path: str | Path, note: str = "") -> None:
        """Write the whole state, slots included, and ``note`` to ``path``; a staged block is not part of it.

        Raises OutputError where it cannot be written; what was at ``path`` then stays.
        """
        text = self._settled()
        write_state(Path(path), self._identity(), SavedState(self._saved_buffers(), text.tokens, text.slots, note))

    def load_state(self, path: str | Path) -> int:
        """Go on where ``save`` was called, bit for bit; returns the length. ``note`` is then what was noted there.

        Raises StateFileError for a file that is damaged or of another artifact; the state then stays as it was.
        """
        text = self._settled()
        buffers = self._saved_buffers()
        saved = read_state(Path(path), self._identity(), buffers)
        self._program.call("commit", number(0))  # drops a block that waits, and is refused without one
        for name, buffer in buffers.items():
            buffer.copy_(saved.buffers[name])
        text.tokens, text.slots, self._staged, self.note = saved.tokens, saved.slots, [], saved.note
        return self.length

    def state(self) -> dict[str, Tensor]:
        """A copy of every buffer of the state by name, for inspection."""
        return {name: tensor.clone() for name, tensor in self._program.state().items()}

    def pace(self, drafter: Drafter) -> Pace:
        """What this session has measured with ``drafter`` so far, one generation after the other."""
        return self._paces.setdefault(id(drafter), (drafter, Pace(self.verify_lens)))[1]

    def _extend(self, ids: list[int]) -> Tensor:
        if self._fixed_shapes and 1 < len(ids) <= self.verify_len < self.prefill_chunk:
            logits = self.verify(ids)[-1]  # a few tokens need no whole chunk
            self.commit(len(ids))
            return logits
        self._text.coming(self.length, ids)
        if len(ids) == 1:
            logits = self._run("decode", 1, torch.tensor([ids]))
        else:
            logits = self._run("prefill", len(ids), padded(ids, self.prefill_chunk), number(len(ids)))
        self._text.arrive()
        return logits[0, 0]

    def _run(self, name: str, count: int, *inputs: Tensor) -> Tensor:
        """Logits of a method that runs ``count`` tokens; their hidden states are kept aside."""
        self._staged = []
        logits, *hidden = self._program.call(name, *inputs)
        if hidden:
            self.hidden = hidden[0][0, :count]
        return logits

    def _move(self, name: str, argument: int, base: int, coming: list[int], refused: Exception) -> int:
        """Run a method that answers with a length; raise ``refused`` for its -1."""
        self._text.coming(base, coming)
        if int(self._program.call(name, number(argument))[0]) < 0:
            self._text.withdraw()
            raise refused
        self._text.arrive()
        self._staged = []
        return self.length

    def _settled(self) -> CommittedText:
        """The text, after an interrupted call too."""
        if self._text.unsettled:
            self._text.settle(int(self._program.state()["length"]))
        return self._text

    def _identity(self) -> str:
        """What a saved state belongs to."""
        if self.manifest.identity is None:
            raise UsageError("only a session over an exported artifact can be saved and loaded.")
        return self.manifest.identity

    def _saved_buffers(self) -> dict[str, Tensor]:
        """The runtime's own memory, without what is staged."""
        return {name: buffer for name, buffer in self._program.state().items() if not _is_staged(name)}

    def _checked(self, tokens: Tokens) -> list[int]:
        ids = [int(token) for token in (tokens.tolist() if isinstance(tokens, Tensor) else tokens)]
        if not ids:
            raise TokenError("got no tokens; give at least one.")
        if wrong := [token for token in ids if not 0 <= token < self.vocab_size]:
            raise TokenError(f"token id {wrong[0]} is outside the vocabulary, 0 to {self.vocab_size - 1}.")
        if len(ids) > self.room:
            raise CapacityError(
                f"{len(ids)} tokens do not fit: {self.length} of max_seq_len = {self.max_seq_len} are used. "
                "Reset the session, or export with a larger --max-seq-len."
            )
        return ids

    def _check_slot(self, slot: int) -> None:
        if not self.snapshot_slots:
            raise SnapshotError("this artifact has no snapshot slots; export with --snapshot-slots.")
        if not 0 <= slot < self.snapshot_slots:
            raise SnapshotError(f"slot {slot} does not exist; this artifact has slots 0 to {self.snapshot_slots - 1}.")


def _is_staged(name: str) -> bool:
    return name.rpartition(".")[2].startswith("staged")


def padded(ids: list[int], size: int) -> Tensor:
    """int64 [1, size]; the padding repeats token 0, which every vocabulary has."""
    return torch.tensor([ids + [0] * (size - len(ids))])


def number(value: int) -> Tensor:
    """int64 [1]."""
    return torch.tensor([value])
