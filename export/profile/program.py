"""Run a .pte in ExecuTorch's Python package, for methods that a session does not know, and rewrite its plans."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hybridge.errors import ArtifactError
from hybridge.export.pinned.executorch import (
    HEAD_BYTES,
    call_method,
    extension,
    load_program,
    read_header,
    read_program,
    reset_threads,
    write_program,
)
from hybridge.imports import quiet
from hybridge.runtime.artifact.folder import Artifact
from hybridge.runtime.artifact.manifest import PROGRAM
from hybridge.runtime.artifact.program_check import BOUNDED, STATE, buffer_names, installed
from hybridge.runtime.binding.library import threads
from hybridge.runtime.kernels import library
from hybridge.runtime.native_log import first_line, without_native_log
from hybridge.runtime.pinned import EXECUTORCH, operator_libraries


class ExecuTorchProgram:
    """Loaded methods, called by name; see ``hybridge.runtime.binding.programs.Program``. All share one state."""

    def __init__(self, artifact: Artifact) -> None:
        """Load an artifact that a session has checked. Raises ArtifactError if it does not load."""
        manifest = artifact.manifest
        if manifest.needs_kernels:
            library.load()
        file = artifact.opened[PROGRAM]
        try:
            with without_native_log():
                runtime = extension()
                reset_threads(runtime, threads())
                for path in operator_libraries(manifest.namespaces):
                    torch.ops.load_library(str(path))
                self._program = load_program(runtime, file.loadable)
                self._methods = {name: self._program.load_method(manifest.program_method(name)) for name in manifest.methods}
        except ImportError as error:
            raise ArtifactError(
                f"a profile needs ExecuTorch {EXECUTORCH}, and {installed('executorch')} is installed here "
                f"({first_line(error)}): pip install executorch=={EXECUTORCH}."
            ) from None
        except (RuntimeError, MemoryError) as error:
            raise ArtifactError(f"{artifact.program} does not load: {first_line(error)}.") from None
        self.names = buffer_names(manifest)
        self._buffers = {name: self._methods["decode"].get_attribute(STATE + name).numpy() for name in self.names}
        self.is_atomic = False
        self.bounded = [self.names[int(place)] for place in self._program.load_method(BOUNDED).call(())]

    def load_method(self, name: str) -> None:
        """Load a method that the manifest does not list."""
        self._methods[name] = self._program.load_method(name)

    def call(self, name: str, *inputs: NDArray[Any] | torch.Tensor) -> tuple[NDArray[Any], ...]:
        """Run a method and return copies of its outputs, because the runtime reuses its memory."""
        try:
            outputs = call_method(self._methods[name], tuple(map(torch.as_tensor, inputs)))
        except (RuntimeError, MemoryError) as error:
            raise ArtifactError(f"the program failed in {name!r}: {first_line(error)}.") from None
        return tuple(np.array(each.detach().numpy()) for each in outputs)

    def buffer(self, name: str) -> NDArray[Any]:
        """Return a buffer's memory. Raises KeyError without one."""
        buffer: NDArray[Any] = self._buffers[name]
        return buffer


class ProgramFile:
    """A program file that can be written again with more plans; weights are copied and never parsed.

    plans: by name, in the classes of ``executorch.exir.schema``.
    """

    def __init__(self, path: Path) -> None:
        """Read the plans. Raises ArtifactError if the file has no segments, which ExecuTorch writes since 0.3."""
        self.path = path
        with path.open("rb") as file:
            header = read_header(file.read(HEAD_BYTES))
            if header is None:
                raise ArtifactError(f"{path} has no header of segments; export the model again.")
            file.seek(0)
            with quiet():
                self._program = read_program(file.read(header.program_size))
        self._header = header
        self.plans: dict[str, Any] = {plan.name: plan for plan in self._program.execution_plan}

    def write(self, path: Path, plans: Iterable[Any]) -> None:
        """Write the same program with ``plans`` after its own."""
        own = self._program.execution_plan
        self._program.execution_plan = [*own, *plans]
        with quiet():
            data = write_program(self._program, self._header.segment_data_size)
        self._program.execution_plan = own
        with path.open("wb") as to, self.path.open("rb") as weights:
            to.write(data)
            weights.seek(self._header.segment_base_offset)
            shutil.copyfileobj(weights, to, 1 << 24)
