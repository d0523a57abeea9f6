"""Export a checkpoint to an artifact: ``hybridge.export_model``, through which the command line exports too.

The checkpoint is resolved once, the options are completed for it, and one of two writers writes the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hybridge.errors import UsageError
from hybridge.export.check.validate import validate_session
from hybridge.export.drafters.drafter import DrafterPlan, VocabularyName
from hybridge.export.drafters.plan import plan_drafter, plan_own_drafter
from hybridge.export.model.vision import PROCESSOR_FILES, VISION, describe_pictures
from hybridge.export.pinned.transformers import Reader
from hybridge.export.program.build import resolve_state
from hybridge.export.progress import ExportProgress
from hybridge.export.quantize.gptq import Calibrated
from hybridge.export.quantize.gptq import calibrate as calibrate_on
from hybridge.export.quantize.quantize import check_calibration, resolve_quantization
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint, resolve_checkpoint
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.write.folder import output_folder
from hybridge.export.write.pte import PteWriter
from hybridge.runtime.artifact.delegates import DELEGATES
from hybridge.runtime.artifact.manifest import Manifest
from hybridge.runtime.artifact.options import DEFAULT_PROGRAMS, ExportOptions, check_delegate
from hybridge.runtime.artifact.pictures import PictureDescription


def export_model(
    checkpoint: str | Path,
    out: str | Path,
    options: ExportOptions | None = None,
    *,
    adapters: Sequence[str | Path] = (),
    tokenizer: str | Path | None = None,
    mmproj: str | Path | None = None,
    drafter: str | Path | None = None,
    draft_vocab: VocabularyName | None = None,
    force: bool = False,
    validate: bool = False,
    fresh: bool = False,
    golden: bool = True,
    calibrate: str | Path | None = None,
    progress: ExportProgress | None = None,
) -> Manifest:
    """Export ``checkpoint`` to the folder ``out`` and return its manifest.

    ``out`` appears whole or not at all, even if the export is interrupted. Nothing is printed, no signal handler is set, and
    any thread may call this::

        import hybridge

        options = hybridge.ExportOptions(max_seq_len=2048, quantize="8da4w")
        manifest = hybridge.export_model("Qwen3.5-0.8B", "OUT", options, validate=True)
        print(manifest.model_type, sorted(manifest.methods))
        session = hybridge.Session.load("OUT")

    Args:
        checkpoint: a folder with config.json and *.safetensors, a GGUF file, or the id of a model on the hub.
        options: the command's defaults if left out, with bits as one would ship them, the checkpoint's own drafter, and a
            context of as many tokens as the model takes, up to 32,768.
        adapters: folders of LoRA adapters to merge into the checkpoint, in this order.
        tokenizer: a folder whose tokenizer and chat template replace the checkpoint's.
        mmproj: the file with a GGUF file's encoder of pictures; if left out, one beside it that fits.
        drafter: a folder or id with the checkpoint of this model's DFlash, DFlash 2, DSpark or EAGLE-3 drafter, or of its
            assistant, which becomes a part of the artifact.
        draft_vocab: the tokens that a drafter may propose that shares this model's output layer: ``all``, a number of the first
            ones, ``self`` for those that the model says most often, or a file of text, or of ids in JSON; ``self:N`` and
            ``FILE:N`` are N tokens. If left out, all, or 32,000 by ``self`` of more than 65,536.
        force: replace an artifact that is in ``out``.
        validate: compare the artifact with the eager model before it appears.
        fresh: lower the program even if one of the same shape is kept in the user's cache, and keep none.
        golden: store golden steps, by which a device can check the artifact; they take a forward of the eager model.
        calibrate: a file of text to round the weights for, or "self" for texts that the model generates itself.
        progress: is told of steps, warnings and the validation's report.

    Raises:
        UsageError: the options are impossible, or ``out`` exists.
        CheckpointError: the checkpoint cannot be read or is not supported; subclasses say which.
        ExportFailedError: lowering failed.
        ValidationError: the artifact computes something else than the checkpoint.
        OutputError: ``out`` cannot be written.
    """
    asked, steps = options or ExportOptions(quantize="auto", mtp="auto"), progress or ExportProgress()
    source = resolve_checkpoint(checkpoint, adapters, tokenizer, mmproj)
    options = resolve_state(resolve_quantization(asked, source, steps.warn), source.config)
    check_delegate(options)
    if options.delegate != "none" and not (needed := DELEGATES[options.delegate]).is_installed:
        raise UsageError(f"--delegate {options.delegate} needs {needed.title}: {needed.install}.")
    if calibrate is not None:
        options = replace(options, calibrate="self" if calibrate == "self" else "text")
        check_calibration(options)
    writer_class = writer_of(options)
    if options.mtp == "auto" and drafter is None:
        plan, options = plan_own_drafter(source, options, draft_vocab)
    else:
        plan, options = plan_drafter(source.config, options, drafter, draft_vocab)
    pictures = describe_pictures(source.config, source.folder, options)
    if pictures is None and "delegate_vision_encoder" in options.delegated:
        raise UsageError("--delegate-methods encode is for a .pte of a model with an encoder of pictures; leave encode out.")
    for text in source.warnings(pictures=pictures is not None):
        steps.warn(text)
    if pictures is None and options.images and options.format == "pte" and source.config.model_type in VISION:
        steps.warn(f"{source.path} has no {PROCESSOR_FILES[0]}: with the one of the checkpoint, pictures are exported, too.")
    with output_folder(Path(out), force=force) as folder:
        with steps.step("Laying out the state"):
            writer = writer_class(source.config, options, plan, pictures, keep=not fresh, golden=golden)
        with steps.step("Reading the checkpoint"):
            whole = calibrate is not None or (plan is not None and plan.reads_target)
            loaded = load_checkpoint(source, None if whole else writer.reader(), pictures=pictures is not None)
        calibrated = None
        if calibrate is not None:
            with steps.step("Calibrating"):
                calibrated = calibrate_on(loaded, options, calibrate)
        manifest = writer.write(loaded, folder, steps, calibrated)
        others = fresh or adapters or tokenizer or drafter or draft_vocab or calibrate or mmproj
        if source.gguf is not None and not others:
            with steps.step("Keeping the program for other files of this shape"):
                writer.keep_packing(source.gguf, asked, manifest)
        if validate or source.is_untried:
            report = validate_session(folder, source, steps, programs=DEFAULT_PROGRAMS, seed=0)
            steps.validated(report)
            report.check()
    return manifest


class Writer(Protocol):
    """Writes artifacts of one format."""

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
        """Check the options for a model of ``config`` and lay out its state. Raises UsageError, UnsupportedModelError.

        keep: keep what depends on the model's shape alone for the next one of it, if the format has such a thing.
        golden: write golden steps, if the format has them.
        """

    def reader(self) -> Reader | None:
        """Return what works on weights as they are read, or None."""

    def write(self, loaded: LoadedModel, folder: Path, steps: ExportProgress, calibrated: Calibrated | None = None) -> Manifest:
        """Write the artifact into the existing, empty ``folder``; the model is adapted in place.

        Raises ExportFailedError, OSError, and UnsupportedModelError for layers that the format has no operators for.
        """

    def keep_packing(self, file: GgufFile, asked: ExportOptions, manifest: Manifest) -> str | None:
        """Keep what was just written for other GGUF files of the shape of ``file``, if the format has such a thing.

        Returns its key, None if nothing is kept. asked: the options before they were resolved; manifest: of the artifact.
        """


def writer_of(options: ExportOptions) -> type[Writer]:
    """Return the writer of the format in ``options``. Raises UsageError if its libraries are not installed."""
    if options.format != "onnx":
        return PteWriter
    try:  # these libraries are an extra
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--format onnx needs {error.name}, which is not installed: pip install 'hybridge[onnx]'.") from None
    from hybridge.export.write.onnx import OnnxWriter

    return OnnxWriter
