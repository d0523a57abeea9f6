"""From the methods' modules to one ExecuTorch program: export, rewrite, partition, plan memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchProgramManager,
    to_edge,
    to_edge_transform_and_lower,
)
from torch import Tensor, nn
from torch.export import ExportedProgram

from hybridge.cache.errors import ExportFailedError, HybridgeError
from hybridge.cache.quiet import quiet
from hybridge.export.lowering.fusion import EDGE_PASSES, fuse
from hybridge.export.lowering.partition import OnceStored
from hybridge.export.lowering.quick_lowering import quick_lowering
from hybridge.export.lowering.rewrite import drop_empty_operands, fold_constants, forget_provenance, reductions_as_products
from hybridge.export.lowering.tidy import drop_idle_nodes, write_out_tanh_gelu
from hybridge.export.pinned.executorch import backend_config, edge_config
from hybridge.runtime.artifacts.manifest import program_method
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.pinned import SCALAR_TYPES

Methods = Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]
Step = Callable[[str], AbstractContextManager[None]]

STATE_ONLY = frozenset(map(program_method, ("snapshot", "restore", "reset")))
"""Methods that only move state: XNNPACK fails on arguments that pass through."""


def lower(methods: Methods, *, options: ExportOptions, constants: Mapping[str, Any], step: Step) -> ExecutorchProgramManager:
    """Lower all ``methods``, which share their state, and ``constants`` as methods of their own, to one program.

    Raises ExportFailedError, naming the step, where PyTorch or ExecuTorch gives up.
    """
    own = options.kernels == "hybridge"
    backend = options.lowered_to
    with quiet(), torch.no_grad(), quick_lowering():
        with step(f"Tracing {len(methods)} methods"), explained("torch.export"):
            programs = {name: _trace(module, example) for name, (module, example) in methods.items()}
        for name, program in programs.items():
            forget_provenance(program)
            drop_idle_nodes(program)
            fold_constants(program)
            drop_empty_operands(program)
            if backend == "xnnpack" and name not in STATE_ONLY:
                reductions_as_products(program)
                write_out_tanh_gelu(program)
            if own:
                fuse(program)
        with step(f"Lowering to {backend}"), explained("the lowering"):
            edge = _to_edge(programs, backend, constants, EDGE_PASSES if own else ())
        with step("Planning memory"), explained("memory planning"):
            return edge.to_executorch(backend_config())


def calls(program: ExecutorchProgramManager, method: str) -> tuple[list[str], Counter[str]]:
    """Return the runtime operators of a method, as their kernels are registered, and its delegate calls by backend."""
    plan = _plan(program, method)
    operators = sorted({f"{each.name}.{each.overload}" if each.overload else each.name for each in plan.operators})
    return operators, Counter(each.id for each in plan.delegates)


def outputs(program: ExecutorchProgramManager, method: str) -> list[tuple[list[int], str]]:
    """Return shape and dtype (such as ``float32``) of each output of a method."""
    plan = _plan(program, method)
    tensors = (plan.values[index].val for index in plan.outputs)
    return [(list(each.sizes), SCALAR_TYPES[each.scalar_type]) for each in tensors]


def _plan(program: ExecutorchProgramManager, method: str) -> Any:
    return next(plan for plan in program.executorch_program.execution_plan if plan.name == method)


def _trace(module: nn.Module, example: tuple[Tensor, ...]) -> ExportedProgram:
    return torch.export.export(module, example, strict=False)


def _to_edge(
    programs: Mapping[str, ExportedProgram], backend: str, constants: Mapping[str, Any], passes: Sequence[Any]
) -> EdgeProgramManager:
    if backend == "portable":  # decomposes each graph once, which for partitioners must be done twice
        edge = to_edge(dict(programs), constant_methods=dict(constants), compile_config=edge_config())
        return edge.transform(passes) if passes else edge
    partitioners = {name: [] if name in STATE_ONLY else [OnceStored()] for name in programs}
    return to_edge_transform_and_lower(
        dict(programs),
        transform_passes=passes or None,
        partitioner=partitioners,
        compile_config=edge_config(),
        constant_methods=dict(constants),
    )


@contextmanager
def explained(stage: str) -> Iterator[None]:
    """Turn what a library raises inside into an ExportFailedError that names the stage; hybridge's own errors stay."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError, HybridgeError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ExportFailedError(f"{stage} failed: {type(error).__name__}: {first}") from error
