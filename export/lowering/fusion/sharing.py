"""Compute once what a graph computes twice of the same tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hybridge.export.lowering.fusion.match import AnyNode, all_nodes, is_unwritten
from hybridge.export.pinned.torch_export import Operator, declared


def share_equal_nodes(program: ExportedProgram) -> None:
    """Drop calls that an earlier one is equal to, of operators that only compute and tensors that nothing writes to."""
    seen: dict[Any, Node] = {}
    for node in all_nodes(program):
        if (key := _key(node)) is not None and (first := seen.setdefault(key, node)) is not node:
            node.replace_all_uses_with(first)
            program.graph.erase_node(node)


def _key(node: AnyNode) -> Any:
    """Return a key equal for calls that give the same; None if it cannot be known."""
    if not isinstance(node.target, Operator) or declared(node.target).is_mutable or not declared(node.target).returns:
        return None
    if torch.Tag.nondeterministic_seeded in node.target.tags or not is_unwritten(node, *node.all_input_nodes):
        return None
    return repr((node.target, node.args, sorted(node.kwargs.items())))
