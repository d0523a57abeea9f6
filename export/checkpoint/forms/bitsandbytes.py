"""bitsandbytes: 4 bits as places in a table of 16 numbers, 8 bits with a scale for each row.

Source: bitsandbytes 0.48 ``functional.py``, ``QuantState.from_dict`` and ``dequantize_4bit``.
"""

from __future__ import annotations

import json
from typing import Any

from torch import Tensor

from hybridge.export.checkpoint.forms.form import Form, Method, Parts, Quantization
from hybridge.export.checkpoint.forms.numbers import unpack_nibbles


def _state_of(kind: str) -> str:
    return f".quant_state.bitsandbytes__{kind}"


def _four_bits(kind: str) -> Form:
    """NF4 or FP4, by the name of the part that has the weight's shape as JSON."""

    def decode(parts: Parts, quantization: Quantization) -> Tensor:
        state: dict[str, Any] = json.loads(bytes(parts[_state_of(kind)].tolist()))
        numbers = parts[".quant_map"].float()[unpack_nibbles(parts[""].flatten(), low_first=False)]
        largest = _largest(parts, state).repeat_interleave(state["blocksize"])[: numbers.numel()]
        return (numbers * largest).view(state["shape"])

    parts = ("", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
    return Form(marker=_state_of(kind), parts=parts, weight="", decode=decode)


def _largest(parts: Parts, state: dict[str, Any]) -> Tensor:
    """The largest absolute value of each block, which may be stored in 8 bits itself, in blocks of its own."""
    largest = parts[".absmax"]
    if "nested_blocksize" not in state:
        return largest.float()
    nested = parts[".nested_absmax"].float().repeat_interleave(state["nested_blocksize"])[: largest.numel()]
    return parts[".nested_quant_map"].float()[largest.long()] * nested + float(state["nested_offset"])


def _eight_bits(parts: Parts, quantization: Quantization) -> Tensor:
    """Rows whose largest absolute value, SCB [N], is 127."""
    return parts[".weight"].float() * (parts[".SCB"].float() / 127).unsqueeze(1)


EIGHT_BITS = Form(marker=".SCB", parts=(".weight",), weight=".weight", decode=_eight_bits)

BITSANDBYTES = Method(
    name="bitsandbytes",
    forms=(_four_bits("nf4"), _four_bits("fp4"), EIGHT_BITS),
    beside=("*.weight_format",),
    bits=lambda quantization: 8 if quantization.config.get("load_in_8bit") else 4,
)
