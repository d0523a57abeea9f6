"""``hybridge export``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hybridge.cache.defaults import DEFAULT_MAX_SEQ_LEN
from hybridge.cache.errors import UsageError
from hybridge.runtime.cli.console import err, numbers, print_json
from hybridge.runtime.cli.options import JsonOption
from hybridge.runtime.defaults import LONG_TEXT

EXAMPLES = (
    "hybridge export Qwen3.5-0.8B -o qwen --max-seq-len 2048",
    "hybridge export Qwen3.5-0.8B -o qwen --recipe balanced --validate",
    "hybridge export LiquidAI/LFM2-350M -o lfm2 --format onnx",
    "hybridge export model-Q4_K_M.gguf -o model --verify-len 4,16",
)


def export(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="A transformers checkpoint: a folder with config.json and *.safetensors, or a model in the hub's cache; or a "
            "GGUF file."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write; appears whole or not at all.")],
    adapter: Annotated[
        list[Path] | None,
        typer.Option("--adapter", help="A folder with a LoRA adapter to merge into the checkpoint; may be repeated."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A folder whose tokenizer and chat template to take instead of the checkpoint's.")
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(min=1, help=f"Tokens that the state can hold; {DEFAULT_MAX_SEQ_LEN} if left out.")
    ] = None,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Tokens of one prefill call.")] = 64,
    verify_len: Annotated[
        str, typer.Option(help="Most tokens of one verify call; 4,8,16 gives shorter blocks methods of their own.")
    ] = "8",
    snapshot_slots: Annotated[int, typer.Option(min=0, help="States that can be kept to come back to.")] = 2,
    format_: Annotated[
        Literal["pte", "onnx"], typer.Option("--format", help="Who runs it: ExecuTorch (pte) or onnxruntime (onnx).")
    ] = "pte",
    backend: Annotated[
        Literal["xnnpack", "portable"] | None,
        typer.Option(help="Who computes the dense parts of a .pte, unless hybridge's kernels do; xnnpack if left out."),
    ] = None,
    dtype: Annotated[Literal["float32"], typer.Option(help="Of weights and state.")] = "float32",
    kernels: Annotated[
        Literal["hybridge", "llm", "aten"] | None,
        typer.Option(
            help="hybridge's own (fastest; left out, these), the stock runtime's llama:: ones, or core operators that any "
            "build has.",
            show_default=False,
        ),
    ] = None,
    quantize: Annotated[
        Literal["auto", "none", "keep", "8da4w", "4w", "8w"],
        typer.Option(
            help="Linear layers in 4 or 8 bits; 8da4w also rounds what goes into them to 8 bits; keep has a GGUF file's own "
            "bits, its embedding's too; none is float32. auto: what one would ship, which with hybridge's kernels is keep for "
            "a quantized GGUF file and --recipe balanced for all else, with others none."
        ),
    ] = "auto",
    group_size: Annotated[int, typer.Option(help="Columns of a weight that share a scale: 32, 64, 128.")] = 32,
    embedding_quantize: Annotated[
        Literal["none", "4w", "5w", "6w", "8w"],
        typer.Option(help="The embedding, and the output layer where it is tied to it."),
    ] = "none",
    rounding: Annotated[
        Literal["nearest", "search", "blocks"] | None,
        typer.Option(
            help="How weights are rounded: blocks have a scale and a minimum for each group, search a scale by the least "
            "error, nearest one by the largest number. blocks if left out, where there are kernels for them, else search.",
            show_default=False,
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="Round weights for this file of text, or 'self' for texts that the model makes itself; slower."),
    ] = None,
    recipe: Annotated[
        Literal["none", "small", "balanced", "quality"],
        typer.Option(help="Bits by what their rounding costs; implies --quantize 8da4w and bits of the embedding."),
    ] = "none",
    bits: Annotated[
        str,
        typer.Option(
            help="Bits (4, 5, 6, 8 or 32) of weights by patterns of their names, such as 'out_proj=8,self_attn.*=8'; the last "
            "counts."
        ),
    ] = "",
    kv_cache: Annotated[
        Literal["auto", "float32", "float16", "int8"],
        typer.Option(
            help="Keys and values of full attention; fewer bits make long contexts cheap. auto: float16 for quantized weights "
            f"and more than {LONG_TEXT} tokens, else float32."
        ),
    ] = "auto",
    tap_layers: Annotated[
        str,
        typer.Option(
            help="Layers whose hidden states are put out too: 0 the embeddings, 3 after 3 layers, -1 after the last norm."
        ),
    ] = "",
    mtp: Annotated[bool, typer.Option("--mtp", help="With the checkpoint's own layers of multi-token prediction.")] = False,
    draft_len: Annotated[int, typer.Option(min=1, help="Tokens that this drafter proposes at once.")] = 4,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="With this drafter of the model: a folder with a DFlash, DFlash 2, DSpark or EAGLE-3 checkpoint, "
            "or an assistant of Gemma 4."
        ),
    ] = None,
    draft_block: Annotated[
        str,
        typer.Option(
            help="Tokens of its blocks, the text's last one included; 4,8 gives shorter ones methods of their own. "
            "Left out, the drafter's own length, as far as a verify takes it.",
            show_default=False,
        ),
    ] = "",
    draft_vocab: Annotated[
        str | None,
        typer.Option(
            help="Tokens that it may propose, for a smaller output layer: a number of the first ones, or a file with a text.",
            metavar="FILE|N",
        ),
    ] = None,
    draft_quantize: Annotated[
        Literal["same", "none", "8da4w", "4w", "8w"], typer.Option(help="A drafter's linear layers; same: as --quantize.")
    ] = "same",
    validate: Annotated[bool, typer.Option("--validate", help="Validate against the checkpoint before it is kept.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing artifact.")] = False,
    json: JsonOption = False,
) -> None:
    """Turn a checkpoint into one ExecuTorch program with all methods over one state, or into a graph for onnxruntime."""
    from hybridge.export.cli.export import export_checkpoint, print_summary, taps
    from hybridge.export.quantize.bits import parse_bits
    from hybridge.runtime.artifacts.options import ExportOptions
    from hybridge.runtime.kernels import library

    if max_seq_len is None:
        max_seq_len = DEFAULT_MAX_SEQ_LEN
        err.print(f"[yellow]--max-seq-len was not given:[/] the state will hold {max_seq_len} tokens.", highlight=False)
    if format_ == "onnx" and (given := kernels or backend):
        raise UsageError(
            f"--{'kernels' if kernels else 'backend'} {given} is for --format pte: onnxruntime has its own. Leave it out."
        )
    *shorter, longest = numbers(verify_len, "--verify-len", "4,8,16", lowest=1)
    blocks = format_ == "pte" and kernels in (None, "hybridge") and group_size % 32 == 0
    options = ExportOptions(
        max_seq_len=max_seq_len,
        prefill_chunk=prefill_chunk,
        verify_len=longest,
        shorter_verify_lens=tuple(shorter),
        snapshot_slots=snapshot_slots,
        format=format_,
        backend=backend or "xnnpack",
        dtype=dtype,
        kernels=kernels or "hybridge",
        quantize=quantize,
        group_size=group_size,
        embedding_quantize=embedding_quantize,
        rounding=rounding or ("blocks" if blocks else "search"),
        recipe=recipe,
        bits=parse_bits(bits),
        kv_cache=kv_cache,
        tap_layers=taps(tap_layers, mtp),
        mtp=mtp,
        draft_len=draft_len,
        draft_blocks=tuple(numbers(draft_block, "--draft-block", "4,8", lowest=2)) if draft_block else (),
        draft_quantize=draft_quantize,
    )
    if format_ == "pte" and options.kernels == "hybridge" and not library.is_available():
        err.print(
            "[yellow]Here the artifact will not run:[/] hybridge's kernels are not compiled, and there is no C++ compiler. "
            "Install g++ or clang++, or give --kernels llm.",
            highlight=False,
        )
    manifest = export_checkpoint(
        checkpoint,
        output,
        options,
        force=force,
        validate=validate,
        calibrate=calibrate,
        adapters=adapter or (),
        tokenizer=tokenizer,
        drafter=drafter,
        draft_vocab=draft_vocab,
    )
    if json:
        print_json({"output": str(output), **manifest.model_dump(mode="json")})
    else:
        print_summary(output, manifest)
