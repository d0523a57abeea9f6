"""The graphs of an ONNX artifact as the methods that a .pte has, over one state.

One graph serves prefill, decode and verify: it runs exactly the tokens that count, without padding. A call binds the committed
version of the bounded states as its input and another one as its output, which then becomes the committed one: nothing is
copied, and what went wrong changed nothing. Keys and values are one buffer, input and output at once, and the length of the
mask says how much of it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Any

import torch
from torch import Tensor

from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.manifest import ONNX_COMMIT
from hybridge.runtime.artifacts.options import shorter_verify
from hybridge.runtime.artifacts.program_check import check_methods
from hybridge.runtime.backends.onnx_graph import (
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
from hybridge.runtime.backends.onnx_state import Buffers, OnnxState, StagedBlock, Version

REFUSED = -1


class OnnxProgram:
    """See ``hybridge.runtime.backends.methods.Methods``; docs/artifact.md describes each method."""

    def __init__(self, artifact: Artifact) -> None:
        """Raises ArtifactError where a graph does not load here or is not what the manifest says."""
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
        self._mask = torch.ones(1, self._max_seq_len, dtype=torch.long)
        self._staged = Buffers.zeros({each.name: each for each in entry.staged})
        self._bindings: dict[tuple[object, ...], Any] = {}
        verifying = ("verify", *map(shorter_verify, manifest.options.shorter_verify_lens))
        self._methods: dict[str, Callable[..., Tensor]] = {
            "prefill": self._prefill, "decode": self._decode, "forward": self._forward, "commit": self._commit,
            "snapshot": self._snapshot, "restore": self._restore, "reset": self._reset,
            **dict.fromkeys(verifying, self._verify),
        }  # fmt: skip

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method. Raises ArtifactError where onnxruntime fails; the state is then as it was.

        Likewise where the program's files are others by now.
        """
        self._artifact.check_unchanged()
        outputs = (self._methods[name](*inputs),)
        self._artifact.check_unchanged()
        return outputs

    def state(self) -> Mapping[str, Tensor]:
        """Return every buffer of the state by name: the memory itself."""
        return self._state.tensors()

    def bounded(self) -> Mapping[str, Tensor]:
        """The version that is committed."""
        return self._state.now.tensors()

    def operations(self) -> int:
        """Calls so far that changed the state."""
        return int(self._state.committed.operations)

    def _prefill(self, tokens: Tensor, count: Tensor) -> Tensor:
        n = int(count)
        if not 1 <= n <= tokens.shape[1] or self._state.length + n > self._max_seq_len:
            return self._nothing(1)
        logits = torch.empty(1, 1, self._vocab_size)
        self._state.begin_rows()
        past, present = self._state.now, self._state.free()
        self._run(self._extending(past, present), tokens[:, :n], logits)
        present.length.copy_(past.length + n)
        self._state.move(present, self._state.slots)
        return logits

    def _decode(self, tokens: Tensor) -> Tensor:
        return self._prefill(tokens, torch.ones(1))

    def _forward(self, tokens: Tensor, start: Tensor) -> Tensor:
        if int(start) == 0:
            self._reset()
        if int(start) != self._state.length:
            return self._nothing(1)
        return self._decode(tokens)

    def _verify(self, tokens: Tensor) -> Tensor:
        """Tokens of the padding that lie behind the last position are left out; their logits are NaN."""
        self._state.begin_rows()
        n = min(tokens.shape[1], self._max_seq_len - self._state.length)
        if not n:
            return self._nothing(tokens.shape[1])
        now, logits = self._state.now, torch.empty(1, tokens.shape[1], self._vocab_size)
        self._run(self._verifying(now, n), tokens[:, :n], logits[:, :n])
        self._state.move(now, self._state.slots, StagedBlock(now, n))
        logits[:, n:] = nan
        return logits

    def _commit(self, count: Tensor) -> Tensor:
        n, block, past = int(count), self._state.committed.block, self._state.now
        if block is None or block.after is not past or not 0 <= n <= block.tokens:
            return torch.tensor([REFUSED])
        present = self._state.free() if n else past
        if n:
            self._replay(block, past, present, count)
            present.length.copy_(past.length + n)
        self._state.move(present, self._state.slots)
        return self._state.now.length.clone()

    def _snapshot(self, slot: Tensor) -> Tensor:
        if not 0 <= int(slot) < len(self._state.slots):
            return torch.tensor([REFUSED])
        now, slots = self._state.now, list(self._state.slots)
        slots[int(slot)] = now
        self._state.move(now, slots)
        return self._state.now.length.clone()

    def _restore(self, slot: Tensor) -> Tensor:
        kept = self._state.slots[int(slot)] if 0 <= int(slot) < len(self._state.slots) else None
        if kept is None or int(kept.length) < 0:
            return torch.tensor([REFUSED])
        self._state.move(kept, self._state.slots)
        return kept.length.clone()

    def _reset(self) -> Tensor:
        self._state.clear()
        return self._state.now.length.clone()

    def _nothing(self, tokens: int) -> Tensor:
        """The logits of a refusal."""
        return torch.full((1, tokens, self._vocab_size), nan)

    def _run(self, binding: Any, tokens: Tensor, logits: Tensor) -> None:
        """The model over tokens [1, T] after the committed ones, into the last logits [1, L, V]."""
        total = self._state.length + tokens.shape[1]
        first = torch.tensor(tokens.shape[1] - logits.shape[1])
        for name, value in ((TOKENS, tokens.contiguous()), (MASK, self._mask[:, :total]), (FIRST_LOGIT, first)):
            binding.bind_ortvalue_input(name, ort_value(value))
        binding.bind_ortvalue_output(LOGITS, ort_value(logits))
        self._model.run(binding)

    def _replay(self, block: StagedBlock, past: Version, present: Version, count: Tensor) -> None:
        """The recurrences over the first tokens of a block; attention has nothing to do."""
        if self._commit_graph is None:
            return
        binding = self._committing(block, past, present)
        binding.bind_ortvalue_input(COUNT, ort_value(count))
        self._commit_graph.run(binding)

    # What is bound stays the same for the same versions, so that a call binds little.

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
