"""The forms of weights that others quantized, by the ``quant_method`` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.source.files import read_object
from hybridge.export.source.folder_kinds import mlx_error
from hybridge.export.source.forms.floats import COMPRESSED_TENSORS, FBGEMM_FP8, FP8, MODELOPT, MXFP4
from hybridge.export.source.forms.form import ORIGINAL, Method, Quantization
from hybridge.export.source.forms.integers import AUTO_ROUND, AWQ, BITSANDBYTES, GPTQ, TORCHAO

METHODS: Mapping[str, Method] = {
    "auto-round": AUTO_ROUND,
    "awq": AWQ,
    "bitsandbytes": BITSANDBYTES,
    "compressed-tensors": COMPRESSED_TENSORS,
    "fbgemm_fp8": FBGEMM_FP8,
    "fp8": FP8,
    "gptq": GPTQ,
    "modelopt": MODELOPT,
    "mxfp4": MXFP4,
    "torchao": TORCHAO,
}


# Which form the weights of a checkpoint's folder have, by its config.json.


CONFIG_OF_MODELOPT = "hf_quant_config.json"


@dataclass(frozen=True, kw_only=True)
class Recognized:
    """A method, and what the checkpoint says of it."""

    method: Method
    quantization: Quantization


def quantization_of(folder: Path, content: dict[str, Any]) -> Recognized | None:
    """Return how the weights in ``folder``, whose config.json has ``content``, are quantized; None where they are not.

    Raises NotACheckpointError for MLX, which has a format of its own; UnsupportedModelError for a method that hybridge does not
    read, by its name.
    """
    config = _quantization_config(folder, content)
    if not config:
        return None
    name = _method(config)
    if name not in METHODS:
        raise UnsupportedModelError(
            f"the weights in {folder} are quantized already, by {name}, which hybridge does not read "
            f"(it reads {', '.join(sorted(METHODS))}). {ORIGINAL}"
        )
    return Recognized(method=METHODS[name], quantization=Quantization(config=config))


def _quantization_config(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Raises NotACheckpointError for MLX's."""
    text = content.get("text_config")
    for part in (content, text if isinstance(text, dict) else {}):
        if part.get("quantization"):
            raise mlx_error(folder)
        if config := part.get("quantization_config") or part.get("compression_config"):
            return config if isinstance(config, dict) else {"quant_method": None}
    modelopt = read_object(folder / CONFIG_OF_MODELOPT)  # which older versions write beside a config that says nothing
    return {**modelopt, "quant_method": "modelopt"} if modelopt.get("quantization") else {}


def _method(config: dict[str, Any]) -> str:
    old_bitsandbytes = config.get("load_in_4bit") or config.get("load_in_8bit")
    return str(config.get("quant_method") or ("bitsandbytes" if old_bitsandbytes else "a method without a name"))
