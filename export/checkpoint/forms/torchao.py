"""torchao: tensors in parts, whose kinds and sizes are in the metadata of the safetensors."""

from __future__ import annotations

import json
import re

from torch import Tensor

from hybridge.export.checkpoint.forms.form import Form, Method, Parts, Quantization
from hybridge.export.pinned.torchao import dequantize_stored

MARKER = "._weight_qdata"
BESIDE_IT = ("._weight_scale", "._weight_zero_point", "._weight_act_pre_scale", "._weight_act_quant_scale")


def _decode(parts: Parts, quantization: Quantization) -> Tensor:
    return dequantize_stored(
        quantization.metadata[quantization.name], {end.removeprefix("._weight_"): part for end, part in parts.items()}
    )


def _bits(quantization: Quantization) -> int:
    """By the names of torchao's configs, such as Int8WeightOnlyConfig."""
    names = json.dumps(quantization.config.get("quant_type"))
    return 4 if re.search("int4|uint4", names, re.IGNORECASE) else 8


TORCHAO = Method(name="torchao", forms=(Form(marker=MARKER, parts=BESIDE_IT, weight=".weight", decode=_decode),), bits=_bits)
