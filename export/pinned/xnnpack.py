"""ExecuTorch 1.5.1's XNNPACK backend: how its partitioner chooses, and patches that spare passes and copies of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest import mock

from executorch.backends.xnnpack import _passes, xnnpack_preprocess
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS, gemm_configs, generic_node_configs
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from torch.fx.passes.utils.fuser_utils import validate_partition

Partitioner: TypeAlias = XnnpackPartitioner
"""Takes a list of configs, one class for each operator. ``ops_to_not_decompose`` gives operators and a filter of nodes."""

LinearConfig: TypeAlias = gemm_configs.LinearConfig
"""Takes ``aten.linear`` where its ``check_constraints(node, program)`` is true; args[1] of the node is the weight."""

ProductConfig: TypeAlias = generic_node_configs.BMMConfig
"""Takes ``aten.bmm``, the products of experts."""

POINTLESS_PASSES = frozenset(
    {
        "ConvertToUpsampleBilinear2d",  # images
        "ConvertToSDPAPass",  # attention never reaches XNNPACK: it is a kernel of its own or several islands
        "FuseBatchNormPass",
        "DecomposeBatchNorm",
        "PReLUReshapePass",
        "PropagateCustomMetaPass",
    }
)
"""Classes of XNNPACK's passes that find nothing in a language model, by name; each walks every graph all the same."""

SOUGHT: Mapping[str, frozenset[str]] = {
    "ConvertToLinearPass": frozenset({"aten.mm.default", "aten.addmm.default", "aten.bmm.default"}),
    "FuseActivationPass": frozenset({"aten.relu.default", "aten.hardtanh.default"}),
    "DecomposeConcatenate": frozenset({"aten.cat.default"}),
    "RemoveGetItemPass": frozenset({"aten.max_pool2d_with_indices.default", "aten.max.dim"}),
    "InsertPadQDQPass": frozenset({"aten.constant_pad_nd.default"}),
    "Conv1dUnsqueezePass": frozenset({"aten.convolution.default"}),
    "RemoveRedundantCopyPass": frozenset({"aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default"}),
}
"""The operators that other passes change, by the pass: without them it only traces the graph once more."""


def configs(linear: type[LinearConfig]) -> list[Any]:
    """Return all configs with ``linear`` in place of XNNPACK's own for linear layers, and without that for products."""
    everything = list(ALL_PARTITIONER_CONFIGS)
    assert {LinearConfig, ProductConfig} <= set(everything), "XNNPACK's configs have other names; see export/pinned/xnnpack.py"
    return [linear if each is LinearConfig else each for each in everything if each is not ProductConfig]


@contextmanager
def fewer_passes() -> Iterator[None]:
    """Let XNNPACK skip ``POINTLESS_PASSES``, and of ``SOUGHT`` those with nothing to do: a third of the lowering.

    Patches the name of the pass manager where ``XnnpackBackend.preprocess`` looks it up; it runs what is in ``passes``.
    """
    with mock.patch.object(xnnpack_preprocess, "XNNPACKPassManager", _ShorterPassManager):
        yield


@contextmanager
def weights_held_once() -> Iterator[None]:
    """Let all parts of all methods hold the same bytes of a weight; each would keep its own copy until the program is written.

    XNNPACK adds a weight under the hash of what it stores (``get_serialized_buffer_index``), so equal keys are equal bytes.
    """
    held: dict[str, Any] = {}

    class SharingStore(NamedDataStore):  # type: ignore[misc]  # untyped upstream
        def add_named_data(self, key: str, data: Any, *args: Any, **options: Any) -> None:
            super().add_named_data(key, held.setdefault(key, data), *args, **options)

    with mock.patch.object(xnnpack_preprocess, "NamedDataStore", SharingStore):
        yield


class _ShorterPassManager(_passes.XNNPACKPassManager):  # type: ignore[misc]  # untyped upstream
    def __init__(self, exported_program: Any, passes: Any = None) -> None:
        super().__init__(exported_program, passes)
        there = {str(getattr(node.target, "__name__", "")) for node in exported_program.graph.nodes}
        self.passes: list[Any] = [each for each in self.passes if _may_change(each.__name__, there)]


def _may_change(name: str, operators: set[str]) -> bool:
    return name not in POINTLESS_PASSES and (name not in SOUGHT or not SOUGHT[name].isdisjoint(operators))


@contextmanager
def quick_merges() -> Iterator[None]:
    """Ask of two islands whether they can be one by whole sets of nodes, and not node by node: a tenth of the lowering.

    Patches ``GroupBasedPartitioner._can_merge_partitions``, to the same answers.
    """
    with mock.patch.object(GroupBasedPartitioner, "_can_merge_partitions", _can_merge):
        yield


def _can_merge(self: Any, first: int, second: int, partitions: Mapping[int, Any]) -> bool:
    nodes = {*partitions[first].nodes, *partitions[second].nodes}
    users = {user for node in nodes for user in node.users if user not in nodes}
    apart = all(nodes.isdisjoint(self.dependency_viewer.downstreams_of(user)) for user in users)
    return apart and bool(validate_partition(list(nodes)))
