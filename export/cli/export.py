"""``hybridge export``: the steps on a console, and what was written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.markup import escape

from hybridge.export.cli.steps import ConsoleProgress
from hybridge.runtime.artifacts.manifest import Manifest
from hybridge.runtime.artifacts.options import ExportOptions
from hybridge.runtime.cli.console import err, megabytes


def taps(text: str, mtp: bool) -> tuple[int, ...]:
    """Return the layers of ``text``, in its order; a drafter needs the last hidden states."""
    try:
        layers = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: expected numbers of layers with commas between them, such as 2,-1.", param_hint="'--tap-layers'"
        ) from None
    return tuple(layers if not mtp or -1 in layers else [*layers, -1])


def export_checkpoint(
    checkpoint: str | Path,
    output: Path,
    options: ExportOptions,
    *,
    force: bool,
    validate: bool,
    calibrate: str | None = None,
    adapters: Sequence[Path] = (),
    tokenizer: Path | None = None,
    drafter: str | Path | None = None,
    draft_vocab: str | None = None,
) -> Manifest:
    """``export_model`` that shows its steps on stderr."""
    from hybridge.export.api import export_model

    vocabulary = None if draft_vocab is None else int(draft_vocab) if draft_vocab.isdecimal() else Path(draft_vocab)
    return export_model(
        checkpoint,
        output,
        options,
        adapters=adapters,
        tokenizer=tokenizer,
        drafter=drafter,
        draft_vocab=vocabulary,
        force=force,
        validate=validate,
        calibrate=calibrate,
        progress=ConsoleProgress(err),
    )


def print_summary(output: Path, manifest: Manifest) -> None:
    """Say what was written and what to do with it."""
    name, size = escape(str(output)), megabytes(sum(manifest.files[file].size for file in manifest.program_files))
    state = sum(layer.state_bytes for layer in manifest.layers)
    bits = f"{manifest.bits_per_weight:.2f} bits a weight; " if manifest.bits_per_weight else ""
    kernels = "for onnxruntime" if manifest.onnx else f"kernels: {manifest.options.kernels}"
    err.print(
        f"[bold green]{name}[/] holds {len(manifest.methods)} methods in {size} "
        f"({bits}weights {megabytes(manifest.weight_bytes)}, state {megabytes(state)}; {kernels}).\n"
        f"Try: hybridge inspect {name}   hybridge run {name} --prompt '…' --stats",
        highlight=False,
    )
