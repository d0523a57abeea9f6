"""coremltools 9.0 by ExecuTorch 1.5.1's compiler for Core ML: from a graph of core operators to a part of a program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO

from torch.fx import GraphModule

from hybridge.errors import ExportFailedError
from hybridge.export.pinned.delegates import Compiled, edge_program
from hybridge.imports import quiet

UNITS = {"ALL": "ALL", "CPU": "CPU_ONLY", "GPU": "CPU_AND_GPU", "NPU": "CPU_AND_NE"}
"""Core ML's names of devices."""

BLOCK = 32
"""Columns of a weight of 4 bits that share a scale."""


def compiled_for_coreml(graph: GraphModule, shapes: Sequence[Sequence[int]], device: str, weights: str) -> Compiled:
    """Return a part for Core ML of iOS 18 and macOS 15. shapes: of the inputs.

    Computes in float16, or in float32 if the weights are stored in it. Raises ExportFailedError for what it does not convert.
    """
    with quiet(), redirect_stderr(StringIO()):  # bars of progress, for each part
        import coremltools as ct
        from executorch.backends.apple.coreml.compiler import CoreMLBackend

        rounded = {
            "int8": {"mode": "linear_symmetric", "dtype": "int8", "granularity": "per_channel"},
            "int4": {"mode": "linear_symmetric", "dtype": "int4", "granularity": "per_block", "block_size": BLOCK},
        }
        specs = CoreMLBackend.generate_compile_specs(
            compute_unit=ct.ComputeUnit[UNITS[device]],
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32 if weights == "float32" else ct.precision.FLOAT16,
            op_linear_quantizer_config=rounded.get(weights),
        )
        try:
            return CoreMLBackend.preprocess(edge_program(graph, shapes), specs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise ExportFailedError(f"coremltools does not convert a part of the model: {error}") from error
