"""Recognize in exported graphs what our kernels do in one pass, whatever model wrote it: one idea a file.

A replacement is made only if the graph says exactly what the operator computes; anything else stays as it is.
"""

from __future__ import annotations

from torch.export import ExportedProgram

from hybridge.export.lower.fusion.edge_passes import copies_to_views, multiply_by_reciprocals, use_own_operators
from hybridge.export.lower.fusion.match import make_new_tensors, mark_written, share_equal_nodes
from hybridge.export.lower.fusion.patterns import (
    cancel_transposes,
    drop_idle_scalings,
    fuse_gates,
    fuse_norms,
    fuse_rotary,
    join_linears,
    own_linears,
    scale_before_widening,
)
from hybridge.export.lower.rewrite import fold_constants

EDGE_PASSES = (copies_to_views, multiply_by_reciprocals, use_own_operators)
"""For the lowering, once views are copies and operators are the runtime's own."""


def fuse(program: ExportedProgram, *, for_delegate: bool = False) -> None:
    """Put ``hybridge::`` operators into an exported graph, in place, before it is lowered.

    for_delegate: an accelerator will take some of its linear layers, each as it is.
    """
    make_new_tensors(program)
    mark_written(program)
    drop_idle_scalings(program)
    share_equal_nodes(program)
    fuse_norms(program)
    scale_before_widening(program)  # not into a norm's weight, which would be so where no row is chosen between: other bits
    fuse_rotary(program)
    fuse_gates(program)
    cancel_transposes(program)
    fold_constants(program)
    own_linears(program)
    if not for_delegate:
        join_linears(program)
