"""Checkpoints small enough to make by the dozen, with sizes that are no multiple of anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SIZES = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 72,
    "max_position_embeddings": 512,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 3,
}
FAMILY_SIZES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_next": {**LINEAR, "num_experts": 0},
    "qwen3_5_text": {**LINEAR, "full_attention_interval": 2},
}


def tiny_config(model_type: str, layers: int = 5, **overrides: Any) -> PreTrainedConfig:
    """A config of a supported family; overrides are transformers' own names."""
    return AutoConfig.for_model(model_type, **{**SIZES, **FAMILY_SIZES[model_type], "num_hidden_layers": layers, **overrides})


def tiny_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """A model with random weights, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype).eval()


def save_checkpoint(
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    max_shard_size: str | None = None,
) -> PreTrainedModel:
    """Write a random model of ``config`` to ``folder`` as config.json and safetensors; returns what was saved."""
    model = tiny_model(config, dtype, seed)
    model.save_pretrained(folder, **({"max_shard_size": max_shard_size} if max_shard_size else {}))
    return model


def save_tokenizer(folder: Path) -> None:
    """A token for each ASCII character, and three more: the vocabulary of ``SIZES``."""
    tokens = [*map(chr, range(128)), "<unknown>", "<begin>", "<end>"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[], unk_token="<unknown>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
