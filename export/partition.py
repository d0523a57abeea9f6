"""What XNNPACK takes.

It stores its own copy of each weight, so weights that others read too are left to them: every weight lies in the file once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
from executorch.backends.xnnpack.partition.config.gemm_configs import LinearConfig
from executorch.backends.xnnpack.partition.config.generic_node_configs import BMMConfig
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch.export import ExportedProgram
from torch.fx import Node

LINEAR = torch.ops.aten.linear.default


class OnceStored(XnnpackPartitioner):  # type: ignore[misc]  # untyped upstream
    """XNNPACK without tied output layers and products of experts, whose weights gathers read as well."""

    def __init__(self) -> None:
        configs = [UntiedLinear if config is LinearConfig else config for config in ALL_PARTITIONER_CONFIGS]
        super().__init__(configs=[config for config in configs if config is not BMMConfig])

    def ops_to_not_decompose(self, ep: ExportedProgram) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """A linear layer stays one wherever it runs: the runtime's own is many times faster than its parts."""
        operators, takes = super().ops_to_not_decompose(ep)
        return operators, lambda node: node.target == LINEAR or takes(node)


class UntiedLinear(LinearConfig):  # type: ignore[misc]  # untyped upstream
    """A linear layer whose weight is not the embedding's."""

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        return not _is_tied(node) and bool(super().check_constraints(node, ep))


def _is_tied(node: Node) -> bool:
    weight = node.args[1]
    return isinstance(weight, Node) and any("embedding" in str(user.target) for user in weight.users)
