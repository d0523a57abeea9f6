"""Readers of quantized forms that share no code with export/: one number at a time, as each format defines it.

``read_*`` takes the stored tensors of a weight by the endings of their names and returns the float32 weight [N, K]. A form's
own package reads where it is installed; otherwise these loops do, each after the function of that package that it names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]


def weight(rows: int, columns: int, number: Callable[[int, int], float]) -> Tensor:
    return torch.tensor([[number(n, k) for k in range(columns)] for n in range(rows)], dtype=torch.float32)


def bits_at(word: int, place: int, bits: int) -> int:
    """The number of ``bits`` bits at ``place`` in an int32 word, the lowest bits first."""
    return (word % 2**32) // 2 ** (bits * place) % 2**bits


# Integers in 32-bit words


def read_gptq(parts: Parts, bits: int, group: int, *, minus_one: bool) -> Tensor:
    """GPTQModel 5 ``nn_modules/qlinear/torch.py`` ``dequantize_weight``; version 1 of the format stores zero points minus one
    (``utils/model.py`` ``convert_gptq_v1_to_v2_format_module``). AutoRound 0.16's ``qlinear_torch.py`` and
    ``qlinear_torch_zp.py`` are the same pair.
    """
    qweight, qzeros, scales = (parts[name].tolist() for name in (".qweight", ".qzeros", ".scales"))
    each, columns = 32 // bits, len(qweight) * 32 // bits
    groups = parts[".g_idx"].tolist() if ".g_idx" in parts else [k // group for k in range(columns)]

    def number(n: int, k: int) -> float:
        stored = bits_at(qweight[k // each][n], k % each, bits)
        zero = bits_at(qzeros[groups[k]][n // each], n % each, bits)
        zero = (zero + 1) % 2**bits if minus_one else zero
        return (stored - zero) * scales[groups[k]][n]

    return weight(len(scales[0]), columns, number)


def read_awq(parts: Parts, group: int) -> Tensor:
    """AutoAWQ 0.2 ``utils/packing_utils.py`` ``dequantize_gemm`` with its AWQ_ORDER."""
    qweight, qzeros, scales = (parts[name].tolist() for name in (".qweight", ".qzeros", ".scales"))
    place_of = {column: place for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7))}

    def number(n: int, k: int) -> float:
        stored = bits_at(qweight[k][n // 8], place_of[n % 8], 4)
        return (stored - bits_at(qzeros[k // group][n // 8], place_of[n % 8], 4)) * scales[k // group][n]

    return weight(len(scales[0]), len(qweight), number)


# Floating-point numbers of 8 and 4 bits


def read_blocks(parts: Parts, numbers: str, scales: str, block: tuple[int, int]) -> Tensor:
    """transformers 5.23 ``integrations/finegrained_fp8.py``: a scale for each block, the last ones cut off."""
    values, each = parts[numbers].float().tolist(), as_floats(parts[scales])
    return weight(len(values), len(values[0]), lambda n, k: values[n][k] * each[n // block[0]][k // block[1]])


def read_rows(parts: Parts, numbers: str, scales: str) -> Tensor:
    """FBGEMM's and vLLM's FP8: a scale for each row, or one for all."""
    values, each = parts[numbers].float().tolist(), parts[scales].float().flatten().tolist()
    return weight(len(values), len(values[0]), lambda n, k: values[n][k] * (each[n] if len(each) > 1 else each[0]))


def as_floats(scales: Tensor) -> list[Any]:
    """Scales as floats; a byte is a power of two with a bias of 127 (Microscaling Formats 1.0, section 5.4.1)."""
    listed: list[Any] = scales.view(torch.uint8).tolist() if scales.itemsize == 1 else scales.float().tolist()
    return [[2.0 ** (each - 127) for each in row] for row in listed] if scales.itemsize == 1 else listed


def fp4_at(packed: list[int], k: int) -> float:
    """Number k of float4 e2m1, the first of two in a byte in its lower half: a sign, two bits of exponent, one of mantissa."""
    bits = packed[k // 2] // 16 ** (k % 2) % 16
    sign, exponent, mantissa = -1.0 if bits >= 8 else 1.0, bits // 2 % 4, bits % 2
    return sign * (mantissa * 0.5 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


def read_nvfp4(parts: Parts) -> Tensor:
    """ModelOpt 0.47 ``qtensor/nvfp4_tensor.py`` ``dequantize``; inputs are multiplied by ``pre_quant_scale`` before
    (``quantization/nn/modules/tensor_quantizer.py`` ``forward``).
    """
    packed, scales = parts[".weight"].tolist(), parts[".weight_scale"].float().tolist()
    whole = float(parts[".weight_scale_2"])
    inputs = parts[".pre_quant_scale"].tolist() if ".pre_quant_scale" in parts else None
    return weight(
        len(packed),
        2 * len(packed[0]),
        lambda n, k: fp4_at(packed[n], k) * scales[n][k // 16] * whole * (inputs[k] if inputs else 1.0),
    )


def read_compressed_nvfp4(parts: Parts) -> Tensor:
    """compressed-tensors 0.20 ``compressors/nvfp4/base.py`` ``decompress``, which rounds to bfloat16: a scale is divided by the
    global one (``quantization/lifecycle/forward.py`` ``_process_quantization``).
    """
    packed, scales = parts[".weight_packed"].tolist(), parts[".weight_scale"].float().tolist()
    whole = float(parts[".weight_global_scale"])
    return weight(len(packed), 2 * len(packed[0]), lambda n, k: fp4_at(packed[n], k) * (scales[n][k // 16] / whole))


def read_mxfp4(parts: Parts) -> Tensor:
    """transformers 5.23 ``integrations/mxfp4.py`` ``convert_moe_packed_tensors``: experts, stored transposed."""
    packed, scales = parts["_blocks"].tolist(), parts["_scales"].tolist()

    def expert(blocks: list[list[list[int]]], powers: list[list[int]]) -> Tensor:
        columns = 32 * len(powers[0])
        stored = weight(
            len(blocks), columns, lambda n, k: fp4_at(blocks[n][k // 32], k % 32) * 2.0 ** (powers[n][k // 32] - 127)
        )
        return stored.T

    return torch.stack([expert(*each) for each in zip(packed, scales, strict=True)])


# bitsandbytes


def read_four_bits(parts: Parts) -> Tensor:
    """bitsandbytes 0.48 ``functional.py`` ``QuantState.from_dict`` and ``dequantize_4bit``: the first of two is the upper."""
    (kind,) = (end for end in parts if "quant_state" in end)
    state = json.loads(bytes(parts[kind].tolist()))
    packed, table = parts[".weight"].flatten().tolist(), parts[".weight.quant_map"].tolist()
    absmax: list[Any] = parts[".weight.absmax"].tolist()
    if "nested_absmax" in "".join(parts):
        outer, codes = parts[".weight.nested_absmax"].tolist(), parts[".weight.nested_quant_map"].tolist()
        absmax = [codes[code] * outer[i // state["nested_blocksize"]] + state["nested_offset"] for i, code in enumerate(absmax)]
    rows, columns = state["shape"]

    def number(n: int, k: int) -> float:
        i = n * columns + k
        byte = packed[i // 2]
        return table[byte // 16 if i % 2 == 0 else byte % 16] * absmax[i // state["blocksize"]]  # type: ignore[no-any-return]

    return weight(rows, columns, number)


def read_eight_bits(parts: Parts) -> Tensor:
    """bitsandbytes 0.48 ``functional.py`` ``int8_vectorwise_dequant``."""
    values, largest = parts[".weight"].tolist(), parts[".SCB"].tolist()
    return weight(len(values), len(values[0]), lambda n, k: values[n][k] * largest[n] / 127)


# compressed-tensors: its own package


def read_compressed(parts: Parts, config: Mapping[str, Any]) -> Tensor:
    """compressed-tensors' own ``decompress`` of the config's format."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    (group,) = config["config_groups"].values()
    scheme = QuantizationScheme.model_validate({name: each for name, each in group.items() if name != "format"})
    kind = BaseCompressor.get_value_from_registry(config["format"])
    local = {end.removeprefix("."): part for end, part in parts.items()}
    # Its own order of two float32 products, with the scale in float32.
    local |= {name: part.float() for name, part in local.items() if part.dtype in (torch.float16, torch.bfloat16)}
    return kind.decompress(local, scheme)["weight"].float()  # type: ignore[no-any-return]
