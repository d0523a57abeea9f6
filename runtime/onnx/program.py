"""Run the graphs of an ONNX artifact as the methods of a .pte, over one state.

One graph serves prefill, decode and verify: it runs exactly the tokens that count, without padding. A call binds the committed
version of the bounded states as its input and another one as its output, which then becomes the committed one: nothing is
copied, and a failed call changes nothing. Keys and values are one buffer, input and output at once, and the length of the
mask says how much of it counts.

The state is in our own memory: rows by position are written in place, bounded states get new versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.artifact.manifest import ONNX_COMMIT, OnnxEntry, TensorEntry
from hybridge.runtime.artifact.options import shorter_verify
from hybridge.runtime.artifact.program_check import check_methods
from hybridge.runtime.onnx.graph import (
    COUNT,
    FIRST_LOGIT,
    LOGITS,
    MASK,
    PAST,
    PRESENT,
    STAGED,
    TOKENS,
    OnnxGraph,
    check_commit,
    check_model,
    ort_value,
)

REFUSED = -1
Numbers = NDArray[Any]


class OnnxProgram:
    """See ``hybridge.runtime.binding.programs.Program``; docs/artifact.md describes each method."""

    is_atomic = True

    def __init__(self, artifact: Artifact) -> None:
        """Load the graphs. Raises ArtifactError if one does not load here or is not what the manifest says."""
        manifest, entry = artifact.manifest, artifact.manifest.onnx
        assert entry is not None
        check_methods(manifest)
        self._vocab_size, self._max_seq_len = manifest.vocab_size, manifest.options.max_seq_len
        self._model = OnnxGraph(artifact.program)
        check_model(self._model, manifest)
        self._commit_graph = OnnxGraph(artifact.folder / ONNX_COMMIT) if entry.bounded else None
        if self._commit_graph:
            check_commit(self._commit_graph, entry)
        self._artifact = artifact
        for file in artifact.opened.values():
            file.check_loaded(file.path)
        self._state = OnnxState(entry, manifest.options.snapshot_slots)
        self._mask = np.ones((1, self._max_seq_len), np.int64)
        self._staged = Buffers.zeros({each.name: each for each in entry.staged})
        self._bindings: dict[tuple[object, ...], Any] = {}
        verifying = ("verify", *map(shorter_verify, manifest.options.shorter_verify_lens))
        self._methods: dict[str, Callable[..., Numbers]] = {
            "prefill": self._prefill, "decode": self._decode, "forward": self._forward, "commit": self._commit,
            "snapshot": self._snapshot, "restore": self._restore, "reset": self._reset,
            **dict.fromkeys(verifying, self._verify),
        }  # fmt: skip

    @property
    def names(self) -> list[str]:
        """Return the names of the state's buffers."""
        return self._state.names()

    @property
    def bounded(self) -> list[str]:
        """Return the names of the committed version's buffers."""
        return list(self._state.now.arrays())

    def buffer(self, name: str) -> Numbers:
        """Return a view of a buffer's current memory. Raises KeyError for an unknown name."""
        return self._state.buffer(name)

    def call(self, name: str, *inputs: Numbers) -> tuple[Numbers, ...]:
        """Run a method.

        Raises:
            ArtifactError: onnxruntime failed, or the program's files have changed. The state is as it was.
        """
        self._artifact.check_unchanged()
        outputs = (self._methods[name](*inputs),)
        self._artifact.check_unchanged()
        return outputs

    def _prefill(self, tokens: Numbers, count: Numbers) -> Numbers:
        n = int(count[0])
        if not 1 <= n <= tokens.shape[1] or self._state.length + n > self._max_seq_len:
            return self._nothing(1)
        logits = np.empty((1, 1, self._vocab_size), np.float32)
        self._state.begin_rows()
        past, present = self._state.now, self._state.free()
        self._run(self._extending(past, present), tokens[:, :n], logits)
        present.length[...] = past.length + n
        self._state.move(present, self._state.slots)
        return logits

    def _decode(self, tokens: Numbers) -> Numbers:
        return self._prefill(tokens, np.ones(1, np.int64))

    def _forward(self, tokens: Numbers, start: Numbers) -> Numbers:
        if int(start[0]) == 0:
            self._reset()
        if int(start[0]) != self._state.length:
            return self._nothing(1)
        return self._decode(tokens)

    def _verify(self, tokens: Numbers) -> Numbers:
        """Verify a block. Padding tokens after the last position are left out; their logits are NaN."""
        self._state.begin_rows()
        n = min(tokens.shape[1], self._max_seq_len - self._state.length)
        if not n:
            return self._nothing(tokens.shape[1])
        now, logits = self._state.now, np.full((1, tokens.shape[1], self._vocab_size), np.nan, np.float32)
        self._run(self._verifying(now, n), tokens[:, :n], logits[:, :n])
        self._state.move(now, self._state.slots, StagedBlock(now, n))
        return logits

    def _commit(self, count: Numbers) -> Numbers:
        n, block, past = int(count[0]), self._state.committed.block, self._state.now
        if block is None or block.after is not past or not 0 <= n <= block.tokens:
            return np.array([REFUSED])
        present = self._state.free() if n else past
        if n:
            self._replay(block, past, present, count)
            present.length[...] = past.length + n
        self._state.move(present, self._state.slots)
        return self._state.now.length.copy()

    def _snapshot(self, slot: Numbers) -> Numbers:
        if not 0 <= int(slot[0]) < len(self._state.slots):
            return np.array([REFUSED])
        now, slots = self._state.now, list(self._state.slots)
        slots[int(slot[0])] = now
        self._state.move(now, slots)
        return self._state.now.length.copy()

    def _restore(self, slot: Numbers) -> Numbers:
        kept = self._state.slots[int(slot[0])] if 0 <= int(slot[0]) < len(self._state.slots) else None
        if kept is None or int(kept.length[0]) < 0:
            return np.array([REFUSED])
        self._state.move(kept, self._state.slots)
        return kept.length.copy()

    def _reset(self) -> Numbers:
        self._state.clear()
        return self._state.now.length.copy()

    def _nothing(self, tokens: int) -> Numbers:
        """Return the logits of a refusal."""
        return np.full((1, tokens, self._vocab_size), np.nan, np.float32)

    def _run(self, binding: Any, tokens: Numbers, logits: Numbers) -> None:
        """Run the model over tokens [1, T] after the committed ones, and write the last logits [1, L, V]."""
        total = self._state.length + tokens.shape[1]
        first = np.array(tokens.shape[1] - logits.shape[1])
        for name, value in ((TOKENS, np.ascontiguousarray(tokens)), (MASK, self._mask[:, :total]), (FIRST_LOGIT, first)):
            binding.bind_ortvalue_input(name, ort_value(value))
        binding.bind_ortvalue_output(LOGITS, ort_value(logits))
        self._model.run(binding)

    def _replay(self, block: StagedBlock, past: Version, present: Version, count: Numbers) -> None:
        """Run the recurrences over the first tokens of a block; attention needs no replay."""
        if self._commit_graph is None:
            return
        binding = self._committing(block, past, present)
        binding.bind_ortvalue_input(COUNT, ort_value(count))
        self._commit_graph.run(binding)

    # Bindings are kept by version, so that a call binds only its tokens and logits.

    def _extending(self, past: Version, present: Version) -> Any:
        if (key := (past, present)) not in self._bindings:
            rows = self._state.rows
            inputs = past.buffers.named(PAST) | rows.named(PAST)
            self._bindings[key] = self._model.binding(inputs, present.buffers.named(PRESENT) | rows.named(PRESENT))
        return self._bindings[key]

    def _verifying(self, now: Version, tokens: int) -> Any:
        if (key := (now, tokens)) not in self._bindings:
            rows = self._state.rows
            inputs = now.buffers.named(PAST) | rows.named(PAST)
            outputs = self._staged.first(tokens).named(STAGED) | rows.named(PRESENT)
            self._bindings[key] = self._model.binding(inputs, outputs)
        return self._bindings[key]

    def _committing(self, block: StagedBlock, past: Version, present: Version) -> Any:
        assert self._commit_graph
        if (key := (past, present, block.tokens)) not in self._bindings:
            inputs = past.buffers.named(PAST) | self._staged.first(block.tokens).named(STAGED)
            self._bindings[key] = self._commit_graph.binding(inputs, present.buffers.named(PRESENT))
        return self._bindings[key]


class Buffers:
    """Contiguous arrays by name, and the same memory as onnxruntime's values."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = arrays
        self._values = {name: ort_value(array) for name, array in arrays.items()}

    @classmethod
    def zeros(cls, entries: Mapping[str, TensorEntry]) -> Buffers:
        """Return new buffers, whose pages take memory once they are written to."""
        return cls({name: np.zeros(each.shape, each.dtype) for name, each in entries.items()})

    def first(self, tokens: int) -> Buffers:
        """Return views of the first ``tokens`` of T, of arrays [1, T, …]."""
        return Buffers({name: np.ascontiguousarray(each[:, :tokens]) for name, each in self.arrays.items()})

    def named(self, prefix: str) -> dict[str, Any]:
        """Return onnxruntime's values by their names in a graph."""
        return {f"{prefix}{name}": value for name, value in self._values.items()}


class Version:
    """The state after a text: its length, int64 [1], and the bounded states. Nothing writes it while it is referred to."""

    def __init__(self, bounded: Mapping[str, TensorEntry]) -> None:
        self.length = np.zeros(1, np.int64)
        self.buffers = Buffers.zeros(bounded)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"length": self.length, **{f"layers.{name}": each for name, each in self.buffers.arrays.items()}}

    def clear(self) -> None:
        """Set everything to zero."""
        for array in self.arrays().values():
            array.fill(0)

    def copy(self, other: Version) -> None:
        """Copy another version into this one."""
        theirs = other.arrays()
        for name, array in self.arrays().items():
            array[...] = theirs[name]


@dataclass(frozen=True)
class StagedBlock:
    """A number of tokens that were verified after a version, and wait for ``commit``."""

    after: Version
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The committed version, the versions of snapshot slots, the block that waits for commit, and operations, int64 [1]."""

    now: Version
    slots: tuple[Version | None, ...]
    block: StagedBlock | None = None
    operations: NDArray[np.int64]


class OnnxState:
    """The committed state, which one assignment changes as a whole, and the rows by position that all versions share.

    A snapshot copies nothing. Versions without a reference are reused, so there are at most two more than slots.
    """

    def __init__(self, entry: OnnxEntry, slots: int) -> None:
        self.rows = Buffers.zeros({each.name: each for each in entry.states if each.kind == "positional"})
        self._bounded = {each.name: each for each in entry.bounded}
        now = Version(self._bounded)
        self._versions = [now]
        self.committed = Committed(now=now, slots=(None,) * slots, operations=np.zeros(1, np.int64))

    @property
    def now(self) -> Version:
        return self.committed.now

    @property
    def slots(self) -> tuple[Version | None, ...]:
        return self.committed.slots

    @property
    def length(self) -> int:
        return int(self.now.length[0])

    def move(self, now: Version, slots: Sequence[Version | None], block: StagedBlock | None = None) -> None:
        """Complete an operation."""
        operations = self.committed.operations + 1
        self.committed = Committed(now=now, slots=tuple(slots), block=block, operations=operations)

    def free(self) -> Version:
        """Return a version to write, which may hold anything."""
        for version in self._versions:
            if version is not self.now and all(version is not kept for kept in self.slots):
                return version
        self._versions.append(Version(self._bounded))
        return self._versions[-1]

    def begin_rows(self) -> None:
        """Prepare for writing rows from the committed length on: invalidate slots that need them, and drop the staged block."""
        slots = tuple(kept if kept and int(kept.length[0]) <= self.length else None for kept in self.slots)
        self.committed = replace(self.committed, slots=slots, block=None)

    def clear(self) -> None:
        """Empty the state and the slots. Rows past the length are never read."""
        fresh = self.free()
        fresh.clear()
        self.move(fresh, [None] * len(self.slots))

    def buffer(self, name: str) -> NDArray[Any]:
        """Return an array by its name, a slot's in memory of its own; a slot of length -1 keeps nothing. Raises KeyError."""
        if name == "operations":
            return self.committed.operations
        if name.startswith("slots."):
            _, number, own = name.split(".", 2)
            slot = int(number)
            slots = (*self.slots[:slot], self._own(slot), *self.slots[slot + 1 :])
            self.committed = replace(self.committed, slots=slots)
            return self._own(slot).arrays()[own]
        rows = name.removeprefix("layers.")
        return self.rows.arrays[rows] if rows in self.rows.arrays else self.now.arrays()[name]

    def names(self) -> list[str]:
        """Return all names."""
        own = self.now.arrays()
        slots = [f"slots.{slot}.{name}" for slot in range(len(self.slots)) for name in own]
        return [*own, "operations", *(f"layers.{name}" for name in self.rows.arrays), *slots]

    def _own(self, slot: int) -> Version:
        """Return a slot's version, or a copy if something else refers to that too."""
        kept = self.slots[slot]
        others = (self.now, *self.slots[:slot])
        if kept is not None and all(kept is not other for other in others):
            return kept
        own = self.free()
        if kept is None:
            own.clear()
            own.length.fill(-1)
        else:
            own.copy(kept)
        return own
