"""``hybridge export``: turn a checkpoint into an artifact; also under optimum's command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field, fields, make_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.markup import escape

from hybridge.errors import UsageError
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.cli.console import err, megabytes, numbers, print_json, run_and_exit
from hybridge.runtime.cli.options import JsonOption, with_options

if TYPE_CHECKING:  # pydantic takes long to start
    from hybridge.runtime.artifact.manifest import Manifest

EXAMPLES = (
    "hybridge export Qwen3.5-0.8B -o qwen --max-seq-len 2048",
    "hybridge export Qwen3.5-0.8B -o qwen --recipe balanced --validate",
    "hybridge export LiquidAI/LFM2-350M -o lfm2 --format onnx",
    "hybridge export model-Q4_K_M.gguf -o model --verify-len 4,16",
)
TEXTS = {"verify_len": "4,8", "calibrate": None, "bits": "", "image_tokens": "", "tap_layers": "", "draft_blocks": ""}
"""Options that are texts on the command line, with their default values."""
LEFT_OUT = {"max_seq_len": None, "backend": None, "kernels": None, "rounding": None, "quantize": "auto", "mtp": None}
"""Other default values than those of ``ExportOptions``; None where other options decide."""
SWITCHES = ("mtp",)
"""Options that are switches on the command line, with a third value if they are left out."""
DRAFTERS = {
    "draft_len": (
        "drafter",
        Annotated[
            str | None,
            typer.Option(
                help="With this drafter of the model: a folder with a DFlash, DFlash 2, DSpark or EAGLE-3 checkpoint, "
                "or an assistant of Gemma 4."
            ),
        ],
    ),
    "draft_blocks": (
        "draft_vocab",
        Annotated[
            str | None,
            typer.Option(
                help="Tokens that a drafter may propose that shares the model's output layer: all, a number of the first "
                "ones, self (those that the model says most often), or a file of text, or of ids in JSON, the most frequent "
                "first; self:N and FILE:N are N tokens. Left out, all, or 32000 by self of more than 65536.",
                metavar="all|N|self|FILE",
            ),
        ],
    ),
}
"""Further options of drafters, by the option that they follow in the help."""


def _choices() -> type:
    """Return the options of an export as the command line has them, from the fields of ``ExportOptions``."""
    hints, found = get_type_hints(ExportOptions), []
    for each in (each for each in fields(ExportOptions) if each.metadata["command"]):
        default = {**TEXTS, **LEFT_OUT}.get(each.name, each.default)
        kind = str if each.name in TEXTS else bool if each.name in SWITCHES else hints[each.name]
        flag, note = each.metadata["flag"] or f"--{each.name.replace('_', '-')}", each.metadata["help"]
        given = typer.Option(flag, help=note, min=each.metadata["min"], show_default=default not in (None, ""))
        found.append((each.name, Annotated[kind if default is not None else kind | None, given], field(default=default)))
        if each.name in DRAFTERS:
            found.append((*DRAFTERS[each.name], field(default=None)))
    return make_dataclass("ExportChoices", found, frozen=True, kw_only=True)


if TYPE_CHECKING:  # a type checker knows no class that is made
    ExportChoices = Any
else:
    ExportChoices = _choices()


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
    choices: ExportChoices,
    validate: Annotated[bool, typer.Option("--validate", help="Validate against the checkpoint before it is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")] = False,
    json: JsonOption = False,
) -> None:
    """Turn a checkpoint into one ExecuTorch program with all methods over one state, or into a graph for onnxruntime."""
    from hybridge.runtime.kernels import library

    options = export_options(choices)
    if options.format == "pte" and options.kernels == "hybridge" and not library.is_available():
        err.print(
            "[yellow]Here the artifact will not run:[/] hybridge's kernels are not compiled, and there is no C++ compiler. "
            "Install g++ or clang++, or give --kernels llm.",
            highlight=False,
        )
    from hybridge.export.api import export_model
    from hybridge.export.cli.progress import ConsoleProgress

    manifest = export_model(
        checkpoint,
        output,
        options,
        adapters=adapter or (),
        tokenizer=tokenizer,
        drafter=choices.drafter,
        draft_vocab=choices.draft_vocab,
        force=force,
        validate=validate,
        calibrate=choices.calibrate,
        progress=ConsoleProgress(err),
    )
    if json:
        print_json({"output": str(output), **manifest.model_dump(mode="json")})
    else:
        print_summary(output, manifest)


def export_options(choices: ExportChoices) -> ExportOptions:
    """Return the options of an export from those of the command line. Raises UsageError and typer.BadParameter."""
    from hybridge.cache import DEFAULT_MAX_SEQ_LEN
    from hybridge.export.quantize.bits import parse_bits

    given = {each.name: getattr(choices, each.name) for each in fields(ExportOptions) if hasattr(choices, each.name)}
    del given["calibrate"]  # a text or a file, which export_model reads
    if choices.max_seq_len is None:
        given["max_seq_len"] = DEFAULT_MAX_SEQ_LEN
        err.print(f"[yellow]--max-seq-len was not given:[/] the state will hold {DEFAULT_MAX_SEQ_LEN} tokens.", highlight=False)
    if choices.format == "onnx" and (named := choices.kernels or choices.backend):
        raise UsageError(
            f"--{'kernels' if choices.kernels else 'backend'} {named} is for --format pte: onnxruntime has its own. "
            "Leave it out."
        )
    *shorter, longest = numbers(choices.verify_len, "--verify-len", "4,8,16", lowest=1)
    blocks, images = choices.draft_blocks, choices.image_tokens
    has_blocks = choices.format == "pte" and choices.kernels in (None, "hybridge") and choices.group_size % 32 == 0
    return ExportOptions(**given | {
        "verify_len": longest, "shorter_verify_lens": tuple(shorter),
        "backend": choices.backend or "xnnpack", "kernels": choices.kernels or "hybridge",
        "rounding": choices.rounding or ("blocks" if has_blocks else "search"),
        "bits": parse_bits(choices.bits),
        "image_tokens": tuple(numbers(images, "--image-tokens", "64,256", lowest=1)) if images else (),
        "tap_layers": _taps(choices.tap_layers),
        "mtp": "auto" if choices.mtp is None else choices.mtp,
        "draft_blocks": tuple(numbers(blocks, "--draft-block", "4,8", lowest=2)) if blocks else (),
    })  # fmt: skip


def _taps(text: str) -> tuple[int, ...]:
    """Return the layers of ``text`` in its order."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: expected numbers of layers with commas between them, such as 2,-1.", param_hint="'--tap-layers'"
        ) from None


def print_summary(output: Path, manifest: Manifest) -> None:
    """Print a summary of the artifact, and commands to try."""
    name, size = escape(str(output)), megabytes(sum(manifest.files[file].size for file in manifest.program_files))
    state = sum(layer.state_bytes for layer in manifest.layers)
    bits = f"{manifest.bits_per_weight:.2f} bits a weight; " if manifest.bits_per_weight else ""
    kernels = "for onnxruntime" if manifest.onnx else f"kernels: {manifest.options.kernels}"
    err.print(
        f"[bold green]{name}[/] holds {len(manifest.methods)} methods in {size} "
        f"({bits}weights {megabytes(manifest.weight_bytes)}, state {megabytes(state)}; {kernels}).\n{_drafter(manifest)}"
        f"Try: hybridge inspect {name}   hybridge run {name} --prompt '…' --stats",
        highlight=False,
    )


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
