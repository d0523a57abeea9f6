"""Experts that a checkpoint stores one by one, stacked as transformers' modules have them."""

from __future__ import annotations

import re

import torch
from torch import Tensor

EXPERT = re.compile(r"(?P<prefix>.*\.mlp\.experts\.)(?P<expert>\d{1,4})\.(gate|up|down)_proj\.weight")
"""What checkpoints call the weights of one expert."""


def fused_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the experts' own stacked as transformers has them: gate beside up [E, 2 I, H], down [E, H, I].

    Those that do not belong together stay as they are.
    """
    found = [match for name in weights if (match := EXPERT.fullmatch(name))]
    for prefix in sorted({match["prefix"] for match in found}):
        count = 1 + max(int(match["expert"]) for match in found if match["prefix"] == prefix)
        names = {part: [f"{prefix}{e}.{part}_proj.weight" for e in range(count)] for part in ("gate", "up", "down")}
        own = {part: [weights.get(name) for name in each] for part, each in names.items()}
        gate, up, down = (_stacked(each) for each in own.values())
        if gate is not None and up is not None and down is not None and gate.shape == up.shape:
            weights = {name: each for name, each in weights.items() if not name.startswith(prefix)}
            weights |= {f"{prefix}gate_up_proj": torch.cat([gate, up], dim=1), f"{prefix}down_proj": down}
    return weights


def _stacked(weights: list[Tensor | None]) -> Tensor | None:
    """[E, ...] of weights that are all there and alike, else None."""
    there = [each for each in weights if each is not None]
    alike = len(there) == len(weights) and len({each.shape for each in there}) == 1
    return torch.stack(there) if alike else None
