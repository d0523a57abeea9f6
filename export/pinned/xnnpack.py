"""ExecuTorch 1.5.1's XNNPACK backend: how its partitioner chooses, and patches that spare passes and copies of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest import mock

from executorch.backends.xnnpack import _passes, xnnpack_preprocess
from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS, gemm_configs, generic_node_configs
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir._serialize._named_data_store import NamedDataStore

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


def configs(linear: type[LinearConfig]) -> list[Any]:
    """Return all configs with ``linear`` in place of XNNPACK's own for linear layers, and without that for products."""
    everything = list(ALL_PARTITIONER_CONFIGS)
    assert {LinearConfig, ProductConfig} <= set(everything), "XNNPACK's configs have other names; see export/pinned/xnnpack.py"
    return [linear if each is LinearConfig else each for each in everything if each is not ProductConfig]


@contextmanager
def fewer_passes() -> Iterator[None]:
    """Let XNNPACK skip ``POINTLESS_PASSES``: a third of the lowering.

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
        self.passes: list[Any] = [each for each in self.passes if each.__name__ not in POINTLESS_PASSES]
