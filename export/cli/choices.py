"""The options of an export as the command line has them, and the ``ExportOptions`` that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer

from hybridge.errors import UsageError
from hybridge.runtime.artifact.delegates import DELEGATES, TAKEN, Stored
from hybridge.runtime.artifact.options import Bits, ExportOptions
from hybridge.runtime.cli.console import numbers

Default = ExportOptions
"""Its fields' default values are those of the command line, but where a comment says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ExportChoices:
    """Options of ``hybridge export``. Several values are one text with commas; what is left out may depend on other options."""

    max_seq_len: Annotated[
        int | None,
        typer.Option(
            "--max-seq-len",
            min=1,
            help="Tokens that the state can hold, which take memory as a text grows. If left out, as many as the model takes, "
            "up to 32768, and up to 2048 without hybridge's kernels.",
        ),
    ] = None
    prefill_chunk: Annotated[int, typer.Option("--prefill-chunk", min=1, help="Tokens of one prefill call.")] = (
        Default.prefill_chunk
    )
    verify_len: Annotated[
        str,
        typer.Option(
            "--verify-len", help="Most tokens of one verify call. With 4,8,16, shorter blocks have methods of their own."
        ),
    ] = "4,8"
    snapshot_slots: Annotated[
        int, typer.Option("--snapshot-slots", min=0, help="Number of states that can be kept and restored.")
    ] = Default.snapshot_slots
    format: Annotated[
        Literal["pte", "onnx"], typer.Option("--format", help="The runtime: ExecuTorch (pte) or onnxruntime (onnx).")
    ] = Default.format
    backend: Annotated[
        Literal["xnnpack", "portable"] | None,
        typer.Option(
            "--backend",
            help=f"Computes the dense parts of a .pte, except with hybridge's kernels; {Default.backend} if left out.",
        ),
    ] = None
    dtype: Annotated[Literal["float32"], typer.Option("--dtype", help="The data type of weights and state.")] = Default.dtype
    kernels: Annotated[
        Literal["hybridge", "llm", "aten"] | None,
        typer.Option(
            "--kernels",
            help="hybridge: our own kernels, the fastest. llm: the llama:: operators of the stock runtime. aten: core "
            f"operators, which every build has. {Default.kernels} if left out.",
        ),
    ] = None
    quantize: Annotated[
        Literal["auto", "none", "keep", "8da4w", "4w", "8w"],
        typer.Option(
            "--quantize",
            help="Bits of linear layers. 8da4w, 4w: 4 bits; 8w: 8 bits; 8da4w also rounds the inputs of layers to 8 bits. "
            "keep: those of a GGUF file, its embedding included. none: float32. auto: keep for a quantized GGUF file and "
            "--recipe balanced for other checkpoints, if hybridge's kernels run it; otherwise none.",
        ),
    ] = "auto"
    group_size: Annotated[int, typer.Option("--group-size", help="Columns of a weight that share a scale: 32, 64 or 128.")] = (
        Default.group_size
    )
    embedding_quantize: Annotated[
        Literal["none", "4w", "5w", "6w", "8w"],
        typer.Option("--embedding-quantize", help="Bits of the embedding, and of an output layer that is tied to it."),
    ] = Default.embedding_quantize
    rounding: Annotated[
        Literal["nearest", "search", "blocks"] | None,
        typer.Option(
            "--rounding",
            help="How weights are rounded. blocks: each group has a scale and a minimum. search: the scale with the least "
            "error. nearest: the scale of the largest number. If left out, blocks where there are kernels for "
            "them, otherwise search.",
        ),
    ] = None
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="self|FILE",
            help="Round weights so that this file of text changes least, or texts that the model makes itself (self); slower.",
        ),
    ] = None
    recipe: Annotated[
        Literal["none", "small", "balanced", "quality"],
        typer.Option(
            "--recipe",
            help="Give each kind of weights the bits that it needs; implies --quantize 8da4w and quantizes the embedding.",
        ),
    ] = Default.recipe
    bits: Annotated[
        str,
        typer.Option(
            "--bits",
            show_default=False,
            help="Bits (4, 5, 6, 8 or 32) of weights by patterns of their names, such as 'out_proj=8,self_attn.*=8'; the last "
            "pattern that fits counts.",
        ),
    ] = ""
    kv_cache: Annotated[
        Literal["auto", "float32", "float16", "int8"],
        typer.Option(
            "--kv-cache",
            help="The data type of keys and values of full attention; small ones make long contexts cheap. auto: float16 with "
            "quantized weights, for families that were found not to mind, otherwise float32.",
        ),
    ] = Default.kv_cache
    images: Annotated[
        bool,
        typer.Option("--images/--no-images", help="Export the encoder of pictures too, if the checkpoint has one that can be."),
    ] = Default.images
    image_tokens: Annotated[
        str,
        typer.Option(
            "--image-tokens",
            show_default=False,
            help="Most tokens of a picture or tile, such as 64,256. Each number gives the encoder a method of its own, and a "
            "picture takes the smallest that holds it. If left out, those of common squares and of the model's training.",
        ),
    ] = ""
    tap_layers: Annotated[
        str,
        typer.Option(
            "--tap-layers",
            show_default=False,
            help="Put out the hidden states of these layers too: 0 is the embedding, 3 the third layer, -1 the last norm.",
        ),
    ] = ""
    mtp: Annotated[
        bool | None,
        typer.Option(
            "--mtp/--no-mtp",
            help="Export the checkpoint's layers for multi-token prediction (MTP) as its drafter. If left out, they are "
            "exported unless they add more than 12 % to the bytes of the weights.",
        ),
    ] = None
    draft_len: Annotated[
        int,
        typer.Option(
            "--draft-len",
            min=1,
            help="Most tokens that these layers propose at once, as far as a verify takes them. Shorter blocks have methods of "
            "their own, one for each length of a verify.",
        ),
    ] = Default.draft_len
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            help="Export this drafter of the model too: a folder with a DFlash, DFlash 2, DSpark or EAGLE-3 checkpoint, or an "
            "assistant of Gemma 4.",
        ),
    ] = None
    draft_blocks: Annotated[
        str,
        typer.Option(
            "--draft-block",
            show_default=False,
            help="Tokens of a block of this drafter, the last one of the text included; with 4,8, shorter blocks have methods "
            "of their own. If left out, the drafter's own length, as far as a verify takes it.",
        ),
    ] = ""
    draft_vocab: Annotated[
        str | None,
        typer.Option(
            "--draft-vocab",
            metavar="all|N|self|FILE",
            help="Tokens that a drafter may propose if it shares the model's output layer: all of them, the first N, those "
            "that the model says most often (self), or those of a file: a text, or ids in JSON, the most frequent first. "
            "self:N and FILE:N are N tokens. If left out, all, or 32000 by self of a vocabulary of more than 65536.",
        ),
    ] = None
    draft_quantize: Annotated[
        Literal["same", "none", "8da4w", "4w", "8w"],
        typer.Option("--draft-quantize", help="Bits of a drafter's linear layers; same: as --quantize."),
    ] = Default.draft_quantize

    delegate: Annotated[
        str,
        typer.Option(
            "--delegate",
            metavar="NAME[:DEVICE]",
            help="Give the artifact methods for an accelerator, over the same state; the CPU's own ones stay. "
            "openvino, vulkan or coreml; devices are CPU, GPU, NPU and ALL.",
        ),
    ] = Default.delegate
    delegate_methods: Annotated[
        str,
        typer.Option(
            "--delegate-methods",
            metavar="prefill,encode",
            help="What the accelerator takes: prompts, pictures of the most --image-tokens, or both.",
        ),
    ] = ",".join(Default.delegate_methods)
    delegate_weights: Annotated[
        Stored,
        typer.Option(
            "--delegate-weights",
            help="How the accelerator's own copy of the weights is stored. auto: float32, or int8 for quantized weights, if it "
            "has these.",
        ),
    ] = Default.delegate_weights
    delegate_from: Annotated[
        int, typer.Option("--delegate-from", min=1, help="Tokens of the shortest prompt that the accelerator reads.")
    ] = Default.delegate_from

    def options(self) -> ExportOptions:
        """Return the options of the export. Raises UsageError and typer.BadParameter."""
        if self.format == "onnx" and (named := self.kernels or self.backend):
            raise UsageError(
                f"--{'kernels' if self.kernels else 'backend'} {named} is for --format pte: onnxruntime has its own. "
                "Leave it out."
            )
        has_blocks = self.format == "pte" and self.kernels in (None, "hybridge") and self.group_size % 32 == 0
        *shorter, longest = numbers(self.verify_len, "--verify-len", "4,8,16", lowest=1)
        read: dict[str, Any] = {
            "verify_len": longest,
            "shorter_verify_lens": tuple(shorter),
            "rounding": self.rounding or ("blocks" if has_blocks else "search"),
            "bits": _bits(self.bits),
            "tap_layers": _taps(self.tap_layers),
            "image_tokens": _numbers(self.image_tokens, "--image-tokens", "64,256", lowest=1),
            "draft_blocks": _numbers(self.draft_blocks, "--draft-block", "4,8", lowest=2),
            "mtp": "auto" if self.mtp is None else self.mtp,
            "calibrate": Default.calibrate,  # export_model reads the text
            **_delegate(self.delegate),
            "delegate_methods": _delegate_methods(self.delegate_methods),
        }
        names = {each.name for each in fields(ExportOptions)} - read.keys()
        given = {name: value for name, value in vars(self).items() if name in names and value is not None}
        return ExportOptions(**given, **read)


def _delegate(text: str) -> dict[str, str]:
    """Return a delegate and its device, or its first one."""
    name, _, device = text.partition(":")
    row = DELEGATES.get(name)
    return {"delegate": name, **({"delegate_device": device.upper() or row.devices[0]} if row else {})}


def _delegate_methods(text: str) -> tuple[str, ...]:
    if unknown := sorted({*(methods := text.split(","))} - TAKEN.keys()):
        raise typer.BadParameter(f"{unknown[0]!r} is not {' or '.join(TAKEN)}.", param_hint="'--delegate-methods'")
    return tuple(methods)


def _bits(text: str) -> Bits:
    if not text:
        return ()
    from hybridge.export.quantize.bits import parse_bits  # which needs PyTorch

    return parse_bits(text)


def _numbers(text: str, name: str, example: str, *, lowest: int) -> tuple[int, ...]:
    return tuple(numbers(text, name, example, lowest=lowest)) if text else ()


def _taps(text: str) -> tuple[int, ...]:
    """Return the layers of ``text`` in its order."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: expected numbers of layers with commas between them, such as 2,-1.", param_hint="'--tap-layers'"
        ) from None
