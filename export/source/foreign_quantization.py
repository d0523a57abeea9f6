"""Checkpoints that were quantized by others: refused by name, with where weights in full precision come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridge.cache.errors import NotACheckpointError, UnsupportedModelError

OWN = "hybridge quantizes by itself: export the original with --quantize."
ORIGINAL = f"Give the original checkpoint, in float32, float16 or bfloat16. {OWN}"
DEQUANTIZE = (
    "Give it in bfloat16, where its publisher has it so, or write that with accelerate installed: "
    "AutoModelForCausalLM.from_pretrained({folder!r}, quantization_config=CONFIG(dequantize=True))"
    f".save_pretrained('BF16'). Then copy the tokenizer's files to BF16 and export that. {OWN}"
)

METHODS = {
    "gptq": ("GPTQ", ORIGINAL),
    "awq": ("AWQ", ORIGINAL),
    "auto-round": ("AutoRound", ORIGINAL),
    "bitsandbytes": ("bitsandbytes", ORIGINAL),
    "compressed-tensors": ("compressed-tensors (llm-compressor)", ORIGINAL),
    "fp8": ("FP8", DEQUANTIZE.replace("CONFIG", "FineGrainedFP8Config")),
    "mxfp4": ("MXFP4", DEQUANTIZE.replace("CONFIG", "Mxfp4Config")),
    "torchao": ("torchao", ORIGINAL),
    "modelopt": ("NVIDIA ModelOpt", ORIGINAL),
}
"""By ``quant_method``: its name, and what to do."""


def check_quantization_config(folder: Path, content: dict[str, Any]) -> None:
    """Raises an error where config.json, whose ``content`` this is, says that the weights are quantized.

    NotACheckpointError for MLX, which has a format of its own; UnsupportedModelError for all others, naming the method.
    """
    text = content.get("text_config")
    for part in (content, text if isinstance(text, dict) else {}):
        if part.get("quantization"):
            raise mlx_error(folder)
        if config := part.get("quantization_config") or part.get("compression_config"):
            raise _error(folder, _method(config))


def mlx_error(folder: Path) -> NotACheckpointError:
    """What to say of weights that were written by MLX, which lays some of them out in its own way."""
    return NotACheckpointError(f"{folder} holds weights that were converted for MLX. {ORIGINAL}")


def _method(config: object) -> str:
    options = config if isinstance(config, dict) else {}
    old_bitsandbytes = options.get("load_in_4bit") or options.get("load_in_8bit")
    return str(options.get("quant_method") or ("bitsandbytes" if old_bitsandbytes else "a method without a name"))


def _error(folder: Path, method: str) -> UnsupportedModelError:
    name, advice = METHODS.get(method, (method, ORIGINAL))
    return UnsupportedModelError(
        f"the weights in {folder} are quantized already, by {name}, which hybridge does not read. "
        + advice.format(folder=str(folder))
    )
