"""Export a checkpoint for onnxruntime: trace, write with the weights beside the graph, check, and describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.onnx.genai_config import write_genai_config
from hybridge.export.onnx.manifest_entries import layer_entries, method_entries, staged_entries, state_entries
from hybridge.export.onnx.quantized import quantize_linears
from hybridge.export.onnx.trace import OPSET, trace_commit, trace_model
from hybridge.export.onnx.traced_cache import TracedCache
from hybridge.export.output.description import Weights, manifest_of, write_tokenizer
from hybridge.export.output.progress import ExportProgress
from hybridge.export.quantization.calibration import Calibrated
from hybridge.export.quantization.quantize import is_quantized
from hybridge.runtime.artifacts.manifest import (
    MANIFEST,
    ONNX_COMMIT,
    ONNX_PROGRAM,
    ONNX_WEIGHTS,
    Manifest,
    OnnxEntry,
    OnnxStaged,
)
from hybridge.runtime.artifacts.options import ExportOptions

CONTRIB = "com.microsoft"


def export_onnx(
    checkpoint: Checkpoint,
    cache: TracedCache,
    folder: Path,
    options: ExportOptions,
    steps: ExportProgress,
    calibrated: Calibrated | None = None,
    drafter: object = None,
) -> Manifest:
    """Write the ONNX artifact of ``checkpoint`` into the existing, empty ``folder``; the model is adapted in place.

    Raises UnsupportedModelError for what onnxruntime has no operators for, ExportFailedError and OSError.
    """
    write_tokenizer(checkpoint, folder, steps)
    if is_quantized(options):
        with steps.step("Quantizing the weights"):
            quantize_linears(checkpoint.model, options, calibrated.rounder if calibrated else None)
    weights = Weights.of(checkpoint.model)
    with steps.step("Tracing the model"):
        model = trace_model(checkpoint.model, cache)
    staged = staged_entries(model, options.verify_len)
    with steps.step(f"Writing {ONNX_PROGRAM}"):
        _write(model, folder / ONNX_PROGRAM)
    if cache.bounded:
        with steps.step("Tracing the commit"):
            _write(trace_commit(cache, [entry.shape for entry in staged]), folder / ONNX_COMMIT)
    write_genai_config(checkpoint, cache, folder, options)
    manifest = build_manifest(checkpoint, cache, options, model, folder, weights, staged)
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def build_manifest(
    checkpoint: Checkpoint,
    cache: TracedCache,
    options: ExportOptions,
    model: onnx_ir.Model,
    folder: Path,
    weights: Weights,
    staged: Sequence[OnnxStaged],
) -> Manifest:
    """Return the manifest of what was written to ``folder``."""
    operators = sorted({f"{node.domain}::{node.op_type}" for node in model.graph if node.domain == CONTRIB})
    return manifest_of(
        checkpoint,
        options,
        folder,
        weights=weights,
        layers=layer_entries(cache, staged, options.snapshot_slots),
        methods=method_entries(options, checkpoint.vocab_size, operators),
        libraries=("torch", "transformers", "onnx", "onnxscript", "onnxruntime"),
        onnx=OnnxEntry(opset=OPSET, contrib_operators=operators, states=state_entries(cache), staged=list(staged)),
    )


def _write(model: onnx_ir.Model, path: Path) -> None:
    """Write tensor by tensor, large ones beside the graph, and check what was written."""
    ClearMetadataAndDocStringPass()(model)  # where in which source file a node came from
    onnx_ir.save(model, path, external_data=ONNX_WEIGHTS if path.name == ONNX_PROGRAM else None)
    onnx.checker.check_model(str(path))
