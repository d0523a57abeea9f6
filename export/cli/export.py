"""``hybridge export``: turn a checkpoint into an artifact; also under optimum's command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from hybridge.export.cli.choices import ExportChoices
from hybridge.imports import without_collections
from hybridge.runtime.cli.console import err, megabytes, print_json, run_and_exit
from hybridge.runtime.cli.options import JsonOption, with_options

if TYPE_CHECKING:  # pydantic takes long to start
    from hybridge.runtime.artifact.manifest import Manifest
    from hybridge.runtime.artifact.options import ExportOptions

EXAMPLES = (
    "hybridge export Qwen3.5-0.8B -o qwen --max-seq-len 2048",
    "hybridge export Qwen3.5-0.8B -o qwen --recipe balanced --validate",
    "hybridge export LiquidAI/LFM2-350M -o lfm2 --format onnx",
    "hybridge export model-Q4_K_M.gguf -o model --verify-len 4,16",
)


@with_options
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="A transformers checkpoint: a folder with config.json and *.safetensors, or a model in the hub's cache; or a "
            "GGUF file."
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write; appears whole or not at all.")],
    adapter: Annotated[
        list[Path] | None,
        typer.Option("--adapter", help="A folder with a LoRA adapter to merge into the checkpoint; may be repeated."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A folder whose tokenizer and chat template to take instead of the checkpoint's.")
    ] = None,
    mmproj: Annotated[
        Path | None,
        typer.Option(help="The GGUF file with a GGUF file's encoder of pictures; by default one beside it that fits."),
    ] = None,
    choices: ExportChoices,
    validate: Annotated[bool, typer.Option("--validate", help="Validate against the checkpoint before it is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make the program anew, even if one for a model of this shape is kept.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Turn a checkpoint into one ExecuTorch program with all methods over one state, or into a graph for onnxruntime."""
    from hybridge.runtime.kernels import compiling, library

    options = choices.options()
    if choices.max_seq_len is None:
        most = options.max_seq_len or "as many as the model takes, up to 32,768"
        length = f"the state will hold {most} tokens."
        err.print(f"[yellow]--max-seq-len was not given:[/] {length}", highlight=False)
    if options.format == "pte" and options.kernels == "hybridge" and not library.is_available():
        err.print(
            f"[yellow]Here the artifact will not run:[/] hybridge's kernels are not compiled, and {compiling.missing_tool()}; "
            "or give --kernels llm.",
            highlight=False,
        )
    others = (adapter, tokenizer, mmproj, choices.drafter, choices.draft_vocab, choices.calibrate)
    if not (fresh or validate or any(others)) and (packed := _packed(Path(checkpoint), output, options, force=force)):
        _show(output, packed, json=json)
        return
    with without_collections():
        from hybridge.export.api import export_model
    from hybridge.export.cli.progress import ConsoleProgress

    manifest = export_model(
        checkpoint,
        output,
        options,
        adapters=adapter or (),
        tokenizer=tokenizer,
        mmproj=mmproj,
        drafter=choices.drafter,
        draft_vocab=choices.draft_vocab,
        force=force,
        validate=validate,
        fresh=fresh,
        calibrate=choices.calibrate,
        progress=ConsoleProgress(err),
    )
    _show(output, manifest, json=json)


def _packed(checkpoint: Path, output: Path, options: ExportOptions, *, force: bool) -> Manifest | None:
    """Write the artifact of a GGUF file of a shape whose program is kept, which takes no PyTorch; None for any other."""
    if not checkpoint.is_file():
        return None
    from hybridge.export.cli.progress import ConsoleProgress
    from hybridge.export.write.folder import output_folder
    from hybridge.export.write.packed import pack_artifact
    from hybridge.runtime.pack.programs import UnfitProgramError

    try:
        with output_folder(output, force=force) as folder:
            if (manifest := pack_artifact(checkpoint, folder, options, ConsoleProgress(err))) is None:
                raise UnfitProgramError("no program is kept for it")  # so that nothing appears
    except UnfitProgramError:
        return None
    return manifest


def _show(output: Path, manifest: Manifest, *, json: bool) -> None:
    if json:
        print_json({"output": str(output), **manifest.model_dump(mode="json")})
    else:
        print_summary(output, manifest)


def print_summary(output: Path, manifest: Manifest) -> None:
    """Print a summary of the artifact, and commands to try."""
    name, size = escape(str(output)), megabytes(sum(manifest.files[file].size for file in manifest.program_files))
    state = sum(layer.state_bytes for layer in manifest.layers)
    bits = f"{manifest.bits_per_weight:.2f} bits a weight; " if manifest.bits_per_weight else ""
    kernels = "for onnxruntime" if manifest.onnx else f"kernels: {manifest.options.kernels}"
    err.print(
        f"[bold green]{name}[/] holds {len(manifest.methods)} methods in {size} "
        f"({bits}weights {megabytes(manifest.weight_bytes)}, up to {megabytes(state)} of state for a context of "
        f"{manifest.options.max_seq_len} tokens; {kernels}).\n{_drafter(manifest)}"
        f"Try: hybridge inspect {name}   hybridge run {name} --prompt '…' --stats",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _drafter(manifest: Manifest) -> str:
    """Return a line about the drafter, empty without one."""
    if manifest.drafter is None:
        return ""
    kind, few = manifest.drafter.kind, manifest.drafter.vocabulary
    among = f", which proposes {few}; --draft-vocab chooses others" if few else ""
    without = "; --no-mtp leaves it out" if kind == "mtp" else ""
    return f"With its drafter, {kind}{among}{without}.\n"


# ``optimum-cli export hybridge``, where the checkpoint is ``--model`` and the output comes last


def optimum_main(words: Sequence[str]) -> None:
    """Export by the words after ``optimum-cli export hybridge``; exit codes and messages are those of ``hybridge``."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(_in_optimums_words(export))
    run_and_exit(lambda: app(args=list(words), prog_name="optimum-cli export hybridge"))


def _in_optimums_words(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` with the two parameters renamed that have other names in optimum."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters

    def note(name: str) -> str:
        return str(parameters[name].annotation.__metadata__[0].help)

    renamed = {
        "checkpoint": Annotated[str, typer.Option("--model", "-m", help=note("checkpoint"))],
        "output": Annotated[Path, typer.Argument(help=note("output"))],
    }

    @wraps(command)
    def same(**given: Any) -> None:
        command(**given)

    each = [parameter.replace(annotation=renamed.get(name, parameter.annotation)) for name, parameter in parameters.items()]
    same.__signature__ = signature.replace(parameters=each)  # type: ignore[attr-defined]  # typer reads it
    return same
