"""Checkpoints that are larger than memory: random weights in bfloat16, written shard by shard and never in memory together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from campaigns.bench.shapes import Shape
from hybridge.export.pinned.transformers import build_empty

DEVIATION = 0.02
"""Of the random numbers: what most models are initialized with."""


def write_large_checkpoint(shape: Shape, folder: Path, shard_bytes: int = 2 * 10**9, seed: int = 0) -> None:
    """Write ``shape`` to ``folder`` as config.json, shards of at most ``shard_bytes`` and their index, unless it is there."""
    if (folder / "model.safetensors.index.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(shape.model_type, **shape.config, dtype="bfloat16")
    model = build_empty(config)
    config.architectures = [type(model).__name__]
    weights = {name: weight for name, weight in model.state_dict().items() if name not in model.all_tied_weights_keys}
    shards = list(_shards(weights, shard_bytes))
    places: dict[str, str] = {}
    generator = torch.Generator().manual_seed(seed)
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: _random(weights[name], generator) for name in names}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    config.save_pretrained(folder)
    index = {"metadata": {"total_size": sum(2 * weight.numel() for weight in weights.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _shards(weights: dict[str, Tensor], limit: int) -> Iterable[list[str]]:
    """The names of weights that go into a shard together, in their order."""
    shard: list[str] = []
    size = 0
    for name, weight in weights.items():
        if shard and size + 2 * weight.numel() > limit:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += 2 * weight.numel()
    yield shard


def _random(empty: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty(empty.shape, dtype=torch.bfloat16).normal_(0.0, DEVIATION, generator=generator)
