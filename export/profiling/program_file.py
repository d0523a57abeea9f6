"""Read the plans of a ``model.pte`` and write the file again with more of them; weights are copied and never parsed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hybridge.cache.errors import ArtifactError
from hybridge.cache.quiet import quiet
from hybridge.export.pinned.program_format import HEAD_BYTES, read_header, read_program, write_program


class ProgramFile:
    """A program file: ``plans`` by name, in the classes of ``executorch.exir.schema``."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactError where the file has no segments, as ExecuTorch writes them since 0.3."""
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
        """Write the same program with ``plans`` behind its own."""
        own = self._program.execution_plan
        self._program.execution_plan = [*own, *plans]
        with quiet():
            data = write_program(self._program, self._header.segment_data_size)
        self._program.execution_plan = own
        with path.open("wb") as to, self.path.open("rb") as weights:
            to.write(data)
            weights.seek(self._header.segment_base_offset)
            shutil.copyfileobj(weights, to, 1 << 24)
