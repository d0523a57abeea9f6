"""Turn the methods' modules into one ExecuTorch program: export, rewrite, partition, plan memory."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from executorch.exir import EdgeProgramManager, ExecutorchProgramManager, to_edge, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule, Node

from hybridge.errors import ExportFailedError, HybridgeError
from hybridge.export.lower.delegates import delegate_partitioner
from hybridge.export.lower.fusion import EDGE_PASSES, fuse
from hybridge.export.lower.layer_copies import UnlikeLayersError
from hybridge.export.lower.repeat import RepeatedLayers
from hybridge.export.lower.rewrite import (
    drop_empty_operands,
    drop_idle_nodes,
    fold_constants,
    forget_provenance,
    reductions_as_products,
    write_out_tanh_gelu,
)
from hybridge.export.pinned.delegates import hand_to, parts_uncomputed
from hybridge.export.pinned.edge_passes import quick_passes
from hybridge.export.pinned.executorch import backend_config, constants_in_place, edge_config, orders_remembered
from hybridge.export.pinned.torch_export import (
    Operator,
    fewer_decompositions,
    known_operators,
    late_code,
    metadata_by_one_reading,
    quick_overrides,
    signatures_read_once,
    without_history,
)
from hybridge.export.pinned.xnnpack import LinearConfig, Partitioner, configs, fewer_passes, quick_merges, weights_held_once
from hybridge.imports import quiet
from hybridge.runtime.artifact.delegates import DELEGATED, DELEGATES
from hybridge.runtime.artifact.manifest import program_method
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.pinned import SCALAR_TYPES

Methods = Mapping[str, tuple[nn.Module, tuple[Tensor, ...]]]
Step = Callable[[str], AbstractContextManager[None]]

DELEGATED_METHODS = frozenset(map(program_method, DELEGATED))

STATE_ONLY = frozenset(map(program_method, ("snapshot", "restore", "reset")))
"""Methods that only move state: XNNPACK fails on arguments that pass through."""


def lower(
    methods: Methods, *, options: ExportOptions, constants: Mapping[str, Any], step: Step, holder: nn.Module | None = None
) -> ExecutorchProgramManager:
    """Lower all ``methods``, which share their state, and ``constants`` as methods of their own, to one program.

    holder: the model over its cache that the methods share, of whose layers only a few of each kind are lowered if all of the
    kind are alike (``hybridge.export.lower.repeat``); the program is the same.

    Raises ExportFailedError, naming the step, where PyTorch or ExecuTorch gives up.
    """
    plain = options.kernels == "hybridge" and options.lowered_to == "portable"
    layers = RepeatedLayers.of(holder, options.tap_layers) if holder is not None and plain else None
    if layers is not None:
        with suppress(UnlikeLayersError):
            return _lower(methods, options, constants, step, layers)
    return _lower(methods, options, constants, step, None)


def _lower(
    methods: Methods, options: ExportOptions, constants: Mapping[str, Any], step: Step, layers: RepeatedLayers | None
) -> ExecutorchProgramManager:
    own = options.kernels == "hybridge"
    backend = options.lowered_to
    with quiet(), torch.no_grad(), quick_lowering():
        with step(f"Tracing {len(methods)} methods"), explained("torch.export"), layers.left_out() if layers else nullcontext():
            programs = {name: _trace(*method) for name, method in methods.items()}
        for name, program in programs.items():
            if layers is not None:
                layers.check_traced(program)
            forget_provenance(program)
            drop_idle_nodes(program)
            fold_constants(program)
            drop_empty_operands(program)
            if backend == "xnnpack" and name not in STATE_ONLY:
                reductions_as_products(program)
                write_out_tanh_gelu(program)
            if own:
                fuse(program, for_delegate=name in DELEGATED_METHODS)
        with step(f"Lowering to {backend}"), explained("the lowering"):
            edge = _to_edge(programs, backend, constants)
        if delegated := methods.keys() & DELEGATED_METHODS:
            with step(f"Compiling parts for {options.delegate}"), explained("the delegate's compiler"):
                if layers is not None:  # a delegate's parts are no copies of one another: each has weights of its own
                    for program in map(edge.exported_program, delegated):
                        layers.put_in(program, program.graph_module, program.graph_signature)
                edge = edge.to_backend({name: delegate_partitioner(options) for name in delegated})
                for name in delegated:
                    hand_to(edge.exported_program(name), DELEGATES[options.delegate].backend)
        if own:
            edge = edge.transform(EDGE_PASSES)
        with step("Planning memory"), explained("memory planning"), signatures_read_once():
            return edge.to_executorch(backend_config(partial(_complete, edge, layers) if layers else None))


def _complete(edge: EdgeProgramManager, layers: RepeatedLayers, module: GraphModule, signature: ExportGraphSignature) -> None:
    """Put the layers that were left out into a method before its memory is planned."""
    programs = ((name, edge.exported_program(name)) for name in edge.methods)
    name, program = next(each for each in programs if each[1].graph_signature.input_specs is signature.input_specs)
    if name not in DELEGATED_METHODS:
        layers.put_in(program, module, signature)


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
    """Trace a module, for any size of the dimensions that it names as ``dynamic_shapes``; most name none."""
    return torch.export.export(module, example, strict=False, dynamic_shapes=getattr(module, "dynamic_shapes", None))


def _to_edge(programs: Mapping[str, ExportedProgram], backend: str, constants: Mapping[str, Any]) -> EdgeProgramManager:
    if backend == "portable":  # decomposes each graph once, which for partitioners must be done twice
        return to_edge(dict(programs), constant_methods=dict(constants), compile_config=edge_config())
    partitioners = {name: [] if name in STATE_ONLY else [OnceStored()] for name in programs}
    return to_edge_transform_and_lower(
        dict(programs),
        partitioner=partitioners,
        compile_config=edge_config(),
        constant_methods=dict(constants),
    )


@contextmanager
def explained(stage: str) -> Iterator[None]:
    """Turn what a library raises inside into an ExportFailedError that names the stage; hybridge's own errors stay."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError, HybridgeError, UnlikeLayersError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ExportFailedError(f"{stage} failed: {type(error).__name__}: {first}") from error


# Choose what runs in XNNPACK.
#
# It stores its own copy of each weight, so weights that others read too are left to them: every weight lies in the
# file once.


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


# Make the pinned lowering faster without changing what comes out of it.
#
# Where the time goes is in docs/benchmarks.md: tracing and decomposing are most of what is left.


NEVER = 1_000_000
"""Collections of the younger objects before one of all."""


@contextmanager
def quick_lowering() -> Iterator[None]:
    """Lower faster inside: nodes without history, graphs without code, fewer passes of XNNPACK, and each weight held once."""
    with (
        without_history(),
        late_code(),
        known_operators(),
        quick_overrides(),
        fewer_decompositions(),
        fewer_passes(),
        quick_merges(),
        weights_held_once(),
        constants_in_place(),
        orders_remembered(),
        quick_passes(),
        parts_uncomputed(),
        metadata_by_one_reading(),
        _young_garbage_collection(),
    ):
        yield


@contextmanager
def _young_garbage_collection() -> Iterator[None]:
    """Let the garbage collector walk new objects alone: walking a graph's millions again and again is a quarter of the time.

    It walks a fifth of a million at a time; without that a program for XNNPACK takes a gigabyte more.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
