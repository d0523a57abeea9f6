"""Read the plans of a ``model.pte`` and write the file again with more of them; weights are copied and never parsed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program, _program_to_flatbuffer
from executorch.exir._serialize._program import _ExtendedHeader, _get_extended_header, _insert_flatbuffer_header
from executorch.exir._serialize.padding import aligned_size, pad_to
from executorch.exir.tensor import ALIGNMENT

from hybridge.cache.errors import ArtifactError

SEGMENT_ALIGNMENT = 4096
"""More than any segment asks for."""


class ProgramFile:
    """A program file: ``plans`` by name, in the classes of ``executorch.exir.schema``."""

    def __init__(self, path: Path) -> None:
        """Raises ArtifactError where the file has no segments, as ExecuTorch writes them since 0.3."""
        self.path = path
        with path.open("rb") as file:
            header = _get_extended_header(file.read(_ExtendedHeader.NUM_HEAD_BYTES))
            if header is None or not header.is_valid():
                raise ArtifactError(f"{path} has no header of segments; export the model again.")
            file.seek(0)
            self._program = _flatbuffer_to_program(file.read(header.program_size))
        self._header = header
        self.plans: dict[str, Any] = {plan.name: plan for plan in self._program.execution_plan}

    def write(self, path: Path, plans: Iterable[Any]) -> None:
        """Write the same program with ``plans`` behind its own."""
        own = self._program.execution_plan
        self._program.execution_plan = [*own, *plans]
        built = _program_to_flatbuffer(self._program, constant_tensor_alignment=ALIGNMENT)
        self._program.execution_plan = own
        padded = aligned_size(_ExtendedHeader.EXPECTED_LENGTH, built.max_alignment)
        size = padded + len(built.data)
        base = aligned_size(size, SEGMENT_ALIGNMENT)
        header = _ExtendedHeader(
            program_size=size, segment_base_offset=base, segment_data_size=self._header.segment_data_size
        ).to_bytes()
        data = _insert_flatbuffer_header(built.data, r"ET[0-9a-zA-Z][0-9a-zA-Z]", pad_to(header, padded))
        with path.open("wb") as to, self.path.open("rb") as weights:
            to.write(pad_to(data, base))
            weights.seek(self._header.segment_base_offset)
            shutil.copyfileobj(weights, to, 1 << 24)
