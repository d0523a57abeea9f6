"""``hybridge.export_model``: a checkpoint to an artifact, for programs. The command line exports through it too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UsageError
from hybridge.cache.families import FAMILIES, text_config
from hybridge.export.check.validate import validate_session
from hybridge.export.drafters.drafter import DraftVocabulary
from hybridge.export.drafters.plan import DrafterPlan, plan_drafter
from hybridge.export.pinned.transformers import Reader
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.gptq import Calibrated
from hybridge.export.quantize.gptq import calibrate as calibrate_on
from hybridge.export.quantize.quantize import check_calibration, costs, packer, resolved
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint
from hybridge.export.source.config import read_config
from hybridge.export.source.files import ignored_parts
from hybridge.export.source.locate import Named, find_checkpoint
from hybridge.export.write.folder import output_folder
from hybridge.export.write.methods import build_cache
from hybridge.export.write.pte import export
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.defaults import DEFAULT_PROGRAMS


def export_model(
    checkpoint: str | Path,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    adapters: Sequence[str | Path] = (),
    tokenizer: str | Path | None = None,
    drafter: str | Path | None = None,
    draft_vocab: DraftVocabulary | None = None,
    force: bool = False,
    validate: bool = False,
    calibrate: str | Path | None = None,
    progress: ExportProgress | None = None,
) -> Manifest:
    """Export ``checkpoint`` to the folder ``out`` and return its manifest.

    ``out`` appears whole or not at all, whatever interrupts this; it prints nothing, touches no signals and may run in any
    thread::

        import hybridge

        options = hybridge.ExportOptions(max_seq_len=2048, quantize="8da4w")
        manifest = hybridge.export_model("Qwen3.5-0.8B", "OUT", options, validate=True)
        print(manifest.model_type, sorted(manifest.methods))
        session = hybridge.Session.load("OUT")

    checkpoint: a folder with config.json and *.safetensors, a GGUF file, or the id of a model on the hub. options: if left
    out, those of the command, with bits as one would ship them. adapters: folders of LoRA adapters to merge into it, in this
    order. tokenizer: a folder whose tokenizer and chat template take the place of the checkpoint's. drafter: a folder or id
    with the checkpoint of a DFlash, DFlash 2, DSpark or EAGLE-3 drafter of this very model, or of its assistant, which becomes
    a part of the artifact. draft_vocab: the tokens that it may propose, so many of the first or those of a text. force:
    replace an artifact that is in ``out``. validate: hold it against the eager model before it appears. calibrate: a file of
    text that weights are rounded for, or "self" for texts that the model makes itself. progress: is told of the steps, of
    warnings and of the validation's report; ``hybridge.export.progress.ExportProgress``.

    Raises UsageError for impossible options or an ``out`` that exists, CheckpointError or one of its kinds for what cannot be
    read or is not supported, ExportFailedError, ValidationError, and OutputError where ``out`` cannot be written.
    """
    options, steps, place = options or ExportOptions(quantize="auto"), progress or ExportProgress(), find_checkpoint(checkpoint)
    source = Named(
        checkpoint=place, adapters=tuple(map(Path, adapters)), tokenizer=Path(tokenizer) if tokenizer is not None else None
    )
    config = read_config(source)
    options = resolved(options, place, config, steps.warn)
    if calibrate is not None:
        options = replace(options, calibrate="self" if calibrate == "self" else "text")
        check_calibration(options)
    writer = format_of(options)
    plan, options = plan_drafter(config, options, drafter, draft_vocab)
    for text in (*ignored_parts(place), *costs(options, place)):
        steps.warn(text)
    if text_config(config) is not config:
        steps.warn(f"{place} is a multimodal model: its text model is exported, pictures and sounds are left out.")
    if text_config(config).model_type not in FAMILIES:
        steps.warn(
            f"nobody has tried {config.model_type!r} models. This one is of attention alone: the artifact is "
            "validated, and kept only if it is right."
        )
        validate = True
    with output_folder(Path(out), force=force) as folder:
        with steps.step("Laying out the state"):
            cache = writer.build_cache(config, options, plan)
        with steps.step("Reading the checkpoint"):
            whole = calibrate is not None or (plan is not None and plan.reads_target)
            loaded = load_checkpoint(source, None if whole else writer.reader(options))
        calibrated = None
        if calibrate is not None:
            with steps.step("Calibrating"):
                calibrated = calibrate_on(loaded, options, calibrate)
        manifest = writer.export(loaded, cache, folder, options, steps, calibrated, plan)
        if validate:
            report = validate_session(folder, source, steps, programs=DEFAULT_PROGRAMS, seed=0)
            steps.validated(report)
            report.check()
    return manifest


# The formats of an artifact, and who writes each.


@dataclass(frozen=True, kw_only=True)
class Format:
    """What writes artifacts.

    build_cache: the state of a config, after checking the options; reader: what works on weights as they are read, if anything
    does; export: write the artifact of a checkpoint with them.
    """

    build_cache: Callable[[Any, ExportOptions, DrafterPlan | None], Any]
    reader: Callable[[ExportOptions], Reader | None]
    export: Callable[[LoadedModel, Any, Path, ExportOptions, ExportProgress, Calibrated | None, DrafterPlan | None], Manifest]


def format_of(options: ExportOptions) -> Format:
    """Return the writer of what the options ask for. Raises UsageError if its libraries are not installed."""
    return _onnx() if options.format == "onnx" else Format(build_cache=build_cache, reader=packer, export=export)


def _onnx() -> Format:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--format onnx needs {error.name}, which is not installed: pip install 'hybridge[onnx]'.") from None
    from hybridge.export.write.onnx import build_cache as build_traced_cache
    from hybridge.export.write.onnx import export_onnx

    return Format(build_cache=build_traced_cache, reader=lambda _: None, export=export_onnx)
