"""Export a checkpoint: read, adapt, lower, write, and put down in the manifest what was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from executorch.exir import ExecutorchProgramManager
from torch import Tensor, nn

import hybridge
from hybridge.cache.drafter_attention import DrafterAttentionLayer
from hybridge.cache.errors import UsageError
from hybridge.cache.families import text_config
from hybridge.cache.families.attention import head_dim, kv_heads
from hybridge.cache.hybrid_cache import HybridCache
from hybridge.cache.kernels import CoreKernels, Kernels
from hybridge.cache.layer import CacheLayer
from hybridge.export.checkpoint import Checkpoint
from hybridge.export.hybridge_kernels import HybridgeKernels
from hybridge.export.llm_kernels import LlmKernels
from hybridge.export.lower import calls, lower, outputs
from hybridge.export.memory import memory_bytes
from hybridge.export.methods import State, build_methods
from hybridge.export.mtp import MtpDrafter, check_mtp, load_mtp
from hybridge.export.progress import Steps
from hybridge.export.quantize import check_quantization, is_quantized, quantize
from hybridge.export.taps import check_taps
from hybridge.runtime.artifact import describe_file
from hybridge.runtime.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    PROGRAM,
    ExportOptions,
    LayerEntry,
    Manifest,
    MethodEntry,
    OnnxEntry,
    TensorEntry,
)
from hybridge.runtime.program_check import BOUNDED

KERNELS: Mapping[str, type[Kernels]] = {"llm": LlmKernels, "hybridge": HybridgeKernels, "aten": CoreKernels}


def export(checkpoint: Checkpoint, cache: HybridCache, folder: Path, options: ExportOptions, steps: Steps) -> Manifest:
    """Write the artifact of ``checkpoint`` into the existing, empty ``folder``; the model is adapted in place.

    cache is what ``build_cache`` made of the same config and options. Raises ExportFailedError and OSError.
    """
    write_tokenizer(checkpoint, folder, steps)
    if options.kernels == "hybridge" or is_quantized(options):
        with steps.step("Packing the weights"):
            quantize(checkpoint.model, options)
    drafter = MtpDrafter(load_mtp(checkpoint), cache, options.draft_len) if options.mtp else None
    weights = weight_bytes(checkpoint.model, *([drafter] if drafter else []))  # before the adaptation takes the model apart
    state = State(checkpoint.model, cache, options.tap_layers, drafter)
    methods = build_methods(state, options.shorter_verify_lens)
    constants = constant_methods(checkpoint, cache, options)
    program = lower(methods, options=options, constants=constants, step=steps.step)
    with steps.step(f"Writing {PROGRAM}"), (folder / PROGRAM).open("wb") as file:
        program.write_to_file(file)
    manifest = describe(
        checkpoint, cache, options, program, folder, weights, {name: args for name, (_, args) in methods.items()}
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def write_tokenizer(checkpoint: Checkpoint, folder: Path, steps: Steps) -> None:
    """Put the checkpoint's tokenizer into ``folder``, and say what was made or is missing. Raises CheckpointError, OSError."""
    checkpoint.tokenizer.write(folder)
    if checkpoint.tokenizer.note:
        steps.warn(checkpoint.tokenizer.note)
    if ignored := checkpoint.end_of_text.ignored:
        ends = f"Texts end with {checkpoint.eos_ids}." if checkpoint.eos_ids else "No token ends a text: stop it by --stop."
        steps.warn(
            f"{', '.join(ignored)} should end a text, say {checkpoint.folder}'s files, but the model has no such token among "
            f"its {checkpoint.vocab_size}: ignored. {ends}"
        )


def build_cache(config: Any, options: ExportOptions) -> HybridCache:
    """The cache that an export with ``options`` of a model, or of its text model, of ``config`` carries.

    Raises UsageError for impossible sizes and UnsupportedModelError for layers that there is no state for.
    """
    config = text_config(config)
    with torch.device("meta"):
        size = _cache(config, options).state_bytes()
    check_verify_lens(options)
    check_quantization(options)
    check_taps(options.tap_layers, config.num_hidden_layers)
    if options.mtp:
        check_mtp(config, options)
    memory = memory_bytes()
    if size > memory // 2:
        raise UsageError(
            f"the state would take {size / 1e9:.1f} GB of the {memory / 1e9:.1f} GB that this process may have; "
            "lower --max-seq-len or --snapshot-slots."
        )
    cache = _cache(config, options)
    check_kv_cache(cache, options)
    return cache


def check_kv_cache(cache: HybridCache, options: ExportOptions) -> None:
    """Raises UsageError where nothing would have the 8 bits that were asked for."""
    parts = [part for layer in cache.cache_layers() for part in layer.each()]
    if options.kv_cache == "int8" and not any(part.rounds for part in parts):
        kinds = ", ".join(sorted({part.kind for part in parts}))
        raise UsageError(
            f"--kv-cache int8 is for full attention, and this model has none that it could be for: its layers are {kinds}. "
            "Export without it."
        )


def check_verify_lens(options: ExportOptions) -> None:
    """Raises UsageError where the lengths of several verify methods are not different ones in order."""
    lens = options.verify_lens
    if lens[0] < 1 or lens != sorted(set(lens)):
        raise UsageError(
            f"verify lengths {lens} are not ascending, different and 1 or more: "
            "shorter_verify_lens must lie below verify_len and be in order."
        )


def _cache(config: Any, options: ExportOptions) -> HybridCache:
    kernels = KERNELS[options.kernels]()
    cache = HybridCache.from_config(
        config,
        max_seq_len=options.max_seq_len,
        prefill_chunk=options.prefill_chunk,
        verify_len=options.verify_len,
        snapshot_slots=options.snapshot_slots,
        dtype=getattr(torch, options.dtype),
        quantized_keys=options.kv_cache == "int8",
        kernels=kernels,
    )
    if options.mtp:
        shape = {"kv_heads": kv_heads(config), "head_dim": head_dim(config)}
        cache.layers.append(DrafterAttentionLayer(cache.sizes, kernels, **shape))
    return cache


def constant_methods(checkpoint: Checkpoint, cache: HybridCache, options: ExportOptions) -> dict[str, Any]:
    """What the program says of itself: the stock runner's names, and ours for a harness that reads no manifest."""
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
        "hybridge_draft_len": options.draft_len if options.mtp else 0,
        BOUNDED: [place for place, (name, _) in enumerate(cache.named_buffers()) if name in bounded],
    }


def weight_bytes(*models: nn.Module) -> int:
    """Bytes of all weights as a program has them, those that are used twice counted once."""
    stored: dict[int, int] = {}
    for module in chain.from_iterable(model.modules() for model in models):
        bytes_of = getattr(module, "stored_bytes", lambda weight: weight.nbytes)
        stored |= {id(weight): bytes_of(weight) for weight in module.parameters(recurse=False)}
    return sum(stored.values())


def describe(
    checkpoint: Checkpoint,
    cache: HybridCache,
    options: ExportOptions,
    program: ExecutorchProgramManager,
    folder: Path,
    weights: int,
    inputs: Mapping[str, tuple[Tensor, ...]],
) -> Manifest:
    """The manifest of what was written to ``folder``."""
    return manifest_of(
        checkpoint,
        replace(options, backend=options.lowered_to),
        folder,
        weights=weights,
        layers=[_layer(layer) for layer in cache.cache_layers()],
        methods={name: _method(name, args, program) for name, args in inputs.items()},
        libraries=("torch", "executorch", "transformers"),
    )


def manifest_of(
    checkpoint: Checkpoint,
    options: ExportOptions,
    folder: Path,
    *,
    weights: int,
    layers: list[LayerEntry],
    methods: dict[str, MethodEntry],
    libraries: Sequence[str],
    onnx: OnnxEntry | None = None,
) -> Manifest:
    """The manifest of the files in ``folder``, whatever their format, made with the installed versions of ``libraries``."""
    return Manifest(
        format_version=FORMAT_VERSION,
        model_type=checkpoint.config.model_type,
        vocab_size=checkpoint.vocab_size,
        bos_id=checkpoint.bos_id,
        eos_ids=checkpoint.eos_ids,
        weight_bytes=weights,
        options=options,
        layers=layers,
        methods=methods,
        files={path.name: describe_file(path) for path in sorted(folder.iterdir())},
        versions={name: version(name) for name in libraries} | {"hybridge": hybridge.__version__},
        onnx=onnx,
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
    operators, delegates = calls(program, name)
    return MethodEntry(
        inputs=[_tensor(each) for each in args],
        outputs=[TensorEntry(shape=shape, dtype=dtype) for shape, dtype in outputs(program, name)],
        operators=operators,
        delegates=dict(delegates),
    )


def _tensor(tensor: Tensor) -> TensorEntry:
    return TensorEntry(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
