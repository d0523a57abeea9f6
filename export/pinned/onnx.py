"""onnxscript 0.7, onnx_ir 1.1 and torch 2.13's translation to ONNX: onnxruntime's own operators in a graph."""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.rewriter.ort_fusions.rms_normalization import fuse_rms_normalization
from onnxscript.rewriter.ort_fusions.skip_normalization import fuse_skip_rms_normalization

FUSED, STANDARD = "SimplifiedLayerNormalization", "RMSNormalization"
"""The fusion's name of a norm, and the name in the ONNX standard, which the checker knows."""


def fuse_norms(model: onnx_ir.Model) -> None:
    """Make norms, with the sums before them, one operator each; onnxruntime itself finds only other forms of them."""
    fuse_rms_normalization(model)
    fuse_skip_rms_normalization(model)
    for node in model.graph:
        if node.op_type == FUSED:
            node.op_type = STANDARD
    RemoveUnusedNodesPass()(model)
