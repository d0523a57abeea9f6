"""ExecuTorch 1.5.1's compiler for Vulkan, which is in its wheel: from a graph of core operators to a part of a program."""

from __future__ import annotations

from collections.abc import Sequence

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx import GraphModule

from hybridge.errors import ExportFailedError
from hybridge.export.pinned.delegates import Compiled, edge_program
from hybridge.imports import quiet


def compiled_for_vulkan(graph: GraphModule, shapes: Sequence[Sequence[int]], device: str, weights: str) -> Compiled:
    """Return a part for Vulkan's backend. shapes: of the inputs; weights: float32, or float16 to compute in it as well.

    Raises ExportFailedError if the backend lacks an operator, which its runtime would find out only on a device.
    """
    with quiet():
        from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
        from executorch.backends.vulkan.vulkan_preprocess import VulkanBackend

        program = edge_program(graph, shapes)
        VulkanPartitioner({}).partition(program)
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        if lacking := sorted({str(node.target) for node in calls if "delegation_tag" not in node.meta}):
            raise ExportFailedError(f"ExecuTorch's Vulkan backend for a {device} has no operator {', '.join(lacking)}")
        for node in program.graph.nodes:
            node.meta.pop("delegation_tag", None)
        return VulkanBackend.preprocess(program, [CompileSpec("force_fp16", bytes([weights == "float16"]))])
