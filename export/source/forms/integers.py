"""GPTQ, AutoRound and AWQ: weights [K, N] of whole numbers with zero points, several in a 32-bit word.

Sources: AutoGPTQ's ``qlinear``, AutoAWQ's ``awq/utils/packing_utils.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.pinned.torchao import dequantize_stored
from hybridge.export.source.forms.form import ORIGINAL, Form, Method, Parts, Quantization

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the eight columns of a word are in it: they are stored in the order 0, 2, 4, 6, 1, 3, 5, 7."""


def _gptq(parts: Parts, quantization: Quantization) -> Tensor:
    """qweight [K / 8, N], qzeros [G, N / 8], scales [G, N], g_idx [K]. All but version 2 store zero points less one."""
    bits = quantization.number("bits", 4)
    numbers, zeros = unpack_words(parts[".qweight"], bits, 0), unpack_words(parts[".qzeros"], bits, 1)
    if quantization.config.get("checkpoint_format") != "gptq_v2":
        zeros = (zeros + 1) & ((1 << bits) - 1)
    return grouped(numbers.T, parts[".scales"].T, zeros.T, parts.get(".g_idx"))


def _check_gptq(quantization: Quantization) -> None:
    """Raises UnsupportedModelError for numbers that cross the words' borders."""
    if (bits := quantization.number("bits", 4)) not in (2, 4, 8):
        raise UnsupportedModelError(
            f"the weights are quantized by GPTQ in {bits} bits, of which hybridge reads 2, 4 and 8. {ORIGINAL}"
        )


def _awq(parts: Parts, quantization: Quantization) -> Tensor:
    """qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]."""
    numbers, zeros = (_in_order(unpack_words(parts[name], 4, 1)) for name in (".qweight", ".qzeros"))
    return grouped(numbers.T, parts[".scales"].T, zeros.T, None)


def _in_order(numbers: Tensor) -> Tensor:
    ordered: Tensor = numbers.unflatten(1, (-1, 8))[:, :, torch.tensor(AWQ_ORDER)].flatten(1)
    return ordered


def _check_awq(quantization: Quantization) -> None:
    """Raises UnsupportedModelError for the layouts that other kernels have, and for other bits."""
    version, bits = str(quantization.config.get("version") or "gemm").lower(), quantization.number("bits", 4)
    if version != "gemm" or bits != 4:
        raise UnsupportedModelError(
            f"the weights are quantized by AWQ in its layout {version!r} with {bits} bits, of which hybridge reads 'gemm' with "
            f"4 bits. {ORIGINAL}"
        )


def _auto_round(parts: Parts, quantization: Quantization) -> Tensor:
    return (_awq if _packs_as_awq(quantization) else _gptq)(parts, quantization)


def _check_auto_round(quantization: Quantization) -> None:
    (_check_awq if _packs_as_awq(quantization) else _check_gptq)(quantization)


def _packs_as_awq(quantization: Quantization) -> bool:
    return "awq" in str(quantization.config.get("packing_format"))


def _method(name: str, decode: Callable[[Parts, Quantization], Tensor], check: Callable[[Quantization], None]) -> Method:
    form = Form(marker=".qweight", parts=(".qzeros", ".scales", ".g_idx"), weight=".weight", decode=decode, check=check)
    return Method(name=name, forms=(form,), bits=lambda quantization: quantization.number("bits", 4))


GPTQ = _method("GPTQ", _gptq, _check_gptq)
AWQ = _method("AWQ", _awq, _check_awq)
AUTO_ROUND = _method("AutoRound", _auto_round, _check_auto_round)


# bitsandbytes: 4 bits as places in a table of 16 numbers, 8 bits with a scale for each row.
#
# Source: bitsandbytes 0.48 ``functional.py``, ``QuantState.from_dict`` and ``dequantize_4bit``.


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


# torchao: tensors in parts, whose kinds and sizes are in the metadata of the safetensors.


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


# Numbers of few bits in larger words, and scales that several numbers share.
#
# Axes: N rows (outputs), K columns (inputs), G groups of columns.


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""float4 e2m1 by its four bits (Open Compute Project, Microscaling Formats 1.0, section 5.3.3)."""

E8M0_BIAS = 127
"""Of a scale that is a power of two."""


def unpack_words(words: Tensor, bits: int, dim: int) -> Tensor:
    """Unpack the numbers in the 32-bit words along ``dim``, lowest bits first, to int32 of 0 to 2^bits - 1."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    dim %= words.dim()
    spread = words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.dim() - dim - 1))
    return (spread & ((1 << bits) - 1)).flatten(dim, dim + 1)


def unpack_nibbles(packed: Tensor, *, low_first: bool = True) -> Tensor:
    """Unpack uint8 [..., K / 2] to int64 [..., K], indices into a table of 16."""
    halves = (packed & 15, packed >> 4) if low_first else (packed >> 4, packed & 15)
    return torch.stack(halves, -1).flatten(-2).long()


def fp4(packed: Tensor) -> Tensor:
    """Return float32 [..., K] of float4 numbers, two in a byte of uint8 [..., K / 2], the first in its lower half."""
    return torch.tensor(FP4)[unpack_nibbles(packed)]


def e8m0(scales: Tensor) -> Tensor:
    """Return the powers of two that uint8 scales stand for, float32."""
    return torch.exp2(scales.view(torch.uint8).float() - E8M0_BIAS)


def scaled(numbers: Tensor, scales: Tensor, block: Sequence[int] | None = None) -> Tensor:
    """Multiply numbers [..., N, K] with the scale of their block: scales [..., n, k], [N] (a row each), or one for all.

    block: rows and columns of one; where it is left out, blocks divide rows and columns evenly. float32.
    """
    numbers, scales = numbers.float(), scales.float()
    if scales.numel() == 1:
        return numbers * scales.reshape(())
    if scales.dim() < numbers.dim():
        scales = scales.unsqueeze(-1)
    for dim, size in ((-2, block[0] if block else None), (-1, block[1] if block else None)):
        repeats = size or numbers.shape[dim] // scales.shape[dim]
        scales = scales.repeat_interleave(repeats, dim).narrow(dim, 0, numbers.shape[dim])
    return numbers * scales


def grouped(numbers: Tensor, scales: Tensor, zeros: Tensor | None, groups: Tensor | None) -> Tensor:
    """Return (numbers - zeros) * scales as float32 [N, K], where scales and zeros [N, G] hold for groups of columns.

    groups: the group of each column, int [K], where it is not the one that the column's place says.
    """
    for each in (scales, scales if zeros is None else zeros):
        if each.dim() != 2 or each.shape != scales.shape or each.shape[0] != numbers.shape[0]:
            raise ValueError(f"scales and zero points of {list(each.shape)} for a weight of {list(numbers.shape)}")
    if groups is None:
        groups = torch.arange(numbers.shape[1]) // -(-numbers.shape[1] // scales.shape[1])
    columns = groups.long()
    if zeros is not None:
        numbers = numbers - zeros[:, columns]
    return numbers.float() * scales.float()[:, columns]
