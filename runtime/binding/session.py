"""A session over one model: tokens in, logits out, and a state that can be rolled back."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from ctypes import byref, c_size_t, c_uint32
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.arguments import checked
from hybridge.errors import DraftError, TokenError, UsageError
from hybridge.runtime.artifact.delegates import DELEGATES
from hybridge.runtime.artifact.folder import Artifact, open_artifact
from hybridge.runtime.artifact.model_info import ModelInfo
from hybridge.runtime.binding import interface
from hybridge.runtime.binding.checkpoint import Checkpoint, PrefixCache
from hybridge.runtime.binding.drafters import AutoDrafter, Drafter
from hybridge.runtime.binding.generation import Constraint, Generation, GenerationArguments, Until, Watch, signals_wait
from hybridge.runtime.binding.interface import ArrayStruct, CheckpointHandle, CText, Floats, PromptsReadStruct, SessionHandle
from hybridge.runtime.binding.library import copied_text, failure, load, run
from hybridge.runtime.binding.model import Model, Owned, integers, not_loaded
from hybridge.runtime.binding.pictures import HasIds
from hybridge.runtime.binding.sampling import Sampling, Tokens, core_ids, core_number
from hybridge.runtime.binding.statistics import GenerationStats

if TYPE_CHECKING:  # NumPy takes long to start
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from hybridge.runtime.binding.programs import Program

    Logits = NDArray[np.float32]
else:
    Logits = Any
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DraftNoise:
    """Draw draft tokens from softmax(scores / temperature), each by 32 random bits, which are the noise of its position."""

    noise: Sequence[int]
    temperature: float


@dataclass(frozen=True)
class Drafted:
    """Draft tokens; none if the drafter's context is full.

    Attributes:
        tokens: the draft tokens.
        confidences: the drafter's own estimate that each is right if those before it are.
    """

    tokens: list[int]
    confidences: list[float]


@dataclass(frozen=True)
class PromptsRead:
    """How the prompts of a session were read, in tokens.

    Attributes:
        delegate: the accelerator that the artifact was exported for, and its device, such as ``openvino:CPU``.
        reason: why it is not in use, with the line to install; empty while it is.
        delegate_tokens: tokens that it has read, and rows of pictures that it has encoded.
        cpu_tokens: tokens that the CPU's methods have read.
    """

    delegate: str
    reason: str
    delegate_tokens: int
    cpu_tokens: int


class Session(Owned):
    """The state of one sequence over one model.

    Every method either succeeds or raises an error and leaves the state as it was; only after NumericalError may tokens be
    committed, which ``tokens`` shows. If a call failed in the middle and could not be undone, every other one raises
    BrokenStateError until the session is reset, or a state is restored, resumed or loaded. Logits are new float32 arrays. Any
    call after ``verify`` other than ``commit`` drops the verified block. Ctrl-C ends a generation between two tokens, and never
    interrupts a call. A second call meanwhile, from another thread or from the session's own callbacks, raises UsageError.
    Sessions of one model take turns, a round of a generation or a chunk of a prompt at a time; properties and ``close`` never
    wait for another session.
    """

    @checked
    def __init__(self, model: Model) -> None:
        """Open a session. Raises ArtifactError if a method does not load, because an operator or memory is missing."""
        handle = SessionHandle()
        if status := load().hybridge_session_open(model.handle, byref(handle)):
            raise model.raised() or not_loaded(model, failure(status))
        super().__init__(handle, "session_close")
        self.model, self.manifest, self.generations = model, model.manifest, 0
        self.max_seq_len, self.vocab_size, self.prefill_chunk = model.max_seq_len, model.vocab_size, model.prefill_chunk
        self.verify_len, self.verify_lens, self.snapshot_slots = model.verify_len, model.verify_lens, model.snapshot_slots

    @classmethod
    @checked
    def load(
        cls, folder: str | Path, *, private_copy: bool = False, context: int | None = None, strict_reuse: bool = False
    ) -> Session:
        """Open an artifact after checking sizes, hashes and the program.

        Args:
            folder: the artifact.
            private_copy: copy the program into memory, for a folder that others may write to; see ``open_artifact``. Otherwise
                it is mapped, and the next call after a change of the file raises ArtifactError.
            context: most tokens of a text, fewer than the artifact holds; as many as it holds if left out.
            strict_reuse: continue from a checkpoint or a saved state only if each run of its tokens was read by the method that
                reads so many now, the accelerator's or the CPU's. Others are read again; ``resume`` and ``load_state`` raise
                UsageError for them.

        Raises:
            ArtifactError: the folder is no artifact, or damaged.
            UsageError: the artifact does not hold a context of as many tokens.
        """
        return cls.of(open_artifact(folder, private_copy=private_copy), context, strict_reuse=strict_reuse)

    @classmethod
    @checked
    def of(cls, artifact: Artifact, context: int | None = None, *, strict_reuse: bool = False) -> Session:
        """Make a session over an open artifact, with a context and ``strict_reuse`` as in ``load``.

        Raises ArtifactError if its program is not what the manifest says. Sessions of one ``Model`` share one copy of the
        weights.
        """
        return cls(Model.open(artifact, context, strict_reuse=strict_reuse))

    @classmethod
    def over(cls, program: Program, manifest: ModelInfo) -> Session:
        """Make a session over a program in Python."""
        return cls(Model.over(program, manifest))

    @property
    def tokens(self) -> list[int]:
        """Return a copy of the committed tokens."""
        return integers("tokens", self.handle)

    @property
    def length(self) -> int:
        """Return the number of committed tokens."""
        count = c_size_t()
        run("tokens", self.handle, None, 0, byref(count))
        return count.value

    @property
    def room(self) -> int:
        """Return the number of tokens that can still be committed."""
        return self.max_seq_len - self.length

    @property
    def slots(self) -> dict[int, list[int]]:
        """Return the tokens that each snapshot slot was filled with; ``restore`` refuses a slot that was overwritten since."""
        kept = {slot: integers("slot_tokens", self.handle, slot) for slot in range(self.snapshot_slots)}
        return {slot: tokens for slot, tokens in kept.items() if tokens}

    @property
    def prompts_read(self) -> PromptsRead | None:
        """Return how prompts were read: by the artifact's accelerator and by the CPU; None for an artifact without one."""
        options = self.manifest.options
        if options.delegate == "none" or not isinstance(self.model.artifact, Artifact):
            return None
        found, size = PromptsReadStruct(), c_size_t()
        run("session_prompts", self.handle, byref(found), None, 0, byref(size))
        reason = copied_text("session_prompts", self.handle, byref(found))
        if reason and (install := DELEGATES[options.delegate].missing):
            reason = f"{reason.rstrip('.')}. {install}"
        name = f"{options.delegate}:{options.delegate_device}"
        return PromptsRead(name, reason, found.delegate_tokens, found.cpu_tokens)

    @property
    def delegated(self) -> list[range]:
        """Return the places of the text's tokens that the artifact's accelerator has read."""
        places = integers("delegated", self.handle)
        return [range(begin, end) for begin, end in zip(places[::2], places[1::2], strict=True)]

    @property
    def note(self) -> str:
        """Return the note of the last loaded state."""
        return copied_text("note", self.handle)

    @property
    def hidden(self) -> NDArray[np.float32]:
        """Return the tapped hidden states [n, F] of the last call's tokens; [0, 0] for an artifact without --tap-layers."""
        import numpy as np

        rows, width, first = c_size_t(), c_size_t(), Floats()
        run("hidden", self.handle, byref(first), byref(rows), byref(width))
        shape = rows.value, width.value
        return np.ctypeslib.as_array(first, shape).copy() if first and rows.value else np.empty(shape, np.float32)

    def prefill(self, tokens: Tokens) -> Logits:
        """Commit one or more tokens, and ids of whole pictures among them; return the logits [V] after the last.

        Raises:
            TokenError: a token is outside the vocabulary, or the list is empty.
            CapacityError: they do not fit into the context.
            PictureError: an id is of a picture that is not open, or a part of one.
            NumericalError: logits are NaN or infinite.
        """
        ids, logits = core_ids(tokens), self._logits()
        self._run("prefill", ids, len(ids), logits.ctypes.data_as(Floats))
        return logits

    @checked
    def prefill_image(self, picture: HasIds) -> Logits:
        """Commit a picture, and the tokens around it if it has any; return the logits [V] after the last.

        picture: pixels that ``Picture`` took in, or any picture that ``PictureProcessor`` prepared. Raises as ``prefill``.
        """
        return self.prefill(picture.ids)

    def decode(self, token: int) -> Logits:
        """Commit one token; return the logits [V] after it. Raises TokenError, CapacityError and NumericalError."""
        ids, logits = core_ids([token]), self._logits()
        self._run("decode", ids[0], logits.ctypes.data_as(Floats))
        return logits

    def verify(self, tokens: Tokens) -> Logits:
        """Return logits [n, V] after each of n tokens, 1 ≤ n ≤ ``verify_len``, without committing any.

        Raises:
            TokenError: there are no tokens, too many, or one outside the vocabulary.
            CapacityError: they do not fit into the context.
            NumericalError: logits are NaN or infinite.
        """
        ids = core_ids(tokens)
        logits = self._logits(min(len(ids), self.verify_len))
        self._run("verify", ids, len(ids), logits.ctypes.data_as(Floats))
        return logits

    def _logits(self, *rows: int) -> Logits:
        import numpy as np

        return np.empty((*rows, self.vocab_size), np.float32)

    def commit(self, count: int) -> int:
        """Accept the first ``count`` tokens of the verified block, or none; return the new length.

        It runs no forward pass, and replays only the recurrence. Raises CommitError without a block, or for more than it has.
        """
        self._run("commit", core_number(count))
        return self.length

    def snapshot(self, slot: int) -> int:
        """Copy the committed state to ``slot``; return its length. Raises SnapshotError for a slot out of range."""
        self._run("snapshot", core_number(slot))
        return self.length

    def restore(self, slot: int) -> int:
        """Restore the state of ``slot``; return the new length.

        Raises SnapshotError for a slot that is out of range, was never filled, or whose positions were overwritten since.
        """
        self._run("restore", core_number(slot))
        return self.length

    def reset(self) -> int:
        """Empty the state and all slots; return 0."""
        self._run("reset")
        return 0

    def checkpoint(self) -> Checkpoint:
        """Return the committed state in memory of its own, which any session of the model can resume later.

        Rows by position are copied only from the last checkpoint on that this session made or resumed for this text, if that
        is still open. A verified block is not part of it, and still waits for its commit.
        """
        handle = CheckpointHandle()
        self._run("checkpoint_make", byref(handle))
        return Checkpoint(handle)

    @checked
    def keep_checkpoint(self, cache: PrefixCache) -> None:
        """Add a checkpoint of the text to a cache, unless that has one or the text is empty."""
        self._run("keep_checkpoint", cache.handle)

    @checked
    def resume_prefix(self, tokens: Tokens, cache: PrefixCache) -> int:
        """Go to the longest beginning of ``tokens`` that the session or a checkpoint has, and return its length.

        The calls that read the rest count as one prompt for the artifact's accelerator (``--delegate-from``).
        """
        ids = core_ids(tokens)
        self._run("resume_prefix", cache.handle, ids, len(ids))
        return self.length

    @checked
    def read_checkpoint(self, parts: Sequence[bytes], like: Checkpoint | None = None, shared: int = 0) -> Checkpoint:
        """Return a checkpoint from parts (``Checkpoint.part``), after the first ``shared`` segments of ``like``.

        Raises StateFileError if no session of this model could have made the parts.
        """
        views, handle = (interface.PartStruct * len(parts))(), CheckpointHandle()
        for view, part in zip(views, parts, strict=True):
            view.bytes, view.size = part, len(part)
        self._run("checkpoint_read", like.handle if like else CheckpointHandle(), shared, views, len(views), byref(handle))
        return Checkpoint(handle)

    @checked
    def resume(self, checkpoint: Checkpoint) -> int:
        """Restore the state of ``checkpoint``, bit for bit, and empty the slots; return the length.

        Rows by position that the state still has are not written again. Raises UsageError for a checkpoint of another model.
        """
        self._run("resume", checkpoint.handle)
        return self.length

    @checked
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

        It continues the session's state, and stops early if the context is full. Leave the session alone while the generator
        waits: another change of its text ends it. After the generator is closed or done, the session's text ends just before
        the last token that it has yielded.

        Args:
            tokens: the prompt, at least one token.
            max_new_tokens: most new tokens.
            drafter: proposes draft tokens; plain decoding without one.
            temperature: 0 is greedy.
            seed: of the sampling; drawn from the system if left out.
            sampling: replaces ``temperature`` and ``seed``, and has more options.
            block_length: tokens to verify at once; by default it follows acceptance and costs.
            eos_ids: tokens that end a text; the model's own by default.
            until: called with each other new token before it is yielded; True makes that token the last.
            watch: called with the logits of each new token and the token.
            constraint: a fresh one, which decides what each token may be; the tokens that it forces are draft tokens, with a
                drafter and without.
            stats: takes the counts and times.
            clock: seconds, by which block lengths are chosen; for tests.
            noise: the seed of a sampling without one; for tests.

        Raises:
            UsageError, TokenError, CapacityError: before the first token.
            NumericalError: at any token; ``tokens`` shows whether the last yielded one is committed. An exception of a function
                that was passed in ends the generation too.
        """
        self.check_generation(drafter, block_length)
        ids = core_ids(tokens)
        arguments = GenerationArguments(
            max_new_tokens=max_new_tokens,
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

    @checked
    def keep_hidden(self, wanted: bool, *, own: bool = False) -> None:
        """Keep the hidden states of what is committed from now on, for the drafter of the next generation.

        own: it is the artifact's own drafter, which then reads them before a snapshot, a checkpoint or a saved state is made.
        """
        self._run("keep_hidden", interface.DrafterKind.OWN if wanted and own else wanted)

    def draft(
        self, hidden: ArrayLike, following: Sequence[int], *, limit: int | None = None, draws: DraftNoise | None = None
    ) -> Drafted:
        """Propose tokens with the artifact's own drafter; none if the drafter's context is full.

        Args:
            hidden: [n, F] tapped hidden states of the tokens committed since the last call, n ≥ 1.
            following: the token after each of them; the draft tokens follow the last.
            limit: most draft tokens; by default as many as the drafter proposes.
            draws: noise to draw them by, for a drafter that samples; by default it proposes its best tokens.

        Raises:
            TokenError: the numbers of hidden states and tokens differ.
            DraftError: the artifact has no drafter.
        """
        import numpy as np

        ids = core_ids(following)
        try:
            with np.errstate(over="ignore"):  # too large for float32: infinite
                rows = np.ascontiguousarray(hidden, np.float32)
        except (TypeError, ValueError) as error:
            raise TokenError(f"hidden states are no array of numbers [n, F]: {error}.") from None
        if rows.ndim != 2 or not 0 < len(rows) == len(ids):
            raise TokenError(f"{len(rows)} hidden states and {len(ids)} tokens; each state needs the token after it.")
        limit = max(self.model.draft_len, 1) if limit is None else max(core_number(limit), 0)
        noise = None if draws is None else (c_uint32 * limit)(*draws.noise[:limit])
        found = interface.DraftedStruct()
        heat = 0.0 if draws is None else draws.temperature
        self._run("draft", rows.ctypes.data_as(Floats), *rows.shape, ids, limit, noise, heat, byref(found))
        return _drafted(found)

    @checked
    def save(self, path: str | Path, note: str = "") -> None:
        """Write the whole state, slots included, and ``note`` to ``path``; a verified block is not part of it.

        Raises OutputError if it cannot be written; an existing file then stays as it was.
        """
        self.check_artifact()
        self._run("save", CText("the path", os.fsencode(path)), CText("the note", note.encode()))

    @checked
    def load_state(self, path: str | Path) -> int:
        """Restore a saved state, bit for bit, and its ``note``; return the length. Log a warning if another processor saved it.

        Raises StateFileError for a file that is damaged or of another artifact; the state then stays as it was.
        """
        self.check_artifact()
        self._run("load", CText("the path", os.fsencode(path)))
        if elsewhere := copied_text("saved_elsewhere", self.handle):
            log.warning("%s was saved by kernels for %s: its text goes on here, rounded otherwise than there", path, elsewhere)
        return self.length

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return a copy of every buffer of the state by name, for inspection; those with rows have all of the context's."""
        return {name: buffer.copy() for name, buffer in self._buffers().items()}

    @property
    def state_bytes(self) -> int:
        """Return the bytes of the state of a full context."""
        return sum(buffer.nbytes for buffer in self._buffers().values())

    def _buffers(self) -> dict[str, NDArray[np.generic]]:
        """Return every buffer of the state, where it is until the session's next call."""
        from hybridge.runtime.binding.programs import seen

        count = c_size_t()
        run("buffers", self.handle, None, 0, byref(count))
        views = (ArrayStruct * count.value)()
        self._run("buffers", views, count.value, byref(count))
        return {view.name.decode(): seen(view) for view in views}

    def cancel(self) -> None:
        """End the generation of this session after its next token or chunk of the prompt; callable from any thread."""
        run("cancel", self.handle)

    def check_artifact(self) -> None:
        """Raise UsageError over a program in Python: a saved state belongs to an artifact, which is identified by its hash."""
        if self.manifest.identity is None:
            raise UsageError("only a session over an exported artifact can be saved and loaded.")

    def check_generation(self, drafter: Drafter | None, block_length: int | None = None) -> None:
        """Raise UsageError or DraftError for options of ``generate`` that the model cannot have."""
        if drafter is not None and self.verify_len < 2:
            raise UsageError(
                "this artifact verifies one token at a time, which leaves no room for draft tokens; "
                "export with --verify-len 2 or more, or generate without a drafter."
            )
        if block_length is not None and not 2 <= block_length <= self.verify_len:
            raise UsageError(f"block_length is {block_length}, but must lie between 2 and the artifact's {self.verify_len}.")
        asked = drafter.beside if isinstance(drafter, AutoDrafter) else drafter
        if asked is not None and (isinstance(asked, type) or not isinstance(asked, Drafter)):
            raise DraftError(
                f"{asked!r} is no drafter; give PromptLookup(), another drafter of hybridge.runtime, or an object with "
                "propose, is_cheap and needs_hidden."
            )

    def _run(self, call: str, *arguments: object) -> None:
        """Call a function of the core on this session. Raises the error of a program in Python, or of the core.

        An exception of a signal handler is raised after the call, not inside a program.
        """
        function: Callable[..., int] = getattr(load(), f"hybridge_{call}")
        with nullcontext() if self.model.program is None else signals_wait(lambda error: None):
            status = function(self.handle, *arguments)
        if status:
            raise self.model.reason(status)


def _drafted(found: interface.DraftedStruct) -> Drafted:
    """Copy the core's draft tokens into memory of Python's own."""
    if not found.count:
        return Drafted([], [])
    return Drafted(found.tokens[: found.count], found.confidences[: found.count])
