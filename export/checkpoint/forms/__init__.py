"""The forms of weights that others quantized, by the ``quant_method`` of config.json."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.export.checkpoint.forms.bitsandbytes import BITSANDBYTES
from hybridge.export.checkpoint.forms.compressed_tensors import COMPRESSED_TENSORS
from hybridge.export.checkpoint.forms.floats import FBGEMM_FP8, FP8, MODELOPT, MXFP4
from hybridge.export.checkpoint.forms.form import Method
from hybridge.export.checkpoint.forms.integers import AUTO_ROUND, AWQ, GPTQ
from hybridge.export.checkpoint.forms.torchao import TORCHAO

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
