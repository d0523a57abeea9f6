"""Entries of config.json that most architectures' metadata give under the same names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.cache.families.family import MOST_LAYERS
from hybridge.export.source.gguf.file import GgufFile
from hybridge.export.source.gguf.weights import Weight

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The tokens that end a text, a turn and a message."""

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every Llama 3 has; a file has only the angles that come of it."""


def common(file: GgufFile, model_type: str) -> dict[str, Any]:
    """Return what every model has."""
    ends = [file.metadata[name] for end in ENDS if (name := f"tokenizer.ggml.{end}") in file.metadata]
    return {
        "model_type": model_type,
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        "hidden_size": file["embedding_length"],
        "num_hidden_layers": layers(file),
        "max_position_embeddings": file["context_length"],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(ends)) or None,
        "pad_token_id": None,
    }


def layers(file: GgufFile) -> int:
    """Return the number of decoder layers, without those that draft further tokens. Raises CheckpointError for absurd ones."""
    count = int(file["block_count"] - (file.get("nextn_predict_layers") or 0))
    if not 1 <= count <= int(file["block_count"]) <= MOST_LAYERS:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (it says {count:,} of {file['block_count']:,} layers, expected 1 to "
            f"{MOST_LAYERS}); download it again."
        )
    return count


def attention(file: GgufFile) -> dict[str, Any]:
    """Return heads, their size, and the epsilon of norms. Counts may be lists with an entry for each layer."""
    heads, kv_heads = most(file["attention.head_count"]), most(file["attention.head_count_kv"])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": file.get("attention.key_length") or file["embedding_length"] // max(heads, 1),
        "rms_norm_eps": file["attention.layer_norm_rms_epsilon"],
    }


def mlp(file: GgufFile) -> dict[str, Any]:
    """Return the width of dense layers, where there are any."""
    width = most(file.get("feed_forward_length") or 0)
    return {"intermediate_size": width} if width else {}


def experts(file: GgufFile) -> dict[str, Any]:
    """Return how many experts there are, how many a token chooses, and their width."""
    return {
        "num_experts": file["expert_count"],
        "num_experts_per_tok": file["expert_used_count"],
        "moe_intermediate_size": file["expert_feed_forward_length"],
    }


def rope(file: GgufFile, partial: bool = False) -> dict[str, Any]:
    """Return the angles' parameters. partial: only the first dimensions of a head turn. Raises UnsupportedModelError."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 10000.0)}
    if partial:
        parameters["partial_rotary_factor"] = file["rope.dimension_count"] / attention(file)["head_dim"]
    kind, factor = file.get("rope.scaling.type") or "none", file.get("rope.scaling.factor") or 1.0
    if "rope_freqs.weight" in file.tensors:
        parameters |= _llama3(file, parameters["rope_theta"])
    elif kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(f"{file.path} scales its angles by {kind!r}; hybridge reads linear and yarn.")
    elif kind == "linear" and factor != 1.0:
        parameters |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        parameters |= _yarn(file, factor)
    return {"rope_parameters": parameters}


def _yarn(file: GgufFile, factor: float) -> dict[str, Any]:
    names = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}
    original = file["rope.scaling.original_context_length"]
    given = {own: file.get(name) for name, own in names.items() if file.get(name) is not None}
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **given}


def _llama3(file: GgufFile, theta: float) -> dict[str, Any]:
    """Find the parameters that give the file's factors by which angles are slowed down."""
    stored = file.tensors["rope_freqs.weight"].read()
    factor = float(stored.max())
    scaling = {"rope_type": "llama3", "factor": factor, **LLAMA3}
    if not torch.allclose(_slowed_down(len(stored), theta, factor), stored, rtol=1e-4):
        raise UnsupportedModelError(f"{file.path} has angles (rope_freqs.weight) that are not scaled as Llama 3's are.")
    return scaling


def _slowed_down(count: int, theta: float, factor: float) -> Tensor:
    """Return by how much each angle is slower. Source: transformers 5.23 ``_compute_llama3_parameters``."""
    low, high, original = LLAMA3.values()
    turns = original / (2 * math.pi * theta ** (torch.arange(count) / count))
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - share) / factor + share)


def by_period(file: GgufFile, period: int) -> list[str]:
    """Return layer types: linear attention, and every ``period``-th layer full attention."""
    return [LINEAR if (i + 1) % period else FULL for i in range(layers(file))]


def of_layers(value: Any, file: GgufFile) -> list[Any]:
    """Return a list with an entry for each layer of a count that may be one for all."""
    return list(value)[: layers(file)] if isinstance(value, list) else [value] * layers(file)


def most(count: Any) -> int:
    """Return a count that may be a list with an entry for each layer."""
    return int(max(count)) if isinstance(count, list) else int(count)


def has(file: GgufFile, end: str) -> bool:
    """Whether any layer has a tensor whose name ends so."""
    return any(name.startswith("blk.") and name.endswith(end) for name in file.tensors)


# What a GGUF architecture is in transformers.


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """config: a file to the entries of its config.json; layer: the weights of a decoder layer; model: the others.

    prefix: what the names of a layer's weights begin with, before its number.
    """

    config: Callable[[GgufFile], dict[str, Any]]
    layer: tuple[Weight, ...]
    model: tuple[Weight, ...]
    prefix: str = "model.layers"
