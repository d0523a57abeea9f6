"""The models that are measured: the real configs of published checkpoints, with random weights from a seed.

Times depend on shapes, not on what the weights are; so nothing has to be downloaded. Each is written once as an ordinary
checkpoint (config.json, model.safetensors, float32), which every engine then reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from campaigns import ROOT
from campaigns.campaign import whole

EMBEDDED = ROOT / "export" / "embedded"
QWEN3_5: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
}
LFM2: dict[str, Any] = {
    "vocab_size": 65536,
    "hidden_size": 1024,
    "intermediate_size": 6656,  # adjusted to 4608 by the model
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "tie_word_embeddings": True,
}
LFM2_5_1_2B = LFM2 | {"hidden_size": 2048, "intermediate_size": 12288, "num_attention_heads": 32}
GRANITE: dict[str, Any] = {
    "vocab_size": 100352,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "shared_intermediate_size": 2048,
    "num_hidden_layers": 32,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "layer_types": ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
    "mamba_n_heads": 48,
    "mamba_d_head": 32,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.015625,
    "residual_multiplier": 0.246,
    "logits_scaling": 3.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
    "position_embedding_type": None,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Shape:
    """transformers' model type and config, and the checkpoint to take instead of random weights where there is one."""

    model_type: str
    config: dict[str, Any]
    checkpoint: Path | None = None


SHAPES = {
    "qwen3.5-0.8b": Shape("qwen3_5_text", QWEN3_5),
    "lfm2-350m": Shape("lfm2", LFM2),
    "granite-4-h-350m": Shape("granitemoehybrid", GRANITE),
    "embedded": Shape("qwen3_5_text", {}, EMBEDDED),
    "qwen3.5-8l": Shape("qwen3_5_text", QWEN3_5 | {"num_hidden_layers": 8, "vocab_size": 32768}),
    "lfm2.5-1.2b": Shape("lfm2", LFM2_5_1_2B),
}


def write_checkpoint(shape: Shape, folder: Path, seed: int = 0) -> None:
    """Write ``shape`` to ``folder`` in float32, unless it is there already; an interrupted one does not count."""
    if folder.exists():
        return
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    if shape.checkpoint:
        model = AutoModelForCausalLM.from_pretrained(shape.checkpoint, dtype=torch.float32)
    else:
        config = AutoConfig.for_model(shape.model_type, **shape.config)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with whole(folder) as unfinished:
        model.save_pretrained(unfinished)


@dataclass(frozen=True)
class Sizes:
    """The numbers that one decode has to read, by what they are.

    linear: weights of the layers' products; head: those of the output head, which may be the embedding itself; small: the
    rest but an embedding that is only looked up. recurrent: numbers of recurrent and convolution state; row: key and value
    numbers of one position in all layers.
    """

    linear: int
    head: int
    small: int
    recurrent: int
    row: int


def sizes_of(checkpoint: Path) -> Sizes:
    """Count the numbers of a checkpoint, and of its state with the cache that its own config asks for."""
    from safetensors import safe_open

    from hybridge.cache import HybridCache
    from hybridge.export.source.checkpoint import resolve_checkpoint

    counts: dict[str, tuple[int, ...]] = {}
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            counts |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tied = not any(name.startswith("lm_head") for name in counts)
    head = next(shape for name, shape in counts.items() if name.startswith("model.embed_tokens" if tied else "lm_head"))
    inner = {name: shape for name, shape in counts.items() if not name.startswith(("model.embed_tokens", "lm_head"))}
    cache = HybridCache.from_config(resolve_checkpoint(checkpoint).config, max_seq_len=1)
    buffers = dict(cache.named_buffers())
    row = sum(b.shape[-1] * b.shape[-2] for name, b in buffers.items() if name.endswith((".keys", ".values")))
    recurrent = sum(b.numel() for name, b in buffers.items() if name.endswith(("conv_state", "recurrent_state")))
    return Sizes(
        linear=sum(_product(shape) for shape in inner.values() if len(shape) == 2),
        head=_product(head),
        small=sum(_product(shape) for shape in inner.values() if len(shape) != 2),
        recurrent=recurrent,
        row=row,
    )


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def vocabulary(checkpoint: Path) -> int:
    """Tokens that the model knows."""
    return int(json.loads((checkpoint / "config.json").read_text())["vocab_size"])
