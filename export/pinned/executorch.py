"""ExecuTorch 1.5.1: names of its edge dialect, and what the lowering is asked for beyond its documented options."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.transforms.utils import create_constant_placeholder
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
from executorch.exir.dialects._ops import ops
from executorch.exir.passes import MemoryPlanningPass
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

edge: Any = ops.edge
"""The operators of a graph that is being lowered, as ``edge.aten`` and ``edge.hybridge``: views are copies there."""

CLONE: Any = ops.edge.dim_order_ops._clone_dim_order.default
"""A clone that may also change the order of dimensions: what ``aten.clone`` becomes in the edge dialect."""


def edge_config() -> EdgeCompileConfig:
    """Return a config that takes operators which are neither ATen's core ones nor listed: ours.

    The check alone is left out; an operator without an out variant still fails, in ``to_executorch``.
    """
    return EdgeCompileConfig(_check_ir_validity=False)


def backend_config() -> ExecutorchBackendConfig:
    """Return a config for methods that share their state by qualified name, write rows in place and say what it is called.

    With ``share_mutable_buffers`` the buffers of all methods lie in one arena, which a runtime allocates once for a program;
    with ``emit_mutable_buffer_names`` it hands them out by name (``hybridge.runtime.pinned``).
    """
    return ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True),
        run_reinplace_pass=True,  # rows are written in place, not by copying the whole buffer
        emit_mutable_buffer_names=True,
    )


def constant_input(program: ExportedProgram, name: str, value: torch.Tensor) -> Node:
    """Add a constant input to an exported graph, to its signature and to its state, before all other nodes.

    A persistent buffer that nothing writes to: the lowering stores it as it stores a weight.
    """
    graph = program.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        node: Node = create_constant_placeholder(program, graph, name, InputKind.BUFFER, value, persistent_buffer=True)
    return node
