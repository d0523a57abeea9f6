"""ExecuTorch artifacts: the exported methods and the export itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from executorch.exir import ExecutorchProgramManager
from torch import Tensor

from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.layers.layer import CacheLayer
from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.plan import DrafterPlan, plan_drafter
from hybridge.export.lower.lower import calls, lower, outputs
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.gptq import Calibrated
from hybridge.export.quantize.kept import notes
from hybridge.export.quantize.quantize import is_packed, quantize, quantize_drafter
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.write.folder import WeightFigures, manifest_of, write_tokenizer
from hybridge.export.write.methods import State, build_methods
from hybridge.runtime.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    PROGRAM,
    CalibrationEntry,
    LayerEntry,
    Manifest,
    MethodEntry,
    TensorEntry,
    program_method,
)
from hybridge.runtime.artifacts.options import ExportOptions, drafter_constants
from hybridge.runtime.artifacts.program_check import BOUNDED

# Export a checkpoint: read, adapt, lower, write, and put down in the manifest what was made.


def export(
    checkpoint: LoadedModel,
    cache: HybridCache,
    folder: Path,
    options: ExportOptions,
    steps: ExportProgress,
    calibrated: Calibrated | None = None,
    plan: DrafterPlan | None = None,
) -> Manifest:
    """Write the artifact of ``checkpoint`` into the existing, empty ``folder``; the model is adapted in place.

    cache is what ``build_cache`` made of the same config, options and drafter. Raises ExportFailedError and OSError.
    """
    write_tokenizer(checkpoint, folder, steps)
    plan = plan or plan_drafter(checkpoint.config, options)[0]
    drafter_weights = plan.load(checkpoint) if plan else None
    if is_packed(options):
        with steps.step("Packing the weights"):
            quantize(checkpoint.model, options, calibrated.rounder if calibrated else None)
        for note in notes(checkpoint.model):
            steps.warn(note)
    if drafter_weights is not None:
        quantize_drafter(drafter_weights, options)
    drafter = plan.build(drafter_weights, cache) if plan else None
    weights = WeightFigures.of(checkpoint.model, *([drafter] if drafter else []))
    calibration = calibrated.entry(checkpoint.model) if calibrated else None
    state = State(checkpoint.model, cache, options.tap_layers, drafter)
    methods = build_methods(state, options.shorter_verify_lens)
    constants = constant_methods(checkpoint, cache, options, drafter)
    named = {program_method(name): method for name, method in methods.items()}
    program = lower(named, options=options, constants=constants, step=steps.step)
    with steps.step(f"Writing {PROGRAM}"), (folder / PROGRAM).open("wb") as file:
        program.write_to_file(file)
    manifest = build_manifest(
        checkpoint,
        cache,
        options,
        program,
        folder,
        weights,
        calibration,
        {name: args for name, (_, args) in methods.items()},
        drafter,
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def constant_methods(
    checkpoint: LoadedModel, cache: HybridCache, options: ExportOptions, drafter: ArtifactDrafter | None
) -> dict[str, Any]:
    """Return the program's constants: the stock runner's names, and ours for a harness that reads no manifest."""
    bounded = cache.bounded_buffers()
    return {
        "get_max_seq_len": options.max_seq_len,
        "get_max_context_len": options.max_seq_len,
        "get_vocab_size": checkpoint.vocab_size,
        "get_bos_id": checkpoint.bos_id if checkpoint.bos_id is not None else -1,
        "get_eos_ids": checkpoint.eos_ids or [-1],
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": options.kernels != "aten",
        "enable_dynamic_shape": False,
        "hybridge_format_version": FORMAT_VERSION,
        "hybridge_prefill_chunk": options.prefill_chunk,
        "hybridge_verify_len": options.verify_len,
        "hybridge_verify_lens": options.verify_lens,
        "hybridge_snapshot_slots": options.snapshot_slots,
        "hybridge_taps": len(options.tap_layers),
        "hybridge_draft_len": drafter.description.blocks[-1] - 1 if drafter else 0,
        **(drafter_constants(drafter.description, options.tap_layers) if drafter else {}),
        BOUNDED: [place for place, (name, _) in enumerate(cache.named_buffers()) if name in bounded],
    }


def build_manifest(
    checkpoint: LoadedModel,
    cache: HybridCache,
    options: ExportOptions,
    program: ExecutorchProgramManager,
    folder: Path,
    weights: WeightFigures,
    calibration: CalibrationEntry | None,
    inputs: Mapping[str, tuple[Tensor, ...]],
    drafter: ArtifactDrafter | None = None,
) -> Manifest:
    """Return the manifest of what was written to ``folder``."""
    return manifest_of(
        checkpoint,
        replace(options, backend=options.lowered_to, kv_cache=options.kv_dtype),
        folder,
        weights=weights,
        calibration=calibration,
        layers=[_layer(layer) for layer in cache.cache_layers()],
        methods={name: _method(name, args, program) for name, args in inputs.items()},
        libraries=("torch", "executorch", "transformers"),
        drafter=drafter.description if drafter else None,
    )


def _layer(layer: CacheLayer) -> LayerEntry:
    use = layer.bytes_by_use()
    return LayerEntry(
        kind=layer.kind,
        buffers={name: _tensor(buffer) for name, buffer in layer.named_buffers()},
        state_bytes=use["state"],
        rollback_bytes=use["rollback"],
        slot_bytes=use["slots"],
    )


def _method(name: str, args: tuple[Tensor, ...], program: ExecutorchProgramManager) -> MethodEntry:
    plan = program_method(name)
    operators, delegates = calls(program, plan)
    return MethodEntry(
        inputs=[_tensor(each) for each in args],
        outputs=[TensorEntry(shape=shape, dtype=dtype) for shape, dtype in outputs(program, plan)],
        operators=operators,
        delegates=dict(delegates),
    )


def _tensor(tensor: Tensor) -> TensorEntry:
    return TensorEntry(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
