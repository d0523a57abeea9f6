"""Map GGUF's RWKV-7 to config.json and names of weights, those of ``export/source/rwkv7.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hybridge.export.source.gguf.architecture import Architecture, Config, Weight, common, flat, one, same
from hybridge.export.source.gguf.file import GgufFile


def _rwkv7(file: GgufFile) -> dict[str, Any]:
    """Return RWKV-7's config. The file has no attention, no positions and always a head of its own."""
    return common(file, "rwkv7") | {
        "head_dim": file["wkv.head_size"],
        "intermediate_size": file["feed_forward_length"],
        "norm_eps": file["attention.layer_norm_epsilon"],
        "decay_low_rank_dim": file["attention.decay_lora_rank"],
        "a_low_rank_dim": file["attention.iclr_lora_rank"],
        "v_low_rank_dim": file["attention.value_residual_mix_lora_rank"],
        "gate_low_rank_dim": file["attention.gate_lora_rank"],
    }


def _mix(index: int) -> Callable[[Config, Tensor], Tensor]:
    """Return a function that takes one of the mixes with the token before, [6, 1, 1, hidden]."""
    return lambda config, mixes: mixes[index].reshape(1, 1, -1)


def _low_rank(name: str, own: str) -> tuple[Weight, ...]:
    """Return the two matrices of a projection through few dims, and its bias, which gates lack."""
    return (
        *same({f"time_mix_{name}1": f"{own}.lora.0", f"time_mix_{name}2": f"{own}.lora.2"}),
        one(f"{own}.lora.2.bias", f"time_mix_{name}0.weight", flat),
    )


RWKV7 = (
    *same({"attn_norm": "attn_norm", "attn_norm_2": "ffn_norm", "time_mix_ln": "attn.g_norm"}),
    *(one(f"attn.x_{name}", "time_mix_lerp_fused.weight", _mix(i)) for i, name in enumerate("rwkvag")),
    *(each for name in "wavg" for each in _low_rank(name, f"attn.{name}_lora")),
    *same({"time_mix_receptance": "attn.r_proj", "time_mix_key": "attn.k_proj"}),
    *same({"time_mix_value": "attn.v_proj", "time_mix_output": "attn.o_proj"}),
    one("attn.k_k", "time_mix_k_k.weight", flat),
    one("attn.k_a", "time_mix_k_a.weight", flat),
    one("attn.r_k", "time_mix_r_k.weight", lambda config, tensor: tensor.reshape(-1, config["head_dim"])),
    one("ffn.x_k", "channel_mix_lerp_k.weight", flat),
    *same({"channel_mix_key": "ffn.key", "channel_mix_value": "ffn.value"}),
)
RWKV7_MODEL = same(
    {
        "token_embd": "model.embeddings",
        "token_embd_norm": "model.layers.0.pre_norm",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
)

TABLE = {"rwkv7": Architecture(config=_rwkv7, layer=RWKV7, model=RWKV7_MODEL)}
