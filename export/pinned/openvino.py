"""OpenVINO 2025.1 and later: from a graph of PyTorch's core operators to the blob that ExecuTorch's backend reads.

``executorch.backends.openvino`` is not imported: its package imports nncf, which only its quantizer needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.fx import GraphModule

from hybridge.errors import ExportFailedError
from hybridge.imports import quiet

Stored = str
"""How the weights of products are stored: float32, float16, int8 or int4."""

GROUP = 64
"""Columns of a weight of 4 bits that share a scale; a weight of 8 bits has one for each row."""

SMALLEST = 4096
"""Numbers of a constant that is worth storing in fewer bits."""


def compiled_blob(graph: GraphModule, inputs: Sequence[Sequence[int]], device: str, weights: Stored) -> bytes:
    """Return what OpenVINO compiles ``graph`` to for a device, as ``ov_core_import_model`` reads it.

    Computes in float32, or in the device's own precision if the weights have fewer bits. inputs: their shapes; all are float32.
    Raises ExportFailedError if OpenVINO refuses the graph or the device.
    """
    with quiet():
        import openvino as ov
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    try:
        with quiet():
            frontend = FrontEndManager().load_by_framework("pytorch")
            decoder = TorchFXPythonDecoder(graph)
            model = frontend.convert(frontend.load(decoder))
            for port, shape in zip(model.inputs, inputs, strict=True):
                port.get_node().set_element_type(ov.Type.f32)
                port.get_node().set_partial_shape(ov.PartialShape(list(shape)))
            model.validate_nodes_and_infer_types()
            if weights != "float32":
                store_weights(model, weights)
            config = {"INFERENCE_PRECISION_HINT": "f32"} if weights == "float32" else {}
            blob: bytes = ov.Core().compile_model(model, device, config).export_model().getvalue()
    except (RuntimeError, TypeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ExportFailedError(f"OpenVINO does not compile a part of the model for {device}: {first}") from error
    return blob


def store_weights(model: Any, weights: Stored) -> None:
    """Store each constant matrix [N, K] of a product in fewer bits, in the form that OpenVINO's plugins multiply with."""
    import openvino as ov
    from openvino import opset13 as op

    if weights == "float16":
        from openvino._offline_transformations import compress_model_transformation

        compress_model_transformation(model)
        return
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        reader = node.input(1)  # the converter transposes a layer's weight [N, K] before its product
        if reader.get_source_output().get_node().get_type_name() == "Transpose":
            reader = reader.get_source_output().get_node().input(0)
        constant = reader.get_source_output().get_node()
        matrix: NDArray[Any] = constant.data if constant.get_type_name() == "Constant" else np.empty(0)
        if (
            matrix.ndim != 2
            or matrix.size < SMALLEST
            or (reader.get_node() == node and not node.get_attributes()["transpose_b"])
        ):
            continue
        rows, columns = matrix.shape
        bits, group = (4, GROUP) if weights == "int4" and columns % GROUP == 0 else (8, columns)
        quanta, scales = rounded(matrix.reshape(rows, -1, group), bits)
        stored = op.constant(quanta, ov.Type.i4) if bits == 4 else op.constant(quanta)
        product = op.multiply(op.convert(stored, "f16"), op.constant(scales.astype(np.float16)))
        whole = op.reshape(product, op.constant(np.array([rows, columns])), special_zero=False)
        reader.replace_source_output(op.convert(whole, "f32").output(0))


def rounded(groups: NDArray[Any], bits: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Round groups [N, G, K / G] to int8 of ``bits`` bits, and return these and their scales [N, G, 1]."""
    high = (1 << (bits - 1)) - 1
    scales = np.abs(groups).max(-1, keepdims=True) / high
    scales = np.maximum(scales, np.finfo(np.float16).tiny).astype(np.float16).astype(np.float32)
    return np.clip(np.rint(groups / scales), -high - 1, high).astype(np.int8), scales
