"""Choose what runs in XNNPACK.

It stores its own copy of each weight, so weights that others read too are left to them: every weight lies in the file once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from hybridge.export.pinned.torch_export import Operator
from hybridge.export.pinned.xnnpack import LinearConfig, Partitioner, configs

LINEAR = torch.ops.aten.linear.default


class OnceStored(Partitioner):  # type: ignore[misc]  # untyped upstream
    """XNNPACK without tied output layers and products of experts, whose weights gathers read as well."""

    def __init__(self) -> None:
        super().__init__(configs=configs(UntiedLinear))

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[Operator], Callable[[Node], bool] | None]:
        """Keep a linear layer whole wherever it runs: the runtime's own is many times faster than its parts."""
        operators, takes = super().ops_to_not_decompose(ep)
        return operators, lambda node: node.target == LINEAR or takes(node)


class UntiedLinear(LinearConfig):  # type: ignore[misc]  # untyped upstream
    """A linear layer whose weight is not the embedding's."""

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return not _is_tied(node) and bool(super().check_constraints(node, ep))


def _is_tied(node: Node) -> bool:
    weight = node.args[1]
    return isinstance(weight, Node) and any("embedding" in str(user.target) for user in weight.users)
