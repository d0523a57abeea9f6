"""Checkpoints small enough to make by the dozen."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from zoo import VARIANTS
from zoo.untried import UNTRIED

from hybridge.export.lower.rewrite import drop_idle_nodes, fold_constants
from hybridge.export.source.checkpoint import CheckpointSource, LoadedModel


def tiny_config(model_type: str, variant: int = 0, **overrides: Any) -> PreTrainedConfig:
    """A config of a supported family, one of those of ``zoo``; overrides are transformers' own names."""
    return AutoConfig.for_model(model_type, **{**{**VARIANTS, **UNTRIED}[model_type][variant], **overrides})


def tiny_model(config: PreTrainedConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """A model with random weights, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(dtype).eval()


def save_checkpoint(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype = torch.float32, seed: int = 0, max_shard_size: str | None = None
) -> PreTrainedModel:
    """Write a random model of ``config`` to ``folder`` as config.json and safetensors; returns what was saved."""
    model = tiny_model(config, dtype, seed)
    model.save_pretrained(folder, **({"max_shard_size": max_shard_size} if max_shard_size else {}))
    return model


def lively(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Larger weights than initialization gives, in place: else attention is uniform, gates alike and mistakes small."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
            elif not weight.any():
                weight.normal_(0.0, 0.1, generator=generator)
            elif "embed" not in name:
                weight.mul_(2)
    return model


def save_lively_checkpoint(folder: Path, config: PreTrainedConfig, seed: int = 0) -> None:
    """Write a ``lively`` random model of ``config`` to ``folder``."""
    lively(tiny_model(config, seed=seed), seed).save_pretrained(folder)


def count_nodes(method: nn.Module, example: tuple[torch.Tensor, ...]) -> int:
    """Operators of a method's exported graph that are left to lower: constants are folded, assertions dropped."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(method, example, strict=False)
    drop_idle_nodes(program)
    fold_constants(program)
    return sum(node.op == "call_function" and "assert" not in str(node.target) for node in program.graph.nodes)


def save_tokenizer(folder: Path) -> None:
    """A token for each ASCII character, and three more: the vocabulary of ``zoo.sizes``."""
    tokens = [*map(chr, range(128)), "<unknown>", "<begin>", "<end>"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[], unk_token="<unknown>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


def loaded_model(folder: Path, model: PreTrainedModel) -> LoadedModel:
    """Return ``model`` as if it had been loaded from ``folder``."""
    return LoadedModel(source=CheckpointSource(path=folder, folder=folder, config=model.config), model=model)


def traced(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Export a function of tensors, with these as examples."""

    class Calls(nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return function(*given)

    return torch.export.export(Calls(), inputs, strict=False)
