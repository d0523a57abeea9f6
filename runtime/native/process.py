"""The replay command over one artifact, running: operations go into it, answers come out (see replay.cpp for both)."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO

import torch
from torch import Tensor

from hybridge.cache.errors import NativeError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.backends.pte_program import namespaces, needs_kernels
from hybridge.runtime.kernels import library
from hybridge.runtime.native import command

Draft = Callable[[Sequence[int], int], Sequence[int]]
"""Tokens of the text since the last call, and a limit, to at most so many draft tokens."""


WITH_NUMBERS = ("generated", "drafted", "kept", "brought")
"""Answers that are numbers behind a length."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of an operation: the session's length and its logits, flat, and ExecuTorch's error if it was refused.

    generated: of a generation the counts of replay.cpp, and the tokens behind them; draft tokens; numbers of a checkpoint.
    """

    length: int = 0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    generated: Sequence[int] = ()
    refused: str = ""


class NativeProcess:
    """Sessions of a process of their own, which share one loaded program; a context manager that ends it."""

    def __init__(self, artifact: Artifact, sessions: int = 1) -> None:
        """Raises NativeError and KernelsError where it cannot be built, or does not start over this artifact."""
        self.artifact = artifact
        kernels = [library.build()] if needs_kernels(artifact.manifest) else []
        operators = [*command.operator_libraries(namespaces(artifact.manifest)), *kernels]
        self.command = [str(word) for word in (command.build(), artifact.program, sessions, *operators)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        self._asking = False
        self._read()

    def __enter__(self) -> NativeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()

    def ask(self, operation: str, propose: Draft | None = None) -> Answer:
        """Run one operation, a line of replay.cpp; ``propose`` is for a generation that asks for its draft tokens.

        Raises NativeError where the process ended instead of answering, and after a call that was interrupted.
        """
        if self._asking:
            raise NativeError("an earlier call was interrupted before its answer came; start the native harness again.")
        self._asking = True
        answer = self._answer(operation, propose)
        self._asking = False
        return answer

    def _answer(self, operation: str, propose: Draft | None) -> Answer:
        self._write(operation)
        while True:
            kind, *rest = self._read()
            if kind == "refused":
                return Answer(refused=rest[0], length=int(rest[1]))
            numbers = [int(word) for word in rest]
            if kind == "propose" and propose is not None:
                self._write(" ".join(map(str, propose(numbers[1:], numbers[0]))))
            elif kind in WITH_NUMBERS:
                return Answer(length=numbers[0], generated=numbers[1:])
            else:
                return Answer(length=numbers[0], logits=self._floats(numbers[1]))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def _read(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        return line.decode().split()

    def _floats(self, count: int) -> Tensor:
        assert self._process.stdout is not None
        data = bytearray(self._process.stdout.read(4 * count))
        if len(data) < 4 * count:
            raise self._ended(f" after {len(data)} of {4 * count} bytes of its logits")
        return torch.frombuffer(data, dtype=torch.float32) if count else torch.empty(0)

    def _ended(self, where: str = "") -> NativeError:
        self._process.wait()
        self._errors.seek(0)
        message = self._errors.read().decode(errors="replace").strip()[-1000:]
        self.close()
        return NativeError(f"the native harness ended{where} with exit code {self._process.returncode}: {message}")
