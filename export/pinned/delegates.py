"""ExecuTorch 1.5.1: how a part of a method is given to a backend.

The lowering finds the class that compiles for a backend by the backend's name among the subclasses of ``Compiler``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node

Compiler: TypeAlias = BackendDetails
"""Its ``preprocess(edge_program, compile_specs)`` returns a ``Compiled``; a final class, for which no other may stand."""

Compiled: TypeAlias = PreprocessResult
Specs: TypeAlias = list[CompileSpec]
Cutter: TypeAlias = Partitioner
"""Its ``partition(exported_program)`` returns the ``Parts`` of a method."""

Parts: TypeAlias = PartitionResult


def parts_of(program: ExportedProgram, parts: Sequence[Sequence[Node]], backend: str, specs: Mapping[str, str]) -> Parts:
    """Mark the nodes of each part, and the constants that it alone reads, for a backend and its compiler's options."""
    given = DelegationSpec(backend, [CompileSpec(key, value.encode()) for key, value in specs.items()])
    for number, nodes in enumerate(parts):
        for node in nodes:
            node.meta["delegation_tag"] = f"part_{number}"
    tag_constant_data(program)
    return PartitionResult(
        tagged_exported_program=program, partition_tags={f"part_{number}": given for number in range(len(parts))}
    )


def read_specs(specs: Specs) -> dict[str, str]:
    """Return a compiler's options."""
    return {each.key: each.value.decode() for each in specs}
