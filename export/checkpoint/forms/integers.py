"""GPTQ, AutoRound and AWQ: weights [K, N] of whole numbers with zero points, several in a 32-bit word.

Sources: AutoGPTQ's ``qlinear``, AutoAWQ's ``awq/utils/packing_utils.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.checkpoint.forms.form import ORIGINAL, Form, Method, Parts, Quantization
from hybridge.export.checkpoint.forms.numbers import grouped, unpack_words

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
