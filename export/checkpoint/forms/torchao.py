"""torchao: tensors in parts, whose kinds and sizes are in the metadata of the safetensors."""

from __future__ import annotations

from torch import Tensor

from hybridge.export.checkpoint.forms.form import Form, Method, Parts, Quantization
from hybridge.export.pinned.torchao import dequantize_stored

MARKER = "._weight_qdata"
BESIDE_IT = ("._weight_scale", "._weight_zero_point", "._weight_act_pre_scale", "._weight_act_quant_scale")


def _decode(parts: Parts, quantization: Quantization) -> Tensor:
    return dequantize_stored(
        quantization.metadata[quantization.name], {end.removeprefix("._weight_"): part for end, part in parts.items()}
    )


TORCHAO = Method(name="torchao", forms=(Form(marker=MARKER, parts=BESIDE_IT, weight=".weight", decode=_decode),))
