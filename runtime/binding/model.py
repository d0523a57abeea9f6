"""A model: an artifact's program, whose weights all of its sessions share."""

from __future__ import annotations

import os
import weakref
from ctypes import byref, c_int64, c_size_t
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from hybridge.errors import ArtifactError, HybridgeError, UsageError
from hybridge.runtime.artifact.delegates import DELEGATES
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.artifact.manifest import GOLDEN, PROGRAM
from hybridge.runtime.artifact.model_info import ModelInfo
from hybridge.runtime.artifact.plan_check import check_plans
from hybridge.runtime.artifact.program_check import check_methods, check_program, check_runtime, other_version
from hybridge.runtime.binding.interface import CText, Handle, InfoStruct, ModelHandle, OnSame, Status, ValidationStruct
from hybridge.runtime.binding.library import failure, load, load_delegate, load_operators, run
from hybridge.runtime.binding.sampling import core_number
from hybridge.runtime.native_log import without_native_log

if TYPE_CHECKING:  # NumPy takes long to start
    from hybridge.runtime.binding.programs import Program, ProgramFunctions


@dataclass(frozen=True)
class Validation:
    """What replaying an artifact's golden steps found.

    Attributes:
        steps: the number of steps.
        worst: the largest error of a logit, as a share of the largest logit.
        tolerance: the largest that passes.
        same_bits: all steps answered the same bits as where it was exported.
        instruction_set: the one that our kernels run by here.
        exported_on: the one that they ran by there.
        bits: a hash of what each step answered.
    """

    steps: int
    worst: float
    tolerance: float
    same_bits: bool
    instruction_set: str
    exported_on: str
    bits: list[int]


class Owned:
    """An object of the core behind a handle, which is closed with this object or by ``close``.

    Closing never waits for another session. A context manager.
    """

    def __init__(self, handle: Handle, close: str) -> None:
        self.handle, self._closing = handle, close
        self._close = weakref.finalize(self, getattr(load(), f"hybridge_{close}"), handle)
        self._close.atexit = False  # at the end of the process its memory goes anyway, and another thread may still be inside

    def close(self) -> None:
        """Let go of it. Once is enough. Raises UsageError for a session that is in a call."""
        if self._close.alive:
            if (status := getattr(load(), f"hybridge_{self._closing}")(self.handle)) == Status.BUSY:
                raise failure(status)
            self._close.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Model(Owned):
    """A program, opened once for all of its sessions; lengths in tokens. It may be closed before they are.

    manifest: what describes it, an artifact's manifest or another ``ModelInfo``. artifact: the one that it is of, if any.
    """

    def __init__(
        self,
        handle: ModelHandle,
        manifest: ModelInfo,
        *,
        artifact: Artifact | None = None,
        table: ProgramFunctions | None = None,
    ) -> None:
        """handle: of an opened model, which this closes; ``open`` and ``over`` have one. Raises ArtifactError."""
        super().__init__(handle, "model_close")
        self.manifest, self.artifact, self._table = manifest, artifact, table
        self._asked = _asked(artifact)
        run("model_ask", handle, self._asked, None)
        self.program = table.program if table is not None else None
        """The program in Python that it is over, if it is one."""
        info = InfoStruct()
        run("model_info", handle, byref(info))
        self.max_seq_len: int = info.max_seq_len
        self.vocab_size: int = info.vocab_size
        self.prefill_chunk: int = info.prefill_chunk
        self.snapshot_slots: int = info.snapshot_slots
        self.draft_len: int = info.draft_len
        """Most draft tokens of the drafter inside the model; 0 without one."""
        self.picture_unit: int = info.picture_unit
        """Pixels of which both sides of a picture are multiples; 0 for a model without pictures."""
        self.most_picture_tokens: int = info.max_picture_tokens
        self.placeholder: int = info.placeholder
        """The token that stands for a picture in the text of a chat template; -1 without one."""
        self.verify_lens = integers("model_verify_lens", handle)
        self.verify_len = self.verify_lens[-1]
        self.eos_ids = integers("model_eos_ids", handle)
        self._check_manifest()

    @classmethod
    def open(cls, artifact: Artifact, context: int | None = None, *, strict_reuse: bool = False) -> Model:
        """Open the program of an artifact.

        context: most tokens of a text, fewer than the program holds; as many as it holds if left out.
        strict_reuse: continue from a kept text only if its tokens were read by the accelerator or the CPU as they are now.
        Raises ArtifactError where it does not load here or is not what the manifest says, NativeError and KernelsError where a
        library cannot be built or loaded, and UsageError for a context that the program does not hold.
        """
        if artifact.manifest.onnx is None:
            model = cls(_opened(artifact), artifact.manifest, artifact=artifact)
        else:
            from hybridge.runtime.onnx.program import OnnxProgram  # onnxruntime is an extra

            artifact.check_hashed()
            model = cls.over(OnnxProgram(artifact), artifact.manifest, artifact)
        if context is not None:
            model.limit(context)
        model.delegate_from(artifact.manifest.options.delegate_from)
        run("model_strict_reuse", model.handle, strict_reuse)
        return model

    def delegate_from(self, tokens: int) -> None:
        """Let sessions that are opened from now on read prompts of as many tokens by the artifact's accelerator."""
        run("model_delegate_from", self.handle, tokens)

    def limit(self, context: int) -> None:
        """Let sessions that are opened from now on take texts of at most ``context`` tokens.

        Raises UsageError for more than the program holds, and closes the model.
        """
        try:
            run("model_limit", self.handle, core_number(context))
        except UsageError:
            self.close()
            raise
        self.max_seq_len = context

    def validate(self) -> Validation:
        """Replay the steps that the artifact's export stored with the eager model's logits, here and without PyTorch.

        Raises ArtifactError if there are none, if an error is too large, or if the bits are others than they must be.
        """
        artifact = self.artifact
        if artifact is None or GOLDEN not in artifact.names:
            raise ArtifactError(
                "this artifact has no golden steps: it was packed without PyTorch, or exported with other kernels than "
                "hybridge. Compare it with its checkpoint: hybridge validate OUT --against CHECKPOINT."
            )
        artifact.read(GOLDEN)
        found = ValidationStruct()
        if status := load().hybridge_validate(
            self.handle, CText("the path", os.fsencode(artifact.folder / GOLDEN)), byref(found)
        ):
            raise self.reason(status)
        sets = found.instruction_set.decode(), found.exported_on.decode()
        return Validation(found.steps, found.worst, found.tolerance, bool(found.same_bits), *sets, found.bits[: found.steps])

    @classmethod
    def over(cls, program: Program, manifest: ModelInfo, artifact: Artifact | None = None) -> Model:
        """Open a program in Python, for one session. Raises UsageError for sizes that cannot be."""
        from hybridge.runtime.binding.programs import ProgramFunctions

        table = ProgramFunctions(program, manifest)
        return cls(table.open(), manifest, artifact=artifact, table=table)

    def raised(self) -> BaseException | None:
        """Return, once, the error that a program in Python has raised since the last call."""
        if self._table is None:
            return None
        error, self._table.error = self._table.error, None
        return error

    def reason(self, status: int) -> BaseException:
        """Return why a call failed: what a program in Python has raised, a file that was changed, or what the core says."""
        if error := self.raised():
            return error
        try:
            if self.artifact is not None:
                self.artifact.check_unchanged()
        except ArtifactError as changed:
            return changed
        return failure(status)

    def _check_manifest(self) -> None:
        """Raise ArtifactError if the program has other sizes than its manifest, which callers rely on."""
        options = self.manifest.options
        stated = {
            "max_seq_len": (self.max_seq_len, options.max_seq_len),
            "vocab_size": (self.vocab_size, self.manifest.vocab_size),
            "prefill_chunk": (self.prefill_chunk, options.prefill_chunk),
            "snapshot_slots": (self.snapshot_slots, options.snapshot_slots),
            "verify_lens": (self.verify_lens, options.verify_lens),
            "eos_ids": (self.eos_ids, self.manifest.eos_ids),
            "pictures": (self.picture_unit, self.manifest.pictures.unit if self.manifest.pictures else 0),
        }
        for name, (found, expected) in stated.items():
            if found != expected:
                self.close()
                raise ArtifactError(f"the program's {name} is {found}, but {expected} in its manifest; export the model again.")


def _asked(artifact: Artifact | None) -> Any:
    """Return the function that the core calls if a program's file was touched: its bytes must be those of the manifest."""

    def is_same(_: object) -> int:
        try:
            assert artifact is not None
            artifact.check_unchanged()
        except BaseException:  # no caller could take it; ``Model.reason`` checks again
            return 0
        return 1

    return OnSame(is_same)


def _opened(artifact: Artifact) -> ModelHandle:
    """Return the handle of a program that was checked."""
    manifest = artifact.manifest
    check_methods(manifest)
    file = artifact.opened[PROGRAM]
    try:
        check_plans(manifest, file)
        check_program(manifest, file)
        load_operators(manifest.namespaces)
        if manifest.options.delegate != "none":
            load_delegate(DELEGATES[manifest.options.delegate])
    finally:
        artifact.check_hashed()  # of an altered program, this is what is wrong
    delegates = {name for method in manifest.methods.values() for name in method.delegates}
    operators = {name for name in manifest.operators if load().hybridge_has_operator(CText("an operator", name.encode()))}
    check_runtime(
        manifest, operators, {name for name in delegates if load().hybridge_has_backend(CText("a delegate", name.encode()))}
    )
    handle, loadable = ModelHandle(), file.loadable
    with without_native_log():
        status = load().hybridge_model_open(CText("the path", os.fsencode(loadable)), byref(handle))
    if status:
        raise not_loaded(artifact, failure(status))
    file.check_loaded(loadable)
    return handle


def not_loaded(model: Artifact | Model, error: HybridgeError) -> HybridgeError:
    """Return the error for a program that does not load here, or over which there can be no session."""
    artifact = model.artifact if isinstance(model, Model) else model
    if artifact is None:
        return error
    return ArtifactError(f"{artifact.program} does not load: {error}{other_version(artifact.manifest)}")


def integers(call: str, *arguments: object) -> list[int]:
    """Return the whole numbers of a function that says how many there are and copies them."""
    count = c_size_t()
    run(call, *arguments, None, 0, byref(count))
    numbers = (c_int64 * count.value)()
    run(call, *arguments, numbers, count.value, byref(count))
    return list(numbers)
