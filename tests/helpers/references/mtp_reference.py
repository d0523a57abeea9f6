"""transformers' own ``MtpModel`` over random weights: what multi-token prediction has to propose."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from tiny import lively, tiny_model
from torch import Tensor, nn
from transformers.cache_utils import MtpCache
from transformers.masking_utils import LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, create_sliding_window_causal_mask
from transformers.modeling_layers import MtpModel

from hybridge.export.drafters.mtp import MtpWeights
from hybridge.export.drafters.mtp_families import mtp_config, mtp_family

WINDOWED = {
    "hybrid_sliding": {
        **LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING["hybrid_sliding"],
        "sliding_attention": create_sliding_window_causal_mask,
    }
}
"""transformers 5.23 makes such a layer's mask without its window, which the model's own forward and the cache have."""
TRANSFORMERS_NAMES = ((".block.", ".mtp_block."), (".norm.", ".post_norm."), ("chain_norm.", "shared_post_norm."))


def random_mtp(model: Any, seed: int = 1) -> MtpWeights:
    """Random weights of all layers of multi-token prediction that the model's config says."""
    config = mtp_config(model.config)
    config._attn_implementation = "eager"
    weights = MtpWeights(config, model.get_decoder(), config.num_hidden_layers).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in (*weights.named_parameters(), *weights.named_buffers()):
        if "rotary" not in name:
            weight.copy_((0.3 * torch.randn(weight.shape, generator=generator)) + ("norm.weight" in name))
    return weights


def published(model: Any, weights: MtpWeights) -> dict[str, Tensor]:
    """The weights by the names of a checkpoint, before anything of it is stacked or taken apart."""
    family = mtp_family(model.config)
    names = {name: family.outside(family.stored(name), model.config) for name in weights.state_dict()}
    return by_turns({names[name]: each.clone() for name, each in weights.state_dict().items()})


def by_turns(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """With gate and up projections as Inkling's checkpoints have them: their rows by turns."""
    for name in [name for name in weights if name.startswith("model.mtp.") and name.endswith(".mlp.gate_proj.weight")]:
        gate, up = weights.pop(name), weights.pop(name.replace("gate_proj", "up_proj"))
        weights[name.replace("gate_proj", "w13_dn")] = torch.stack([gate, up], dim=1).flatten(0, 1)
    return weights


def save_mtp(folder: Path, config: Any, seed: int = 0) -> MtpReference:
    """Write a lively model of ``config`` with layers of multi-token prediction; what they propose."""
    model = lively(tiny_model(config, seed=seed), seed)
    model.save_pretrained(folder)
    weights = random_mtp(model)
    safetensors.torch.save_file(published(model, weights), folder / "mtp.safetensors")
    return MtpReference(model, weights)


def has_plain_norms(layer: nn.Module) -> bool:
    """Return whether no norm of a layer takes a gate."""
    return not any("Gated" in type(part).__name__ for part in layer.modules())


class MtpReference:
    """Everything from the start, each time. allowed: the tokens of a draft vocabulary, None for all."""

    allowed: Tensor | None = None

    def __init__(self, model: Any, weights: MtpWeights) -> None:
        self.model, own = copy.deepcopy(model), copy.deepcopy(model)
        for name, value in mtp_family(model.config).fields(len(weights.layers)).items():
            setattr(own.config, name, value)
        # It takes the norms' class from the first norm of the last layer, where a recurrence would have another one.
        decoder = own.get_decoder()
        decoder.layers = nn.ModuleList(sorted(decoder.layers, key=has_plain_norms))
        own.config._attn_implementation = "eager"
        self.drafter = MtpModel(own, len(weights.layers)).eval()
        state = weights.state_dict()
        for ours, theirs in TRANSFORMERS_NAMES:
            state = {name.replace(ours, theirs): each for name, each in state.items()}
        shared = self.drafter.state_dict()
        assert all(name.startswith(("embed_tokens.", "shared_head.")) for name in shared.keys() - state.keys())
        self.drafter.load_state_dict({**shared, **state})

    def chain(self, tokens: list[int], length: int) -> list[int]:
        """Guesses after ``tokens``, whose last one is known and not committed; the last layer goes on with its own output."""
        guesses, _ = self.guess(tokens, length)
        assert self.allowed is not None or guesses[: len(self.drafter.layers)] == self._own(tokens)[:length]
        return guesses

    @mock.patch.dict(LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, WINDOWED)
    @torch.no_grad()
    def guess(self, tokens: list[int], length: int, drawn: Sequence[int] | None = None) -> tuple[list[int], Tensor]:
        """The same guesses, or ``drawn`` in their place, and the logits [length, V] that each is chosen by."""
        hidden = self.model.get_decoder()(torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state
        ids, positions = torch.tensor([tokens[1:]]), torch.arange(1, len(tokens))[None]
        cache, layers = MtpCache(config=self.drafter.config), len(self.drafter.layers)
        guesses, scores = list[int](), list[Tensor]()
        for i in range(length):
            layer = min(i, layers - 1)
            hidden = self.drafter.forward_layer(layer, hidden, positions, cache, input_ids=ids)
            logits = self.drafter._project_to_logits(hidden[:, -1])[0]
            best = logits.argmax() if self.allowed is None else self.allowed[logits[self.allowed].argmax()]
            guesses.append(int(best) if drawn is None else drawn[i])
            scores.append(logits)
            ids = torch.cat([ids[:, 1:], torch.tensor([guesses[-1:]])], dim=1)
            positions = positions + 1
            if i >= layers - 1:
                hidden, ids, positions = hidden[:, -1:], ids[:, -1:], positions[:, -1:]
        return guesses, torch.stack(scores)

    @mock.patch.dict(LAYER_PATTERN_TO_MASK_FUNCTION_MAPPING, WINDOWED)
    @torch.no_grad()
    def _own(self, tokens: list[int]) -> list[int]:
        """Return what ``MtpModel`` itself makes of it: one guess a layer."""
        hidden = self.model.get_decoder()(torch.tensor([tokens[:-1]]), use_cache=False).last_hidden_state
        ids, positions = torch.tensor([tokens[1:]]), torch.arange(1, len(tokens))[None]
        found: list[int] = self.drafter(ids, hidden, None, positions, MtpCache(config=self.drafter.config))[0][0].tolist()
        return found
