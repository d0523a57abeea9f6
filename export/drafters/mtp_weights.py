"""Multi-token prediction's weights: the ``mtp.*`` tensors of Qwen3.5-type checkpoints, which transformers ignores."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from hybridge.cache.errors import CheckpointError, UnsupportedModelError, UsageError
from hybridge.export.checkpoint.decoder import decoder_of
from hybridge.export.checkpoint.loading import Checkpoint
from hybridge.export.drafters.tensors import fill, read_tensors
from hybridge.runtime.artifacts.options import ExportOptions

FAMILIES = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")


PREFIX = "mtp."


EXPERT = r"(?P<prefix>layers\.0\.mlp\.experts\.)(?P<expert>\d{1,4})\.(gate|up|down)_proj\.weight"
"""What checkpoints call the weights of one expert."""


class MtpWeights(nn.Module):
    """The modules of the ``mtp.*`` weights, named as these are; norms and layer are the model's own classes."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        config = decoder.config
        attends = config.layer_types.index("full_attention")
        norm, layer = type(decoder.norm), type(decoder.layers[attends])
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            norm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(3)
        )
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([layer(config, attends)])


def load_mtp(checkpoint: Checkpoint) -> MtpWeights:
    """Read the ``mtp.*`` weights beside a loaded checkpoint, in float32.

    Raises UnsupportedModelError for a family or a number of layers that there is no drafter for, CheckpointError where weights
    are missing, misshapen or not finite.
    """
    check_family(checkpoint.config)
    weights = fused_experts(read_tensors(checkpoint.folder, _own_name))
    if not weights:
        raise CheckpointError(f"{checkpoint.folder} has no {PREFIX}* weights to make a drafter of; export it without --mtp.")
    if deeper := [name for name in weights if name.startswith("layers.") and not name.startswith("layers.0.")]:
        raise UnsupportedModelError(f"{PREFIX}{deeper[0]}: drafters of several layers are not supported; export without --mtp.")
    with torch.device("meta"):
        drafter = MtpWeights(decoder_of(checkpoint.model))
    fill(drafter, weights, checkpoint.folder, prefix=PREFIX, advice="its drafter cannot be exported, leave out --mtp.")
    return drafter


def _own_name(name: str) -> str | None:
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def check_family(config: Any) -> None:
    """Raises UnsupportedModelError where hybridge knows no drafter of ``config``'s family."""
    if config.model_type not in FAMILIES or "full_attention" not in config.layer_types:
        raise UnsupportedModelError(
            f"{config.model_type!r} models have no multi-token-prediction drafter that hybridge knows "
            f"(it knows those of {', '.join(FAMILIES)}); export without --mtp."
        )


def fused_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the experts' own stacked as transformers has them: gate beside up [E, 2 I, H], down [E, H, I].

    Those that do not belong together stay as they are.
    """
    found = [match for name in weights if (match := re.fullmatch(EXPERT, name))]
    count = 1 + max((int(match["expert"]) for match in found), default=-1)
    for prefix in sorted({match["prefix"] for match in found}):
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


def check_mtp(config: Any, options: ExportOptions) -> None:
    """Raises what ``check_family`` does, and UsageError for options that no drafter can have."""
    check_family(config)
    # Refused draft tokens go behind the last position, where there are rows for one block.
    most = max(options.prefill_chunk, options.verify_len)
    if not 1 <= options.draft_len <= most:
        raise UsageError(f"draft_len is {options.draft_len}, but must lie between 1 and {most} (the longest block of tokens).")
    if -1 not in options.tap_layers:
        raise UsageError(
            f"the mtp drafter reads the last hidden states, but tap_layers are {list(options.tap_layers)}: add -1 to them."
        )
