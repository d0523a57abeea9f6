"""The types that llama.cpp gives to the tensors of a file by the names of its mixes, such as Q4_K_M.

Source: llama.cpp ``src/llama-quant.cpp``, ``llama_tensor_get_type`` and ``tensor_allows_quantization``, without an importance
matrix.
"""

from __future__ import annotations

from collections.abc import Mapping

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

Shapes = Mapping[str, tuple[int, ...]]

USUAL: Mapping[str, Type] = {
    "Q4_0": Type.Q4_0, "Q4_1": Type.Q4_1, "Q5_0": Type.Q5_0, "Q8_0": Type.Q8_0, "Q4_K_S": Type.Q4_K, "Q4_K_M": Type.Q4_K,
    "Q5_K_S": Type.Q5_K, "Q5_K_M": Type.Q5_K, "Q6_K": Type.Q6_K, "F16": Type.F16, "BF16": Type.BF16,
}  # fmt: skip
"""The type of most tensors in a mix."""
SMALLER: Mapping[Type, Type] = {Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}
"""The type for rows that are no whole number of superblocks."""
STAY = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight",
    "token_types", "position_embd", "rope_",
)  # fmt: skip
"""Parts of the names of tensors that are floats in every mix."""


def types_of(mix: str, tensors: Shapes) -> dict[str, Type]:
    """Return the type of each tensor of a model, by its name in the file."""
    usual, counts = USUAL[mix], {"attn_v": 0, "ffn_down": 0}
    layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    values = sum(any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")) for name in tensors)
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    found = {}
    for name in sorted(tensors, key=_place):
        shape = tensors[name]
        if len(shape) < 2 or not name.endswith(".weight") or any(part in name for part in STAY):
            found[name] = Type.F32
        elif usual in (Type.F16, Type.BF16):
            found[name] = usual
        else:
            chosen = _chosen(mix, usual, name, is_head=name == head, counts=counts, layers=layers, values=values)
            found[name] = _fitting(chosen, shape[-1], is_head=name == head)
    return found


def _place(name: str) -> tuple[int, str]:
    """Return the place of a tensor in llama.cpp's order, which is by layers."""
    return (int(name.split(".")[1]), name) if name.startswith("blk.") else (-1, name)


def _chosen(mix: str, usual: Type, name: str, *, is_head: bool, counts: dict[str, int], layers: int, values: int) -> Type:
    if is_head:
        return usual if usual == Type.Q8_0 else Type.Q6_K
    large, small = mix.endswith("_K_M"), mix.endswith("_K_S")
    more = {"Q4_K_M": Type.Q6_K, "Q5_K_M": Type.Q6_K, "Q4_K_S": Type.Q5_K}.get(mix, usual)
    if "attn_v.weight" in name:
        i = counts["attn_v"]
        counts["attn_v"] += 1
        return more if (large and _needs_more(i, values)) or (small and i < 4) else usual
    if "ffn_down" in name:
        i = int(name.split(".")[1]) if "_exps" in name else counts["ffn_down"]
        counts["ffn_down"] += 1
        return more if (large and _needs_more(i, layers)) or (small and i < layers // 8) else usual
    if "attn_qkv.weight" in name and large:
        return Type.Q5_K if usual == Type.Q4_K else Type.Q6_K
    return usual


def _needs_more(i: int, count: int) -> bool:
    """Return whether a layer gets more bits: the first and last eighth, and every third between."""
    return i < count // 8 or i >= 7 * count // 8 or (i - count // 8) % 3 == 2


def _fitting(kind: Type, columns: int, *, is_head: bool) -> Type:
    if columns % GGML_QUANT_SIZES[kind][0]:
        kind = Type.Q8_0 if is_head else SMALLER.get(kind, kind)
    return Type.F16 if columns % GGML_QUANT_SIZES[kind][0] else kind
