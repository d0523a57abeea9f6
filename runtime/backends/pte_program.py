"""The ExecuTorch program of an artifact: every method over the one shared state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.artifacts.artifact import Artifact
from hybridge.runtime.artifacts.drafter_description import OF_DRAFTERS
from hybridge.runtime.artifacts.manifest import PROGRAM
from hybridge.runtime.artifacts.plan_check import check_plans
from hybridge.runtime.artifacts.program_check import (
    BOUNDED,
    STATE,
    bounded_names,
    buffer_names,
    check_buffers,
    check_methods,
    check_program,
    expected_constants,
)
from hybridge.runtime.artifacts.runtime_check import check_runtime, other_version
from hybridge.runtime.backends.one_thread import copied
from hybridge.runtime.backends.threads import executorch_runtime
from hybridge.runtime.backends.xnnpack_cache import share_packed_weights
from hybridge.runtime.backends.zero_pages import release_pages
from hybridge.runtime.kernels import library
from hybridge.runtime.native_log import first_line, without_native_log
from hybridge.runtime.pinned import (
    XNNPACK,
    backend_names,
    call_method,
    load_program,
    method_names,
    operator_libraries,
    operator_names,
)


class Program:
    """Loaded methods, called by name. All come from one load: only then do they share the state."""

    def __init__(self, artifact: Artifact) -> None:
        """Raises ArtifactError where the program does not load here or is not what the manifest says."""
        runtime = executorch_runtime()
        manifest = artifact.manifest
        check_methods(manifest)
        if manifest.needs_kernels:
            library.load()
        _load_operators(operator_libraries(manifest.namespaces))
        check_runtime(manifest, operator_names(runtime), backend_names(runtime))
        if any(XNNPACK in method.delegates for method in manifest.methods.values()):
            share_packed_weights()
        self._file = artifact.opened[PROGRAM]
        check_plans(manifest, self._file)
        loadable = self._file.loadable
        try:
            with without_native_log():
                self._program = load_program(runtime, loadable)
                self._methods = {name: self._program.load_method(manifest.program_method(name)) for name in manifest.methods}
        except (RuntimeError, MemoryError) as error:
            said = f"{artifact.program} does not load: {_reason(error)}."
            raise ArtifactError(said + other_version(manifest)) from None
        self._file.check_loaded(loadable)
        metas = {name: method.method_meta() for name, method in self._methods.items()}
        asked = expected_constants(manifest).keys() - (OF_DRAFTERS - method_names(self._program))
        check_program(manifest, metas, {name: self.constants(name) for name in asked})
        check_buffers(manifest, self._file)
        names = buffer_names(manifest)
        self._state: dict[str, Tensor] = {name: self._methods["decode"].get_attribute(STATE + name) for name in names}
        self._bounded = {name: self._state[name] for name in bounded_names(names, self.constants(BOUNDED))}
        self._operations = self._state["operations"]
        for buffer in self._state.values():
            release_pages(buffer)

    def call(self, name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run a method; the outputs are the caller's own copies, because the runtime reuses its memory.

        Raises ArtifactError where the runtime itself fails, and where the program's file is another one by now.
        """
        self._file.check_unchanged()
        try:
            outputs = tuple(map(copied, call_method(self._methods[name], inputs)))
        except (RuntimeError, MemoryError) as error:
            raise ArtifactError(f"the program failed in {name!r}: {_reason(error)}.") from None
        self._file.check_unchanged()
        return outputs

    def load_method(self, name: str) -> None:
        """Make a method of the program that the manifest does not list callable too."""
        self._methods[name] = self._program.load_method(name)

    def constants(self, name: str) -> list[Any]:
        """All that a constant method of the program answers."""
        try:
            return list(self._program.load_method(name).call(()))
        except (RuntimeError, MemoryError) as error:
            raise ArtifactError(f"the program does not answer {name}(): {_reason(error)}.") from None

    def state(self) -> dict[str, Tensor]:
        """Return every buffer of the state by name, as views of the runtime's own memory: look, and write with care."""
        return self._state.copy()

    def bounded(self) -> dict[str, Tensor]:
        """Views of the buffers that the program names as bounded."""
        return self._bounded

    def operations(self) -> int:
        """The program's own count."""
        return int(self._operations)


def _reason(error: Exception) -> str:
    return "it asks for more memory than there is" if isinstance(error, MemoryError) else first_line(error)


def _load_operators(libraries: Iterable[Path]) -> None:
    with without_native_log():
        for path in libraries:
            torch.ops.load_library(str(path))
