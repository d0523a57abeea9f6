"""Write ExecuTorch artifacts: adapt and pack the model, lower its methods to one program, and describe both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from executorch.exir import ExecutorchProgramManager
from torch import Tensor, nn

from hybridge.cache.layers.layer import CacheLayer
from hybridge.errors import CheckpointError
from hybridge.export.drafters.drafter import ArtifactDrafter, DrafterPlan
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.drafters.vocabulary import choose_rows, sampled_rows
from hybridge.export.lower.lower import Methods, calls, lower, outputs
from hybridge.export.lower.sources import mark_sources
from hybridge.export.pinned.delegates import compiled_bytes
from hybridge.export.pinned.executorch import file_parts
from hybridge.export.pinned.transformers import Reader
from hybridge.export.program.build import build_cache, build_encoder
from hybridge.export.program.methods import build_methods
from hybridge.export.program.state import State
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.gptq import Calibrated
from hybridge.export.quantize.quantize import is_packed, packer, quantize, quantize_drafter
from hybridge.export.quantize.rounding import notes_of_rounding
from hybridge.export.source.checkpoint import LoadedModel
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.weights import PackedLinear
from hybridge.export.write.golden import GoldenSteps
from hybridge.export.write.kept import kept_apart, packed_apart, shape_key, write_filled
from hybridge.export.write.manifest import WeightFigures, manifest_of, weight_bytes, write_tokenizer
from hybridge.export.write.packed import PackingShape
from hybridge.export.write.stock_runner import stock_methods
from hybridge.export.write.stock_tokenizer import adapt_to_stock_runners
from hybridge.runtime.artifact.delegates import DELEGATED, DELEGATES
from hybridge.runtime.artifact.drafter import drafter_constants
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import (
    GOLDEN,
    MANIFEST,
    PROGRAM,
    PROGRAM_VERSION,
    LayerEntry,
    Manifest,
    MethodEntry,
    TensorEntry,
    program_method,
)
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.artifact.pictures import PictureDescription, StockSizes
from hybridge.runtime.artifact.program_check import BOUNDED, DELEGATE
from hybridge.runtime.pack.panels import Array
from hybridge.runtime.pack.programs import KeptProgram, UnfitProgramError, find_program, installed_versions, keep_program
from hybridge.runtime.pack.weights import GgufWeights

LARGEST_OWN = 0.12
"""Largest share of the model's bytes that a drafter may add by default."""


class PteWriter:
    """Writes ``model.pte``, the program with all methods over one state; see ``hybridge.export.api.Writer``."""

    def __init__(
        self,
        config: Any,
        options: ExportOptions,
        drafter: DrafterPlan | None = None,
        pictures: PictureDescription | None = None,
        *,
        keep: bool = False,
        golden: bool = True,
    ) -> None:
        """Lay out the cache.

        drafter: as ``plan_drafter`` planned it with the same options; if left out, MTP if asked for. pictures: as
        ``describe_pictures`` described them; None to export the text model alone. keep: keep the program for other checkpoints
        of the same shape, or take the one that is kept. golden: write golden steps, if the context has room for them.
        """
        self.config, self.options, self.pictures, self.keep, self.golden = config, options, pictures, keep, golden
        self.plan = drafter or plan_drafter(config, options)[0]
        self.cache = build_cache(config, options, self.plan, pictures)
        self._written: tuple[KeptProgram, State, Mapping[str, Array]] | None = None

    def reader(self) -> Reader | None:
        """Return a packer for weights as they are read, if the artifact has packed layers."""
        return packer(self.options)

    def write(self, loaded: LoadedModel, folder: Path, steps: ExportProgress, calibrated: Calibrated | None = None) -> Manifest:
        """Write the artifact into ``folder``. Raises ExportFailedError and OSError."""
        options, model, pictures = self.options, loaded.model, self.pictures
        write_tokenizer(loaded, folder, steps)
        stock_tokenizer = adapt_to_stock_runners(folder, steps) if options.kernels == "llm" else None
        drafter_weights = self._load_drafter(loaded, steps)
        if is_packed(options):
            with steps.step("Packing the weights"):
                quantize(model, options, calibrated.rounder if calibrated else None)
            for note in notes_of_rounding(model):
                steps.warn(note)
        if drafter_weights is not None:
            quantize_drafter(drafter_weights, options)
            self._leave_out_a_large_drafter(weight_bytes(drafter_weights) / weight_bytes(model), steps)
        options = self.options
        head, vocabulary = model.get_output_embeddings(), self.plan.vocabulary if self.plan else None
        if vocabulary and vocabulary.source == "self" and not isinstance(head, PackedLinear):
            vocabulary = replace(vocabulary, source="first")  # its rows are copied, and cannot be chosen later
        rows = choose_rows(loaded, vocabulary) if vocabulary else None
        drafter = self.plan.build(drafter_weights, self.cache, head, rows) if self.plan else None
        vision = build_encoder(loaded, options, pictures, steps.warn) if pictures else None
        # Figures are taken before the adaptation takes the model apart.
        weights = WeightFigures.of(model, *(each for each in (drafter, vision) if each is not None))
        calibration = calibrated.entry(model) if calibrated else None
        golden = self._golden_steps(loaded, folder, drafts=drafter is not None)
        state = State(model, self.cache, options.tap_layers, drafter, vision)
        delegated = options.delegated
        compiled_by = DELEGATES[options.delegate].package if delegated else ""
        methods = {**build_methods(state, options.shorter_verify_lens, pictures, delegated)}
        if pictures is not None and (sizes := StockSizes.of(options, pictures)) is not None:
            methods |= stock_methods(state, pictures, sizes)
        rewrite, kept, entries = self._write_program(state, methods, self._constants(loaded, drafter, pictures), folder, steps)
        manifest = manifest_of(
            loaded,
            replace(
                options,
                backend=options.lowered_to,
                kv_cache=options.kv_dtype,
                delegate_weights=options.stored_for_delegate if delegated else options.delegate_weights,
            ),
            folder,
            weights=weights,
            calibration=calibration,
            layers=[_layer(layer) for layer in self.cache.cache_layers()],
            methods=entries,
            libraries=("torch", "executorch", "transformers", *([compiled_by] if compiled_by else [])),
            drafter=drafter.description if drafter else None,
            pictures=pictures,
            stock_tokenizer=stock_tokenizer,
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        if drafter and vocabulary and vocabulary.source == "self":
            rows = sampled_rows(folder, loaded, vocabulary, manifest.parameters or 0, steps)
            drafter.choose(rows)
            rewrite()
            update = {"drafter": drafter.description, "files": manifest.files | {PROGRAM: file_entry(folder / PROGRAM)}}
            manifest = manifest.model_copy(update=update)
            (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        if golden is not None:
            with steps.step("Replaying the golden steps"):
                warning = golden.record(folder)
            if warning:
                steps.warn(warning)
            manifest = manifest.model_copy(update={"files": manifest.files | {GOLDEN: file_entry(folder / GOLDEN)}})
            (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        self._written = (kept, state, rows.constants if rows else {}) if kept else None
        return manifest

    def _golden_steps(self, loaded: LoadedModel, folder: Path, *, drafts: bool) -> GoldenSteps | None:
        """Write golden steps of the model, which is not adapted yet, without the program's answers."""
        if not self.golden or not GoldenSteps.fit(self.options):
            return None
        golden = GoldenSteps(self.options, loaded.vocab_size, drafts=drafts)
        golden.ask(loaded.model)
        golden.write(folder)
        return golden

    def keep_packing(self, file: GgufFile, asked: ExportOptions, manifest: Manifest) -> str | None:
        """Keep what was just written for other GGUF files of the shape of ``file``, and return its key: they need no PyTorch.

        Returns None if it cannot be kept so. asked: the options before they were resolved for the file.
        """
        versions = installed_versions()
        if self._written is None or versions is None:
            return None
        program, state, chosen = self._written
        shape = PackingShape.of(file, asked)
        key = shape.key(versions)
        if find_program(key) is None:
            weights = GgufWeights(shape.tensors, chosen)
            without_files = manifest.model_copy(update={"files": {}, "source": None})
            packed = packed_apart(program, state, mark_sources(state), weights, without_files)
            if packed is None:
                return None
            keep_program(key, packed)
        return key

    def _write_program(
        self, state: State, methods: Methods, constants: dict[str, Any], folder: Path, steps: ExportProgress
    ) -> tuple[Callable[[], None], KeptProgram | None, dict[str, MethodEntry]]:
        """Write the program that is kept for this shape with these weights, or else lower one.

        Returns a function that writes it again, after constants changed, what is kept of it, and its methods for the manifest.
        """
        tensors, path = mark_sources(state), folder / PROGRAM
        key = shape_key(state, methods, self.options, constants) if self.keep and self.options.has_own_kernels else None
        if key and (kept := find_program(key)):
            fill = partial(write_filled, kept, path, tensors)
            with suppress(UnfitProgramError), steps.step(f"Writing {PROGRAM} from the program kept for this shape"):
                fill()
                return fill, kept, kept.methods
        named = {program_method(name): method for name, method in methods.items()}
        program = lower(named, options=self.options, constants=constants, step=steps.step, holder=state)
        with steps.step(f"Writing {PROGRAM}"):
            _write(program, path)
        entries = {name: _method(name, inputs, program) for name, (_, inputs) in methods.items()}
        apart = kept_apart(file_parts(program), entries) if self.options.has_own_kernels else None
        if apart is None:
            return partial(_write, program, path), None, entries
        if key:
            keep_program(key, apart)
        # By their sources, because what is computed of constants was folded while the program was lowered.
        return partial(write_filled, apart, path, tensors), apart, entries

    def _load_drafter(self, loaded: LoadedModel, steps: ExportProgress) -> nn.Module | None:
        """Read the drafter's weights. One that may be left out is, with a warning, if they make none."""
        try:
            return self.plan.load(loaded) if self.plan else None
        except CheckpointError as error:
            if self.plan is None or self.plan.otherwise is None:
                raise
            steps.warn(f"The checkpoint's own drafter is left out: {error}")
            self._leave_out(self.plan.otherwise)
            return None

    def _leave_out_a_large_drafter(self, share: float, steps: ExportProgress) -> None:
        if self.plan and self.plan.otherwise and share > LARGEST_OWN:
            steps.warn(
                f"The checkpoint's own drafter is left out: it would add {share:.0%} to the weights' bytes, more than "
                f"{LARGEST_OWN:.0%}. --mtp exports it all the same, --no-mtp leaves it out."
            )
            self._leave_out(self.plan.otherwise)

    def _leave_out(self, options: ExportOptions) -> None:
        self.plan, self.options = None, options
        self.cache = build_cache(self.config, options, pictures=self.pictures)

    def _constants(
        self, loaded: LoadedModel, drafter: ArtifactDrafter | None, pictures: PictureDescription | None
    ) -> dict[str, Any]:
        """Return the program's constants: the stock runner's names, and ours for a harness that reads no manifest."""
        options, bounded = self.options, self.cache.bounded_buffers()
        return {
            "get_max_seq_len": options.max_seq_len,
            "get_max_context_len": options.max_seq_len,
            "get_vocab_size": loaded.vocab_size,
            "get_bos_id": loaded.bos_id if loaded.bos_id is not None else -1,
            "get_eos_ids": loaded.eos_ids or [-1],
            "use_kv_cache": True,
            "use_sdpa_with_kv_cache": options.kernels != "aten",
            "enable_dynamic_shape": False,
            "hybridge_format_version": PROGRAM_VERSION,
            "hybridge_prefill_chunk": options.prefill_chunk,
            "hybridge_verify_len": options.verify_len,
            "hybridge_verify_lens": options.verify_lens,
            "hybridge_snapshot_slots": options.snapshot_slots,
            "hybridge_taps": len(options.tap_layers),
            "hybridge_draft_len": drafter.description.blocks[-1] - 1 if drafter else 0,
            **(drafter_constants(drafter.description, options.tap_layers) if drafter else {}),
            **(pictures.constants if pictures else {}),
            **({DELEGATE: [options.delegate_from]} if options.delegate != "none" else {}),
            BOUNDED: [place for place, (name, _) in enumerate(self.cache.named_buffers()) if name in bounded],
        }


def _write(program: ExecutorchProgramManager, path: Path) -> None:
    """Write the program; an older file is not changed, because a session may have mapped it."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        program.write_to_file(file)


def _layer(layer: CacheLayer) -> LayerEntry:
    use = layer.bytes_by_use()
    return LayerEntry(
        kind=layer.kind,
        buffers={name: _tensor(buffer) for name, buffer in layer.named_buffers()},
        state_bytes=use["state"],
        rollback_bytes=use["rollback"],
        slot_bytes=use["slots"],
    )


def _method(name: str, inputs: tuple[Tensor, ...], program: ExecutorchProgramManager) -> MethodEntry:
    plan = program_method(name)
    operators, delegates = calls(program, plan)
    return MethodEntry(
        inputs=[_tensor(each) for each in inputs],
        outputs=[TensorEntry(shape=shape, dtype=dtype) for shape, dtype in outputs(program, plan)],
        operators=operators,
        delegates=dict(delegates),
        delegate_bytes=compiled_bytes(program.exported_program(plan)) if name in DELEGATED else 0,
    )


def _tensor(tensor: Tensor) -> TensorEntry:
    return TensorEntry(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
