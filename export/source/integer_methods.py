"""Decode GPTQ, AutoRound and AWQ: integers [K, N] with zero points, several in a 32-bit word.

Sources: GPTQModel 5 ``nn_modules/qlinear`` and ``utils/model.py``, AutoRound 0.16 ``export/export_to_autoround/export.py``
and ``auto_round_extension/torch``, AutoAWQ 0.2 ``utils/packing_utils.py``.

Axes: N rows (outputs), K columns (inputs), G groups of columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from hybridge.errors import UnsupportedModelError
from hybridge.export.source.quantization import (
    ORIGINAL,
    Block,
    Quantization,
    QuantizationMethod,
    WeightEncoding,
    WeightParts,
    scaled,
    unpack_words,
)

BITS = (2, 4, 8)
"""Bits of which no number crosses the border of two words."""

FIELDS = (
    *("bits", "w_bit", "group_size", "q_group_size", "sym", "zero_point", "desc_act", "dynamic", "extra_config", "lm_head"),
    *("checkpoint_format", "format", "version", "packing_format", "pack_dtype", "data_type", "backend", "method", "meta"),
    # How the integers were found, and on which machine
    *("damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "mse", "act_group_aware", "hyb_act"),
    *("gptaq", "gptaq_alpha", "foem", "v2", "v2_alpha", "fallback", "failsafe", "hessian", "moe", "smoother", "smooth"),
    *("preprocessors", "device", "pack_impl", "offload_to_disk", "offload_to_disk_path", "compute_device_filter", "gc_mode"),
    *("calibration_data_device", "auto_forward_data_parallel", "*vram_strategy*", "wait_for_submodule_finalizers"),
    *("scale_search_chunked_activations", "quantizer", "model_name_or_path", "model_file_base_name", "batch_size", "dataset"),
    *("block_name_to_quantize", "cache_block_outputs", "max_input_length", "model_seqlen", "pad_token_id", "tokenizer"),
    *("module_name_preceding_first_block", "modules_in_block_to_quantize", "modules_to_not_convert", "use_cuda_fp16"),
    *("*exllama*", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "autoround_version", "amp", "enable_*", "seqlen"),
    *("gradient_accumulate_steps", "iters", "lr", "minmax_lr", "low_gpu_mem_usage", "nsamples", "scale_dtype", "train_bs"),
    *("quant_block_list", "to_quant_block_names", "quant_lm_head", "supported_types", "not_use_best_mse", "use_quant_input"),
    # Of activations and of cached keys and values, which are not rounded here
    *("act_*", "static_kv_*", "static_attention_*"),
)


# GPTQ


def _gptq(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode a weight with zero points as they are, or minus one if the config says no version, or the first."""
    named = quantization.config.get("checkpoint_format") or quantization.config.get("format")
    return _words(parts, quantization, added=0 if named == "gptq_v2" else 1)


def _words(parts: WeightParts, quantization: Quantization, added: int) -> Tensor:
    """Decode qweight [K · bits / 32, N], qzeros [G, N · bits / 32], scales [G, N] and g_idx [K]. added: to zero points."""
    scales = parts[".scales"]
    bits = _bits(parts[".qzeros"], scales, quantization)
    zeros = (unpack_words(parts[".qzeros"], bits, 1) + added) & ((1 << bits) - 1)
    numbers = unpack_words(parts[".qweight"], bits, 0).T
    groups = parts.get(".g_idx")
    return scaled(numbers, scales.T, zeros[:, : scales.shape[1]].T, blocks=_groups(quantization), groups=groups)


def _bits(zeros: Tensor, scales: Tensor, quantization: Quantization) -> int:
    """Return the bits of a weight by the words of its zero points: a layer may have other bits than the config's own."""
    fitting = [bits for bits in range(2, 9) if zeros.shape[1] == -(-scales.shape[1] * bits // 32)]
    own = quantization.number("bits", 4)
    bits = own if own in fitting else fitting[0] if len(fitting) == 1 else None
    if bits is None:
        raise ValueError(f"zero points in {zeros.shape[1]} words for {scales.shape[1]} rows")
    if bits not in BITS:
        raise _unknown_bits(quantization, bits)
    return bits


def _groups(quantization: Quantization) -> list[Block]:
    """Return the sizes of groups of columns that the config names: its own, and those of single layers."""
    config = quantization.config
    layers = [each for name in ("dynamic", "extra_config") for each in _objects(config.get(name))]
    sizes = [each.get(name) for each in (config, *layers) for name in ("group_size", "q_group_size")]
    return [(1, size) for size in sizes if type(size) is int and (size > 0 or size == -1)] or [(1, 128)]


def _objects(layers: object) -> list[dict[str, object]]:
    values = layers.values() if isinstance(layers, dict) else ()
    return [each for each in values if isinstance(each, dict)]


def _check_gptq(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for bits of which a number may cross the border of two words, and for other packings."""
    _check_bits(quantization)
    for name in ("checkpoint_format", "format"):
        quantization.check_values(name, "gptq", "gptq_v2")
    both = {quantization.config.get(name) for name in ("checkpoint_format", "format")} - {None}
    if len(both) > 1:
        raise quantization.refused("checkpoint_format and format", sorted(both), ": they disagree")


def _check_bits(quantization: Quantization) -> None:
    quantization.check_values("pack_dtype", "int32")
    if (bits := quantization.number("bits", 4)) not in BITS:
        raise _unknown_bits(quantization, bits)


def _unknown_bits(quantization: Quantization, bits: int) -> UnsupportedModelError:
    method = quantization.method.name
    return UnsupportedModelError(
        f"the weights are quantized by {method} in {bits} bits, of which hybridge reads 2, 4 and 8. {ORIGINAL}"
    )


# AWQ

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each of a word's eight columns, which are stored in the order 0, 2, 4, 6, 1, 3, 5, 7."""


def _awq(parts: WeightParts, quantization: Quantization) -> Tensor:
    """Decode qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]; g_idx [K] may say that groups are in order."""
    numbers, zeros = (_in_order(unpack_words(parts[name], 4, 1)) for name in (".qweight", ".qzeros"))
    groups = parts.get(".g_idx")
    if groups is not None and bool((groups.diff() < 0).any()):
        raise ValueError("groups of columns in another order than the columns")
    return scaled(numbers.T, parts[".scales"].T, zeros.T, blocks=_groups(quantization), groups=groups)


def _in_order(numbers: Tensor) -> Tensor:
    ordered: Tensor = numbers.unflatten(1, (-1, 8))[:, :, torch.tensor(AWQ_ORDER)].flatten(1)
    return ordered


def _check_awq(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for layouts of other kernels than GEMM's, and for other bits than 4."""
    quantization.check_values("pack_dtype", "int32")
    if quantization.config.get("backend") == "llm-awq":
        raise quantization.refused("backend", "llm-awq")
    bits = quantization.number("bits" if "bits" in quantization.config else "w_bit", 4)
    for name in ("version", "format", "checkpoint_format"):
        version = str(quantization.config.get(name) or "gemm").lower()
        if version != "gemm" or bits != 4:
            raise UnsupportedModelError(
                f"the weights are quantized by AWQ in its layout {version!r} with {bits} bits, of which hybridge reads 'gemm' "
                f"with 4 bits. {ORIGINAL}"
            )


# AutoRound: its own packing, GPTQ's or AWQ's, for one of several kernels

PACKING = re.compile(
    r"(auto_round|auto)(:(?P<as>auto_gptq|gptq|gptqmodel|auto_awq|awq))?"
    r"(:(exllamav2|exllama|tritonv2|triton|torch|cuda|marlin|gemm))?"
)
"""A ``packing_format``. Without a library's name, or with GPTQModel's, zero points are stored as they are; ``auto`` is GPTQ."""


def _packing(quantization: Quantization) -> str:
    """Return whose packing AutoRound used: ``gptq``, ``awq``, or ``gptqmodel`` for its own. Raises UnsupportedModelError."""
    named = quantization.config.get("packing_format") or "auto"
    found = PACKING.fullmatch(named) if isinstance(named, str) else None
    if found is None:
        raise quantization.refused("packing_format", named)
    library = found["as"] or ("gptq" if named == "auto" else "gptqmodel")
    return library.removeprefix("auto_")


def _auto_round(parts: WeightParts, quantization: Quantization) -> Tensor:
    packing = _packing(quantization)
    return _awq(parts, quantization) if packing == "awq" else _words(parts, quantization, added=int(packing == "gptq"))


def _check_auto_round(quantization: Quantization) -> None:
    """Raise UnsupportedModelError for packings, kinds of numbers and bits that hybridge does not read."""
    quantization.check_values("data_type", "int", "int_sym", "int_asym")
    if _packing(quantization) == "awq":
        _check_awq(quantization)
    else:
        _check_bits(quantization)


def _integers(
    name: str, decode: Callable[[WeightParts, Quantization], Tensor], check: Callable[[Quantization], None]
) -> QuantizationMethod:
    encoding = WeightEncoding(
        marker=".qweight", parts=(".qzeros", ".scales", ".g_idx"), weight=".weight", decode=decode, check=check
    )
    return QuantizationMethod(
        name=name, encodings=(encoding,), fields=FIELDS, bits=lambda quantization: quantization.number("bits", 4)
    )


GPTQ = _integers("GPTQ", _gptq, _check_gptq)
AWQ = _integers("AWQ", _awq, _check_awq)
AUTO_ROUND = _integers("AutoRound", _auto_round, _check_auto_round)
