"""The families whose checkpoints have layers of multi-token prediction: one entry a model type.

An entry has the stored names of these layers, and the fields that transformers needs to make a config of them.
Sources: transformers 5.23 ``MtpModel`` and ``conversion_mapping``; vLLM ``qwen3_5_mtp.py``, ``bailing_moe_v3_mtp.py``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.drafters.folder import MOST_LAYERS

Weights = dict[str, Tensor]
LAYER = re.compile(r"layers\.(\d{1,4})\.")


@dataclass(frozen=True, kw_only=True)
class MtpFamily:
    """The stored names of the layers' weights: ``prefix``, then ours (``MtpWeights``) with the parts of ``names`` replaced.

    Args:
        after_model: layers are numbered after the model's own.
        count: of layers, None for the config's ``num_mtp_layers``.
        fields: fields that the config lacks for ``get_mtp_config``, by the number of layers.
        restored: turns weights, by their names without the prefix, into those of transformers' modules.
        ignored: ends of names of copies of the target's weights.
        continues: the last layer can continue with its own output.
    """

    prefix: str
    names: tuple[tuple[str, str], ...]
    after_model: bool = False
    count: int | None = None
    fields: Callable[[int], Mapping[str, Any]] = lambda count: {}
    restored: Callable[[Weights], Weights] = dict
    ignored: tuple[str, ...] = ()
    continues: bool = True

    def layers(self, config: Any) -> int:
        """Return the number of layers that the checkpoint should have."""
        return self.count or getattr(config, "num_mtp_layers", None) or 0

    def stored(self, name: str) -> str:
        """Return a checkpoint's name of our weight ``name``, without its prefix."""
        for own, theirs in self.names:
            name = name.replace(own, theirs, 1)
        return name

    def inside(self, name: str, config: Any) -> str | None:
        """Return a checkpoint's name without the prefix and with layers numbered from 0; None for other weights."""
        rest, first = name.removeprefix(self.prefix), config.num_hidden_layers if self.after_model else 0
        layer = LAYER.match(rest)
        foreign = not name.startswith(self.prefix) or (self.after_model and (layer is None or int(layer[1]) < first))
        if foreign or name.endswith(self.ignored):
            return None
        return f"layers.{int(layer[1]) - first}.{rest[layer.end() :]}" if layer else rest

    def outside(self, name: str, config: Any) -> str:
        """Return the checkpoint's own name of ``name``, a result of ``inside``."""
        first = config.num_hidden_layers if self.after_model else 0
        return self.prefix + LAYER.sub(lambda layer: f"layers.{int(layer[1]) + first}.", name, count=1)


EXPERT = re.compile(r"(?P<prefix>.*\.mlp\.experts\.)(?P<expert>\d{1,4})\.(gate|up|down)_proj\.weight")
"""The name of a weight of one expert."""


def fused_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with the experts' own stacked as transformers has them: gate beside up [E, 2 I, H], down [E, H, I].

    Incomplete stacks stay as they are.
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
    """Return the weights as [E, ...], or None if some are missing or of other shapes."""
    there = [each for each in weights if each is not None]
    alike = len(there) == len(weights) and len({each.shape for each in there}) == 1
    return torch.stack(there) if alike else None


def split_gates(weights: Weights) -> Weights:
    """Return the weights with gate and up projections split: Inkling interleaves their rows."""
    found: Weights = {}
    for name, each in weights.items():
        if name.endswith(".mlp.w13_dn.weight"):
            parts = {f"{name.removesuffix('w13_dn.weight')}{part}_proj.weight": i for i, part in enumerate(("gate", "up"))}
            found |= {part: each[i::2].contiguous() for part, i in parts.items()}
        else:
            found[name] = each
    return found


QWEN = MtpFamily(
    prefix="mtp.",
    names=(
        ("layers.0.eh_proj.", "fc."),
        ("layers.0.enorm.", "pre_fc_norm_embedding."),
        ("layers.0.hnorm.", "pre_fc_norm_hidden."),
        ("layers.0.norm.", "norm."),
        (".block.", "."),
    ),
    count=1,
    fields=lambda count: {"num_mtp_layers": count, "mtp_layer_types": ["full_attention"] * count},
    restored=fused_experts,
)
BAILING = MtpFamily(
    prefix="model.",
    names=(
        (".block.", "."),
        (".norm.", ".final_layernorm."),
        (".self_attn.o_proj.", ".self_attn.dense."),
        (".self_attn.", ".attention."),
        (".e_score_correction_bias", ".expert_bias"),
    ),
    after_model=True,
    fields=lambda count: {"mtp_layer_types": ["full_attention"] * count, "mtp_mlp_layer_types": ["sparse"] * count},
    restored=fused_experts,
    ignored=(".embed_tokens.weight", ".word_embeddings.weight", ".shared_head.head.weight"),
)
INKLING = MtpFamily(
    prefix="model.mtp.",
    names=(
        (".eh_proj.", ".input_proj."),
        (".enorm.", ".embed_norm."),
        (".hnorm.", ".hidden_norm."),
        (".block.", ".transformer_block."),
        (".input_layernorm.", ".attn_norm."),
        (".post_attention_layernorm.", ".mlp_norm."),
        (".self_attn.q_proj.", ".attn.wq_du."),
        (".self_attn.k_proj.", ".attn.wk_dv."),
        (".self_attn.v_proj.", ".attn.wv_dv."),
        (".self_attn.r_proj.", ".attn.wr_du."),
        (".self_attn.o_proj.", ".attn.wo_ud."),
        (".self_attn.", ".attn."),
        ("_sconv.conv1d.", "_sconv."),
        (".mlp.down_proj.", ".mlp.w2_md."),
    ),
    restored=split_gates,
    continues=False,
)
FAMILIES: Mapping[str, MtpFamily] = {
    "bailing_hybrid": BAILING,
    "inkling_text": INKLING,
    "qwen3_5_moe_text": QWEN,
    "qwen3_5_text": QWEN,
    "qwen3_next": QWEN,
}
"""By the ``model_type`` of a text config."""


def mtp_family(config: Any) -> MtpFamily:
    """Return the entry of ``config``'s family.

    Raises UnsupportedModelError for a family without an entry, CheckpointError if the config says no layers.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"{config.model_type!r} models have no multi-token-prediction drafter that hybridge knows "
            f"(it knows those of {', '.join(FAMILIES)}); export without --mtp."
        )
    if not 1 <= family.layers(config) <= MOST_LAYERS:
        raise CheckpointError(
            f"config.json says {family.layers(config)} layers of multi-token prediction, expected 1 to {MOST_LAYERS}; "
            "export without --mtp."
        )
    return family


def mtp_config(config: Any) -> Any:
    """Return the config of the layers of multi-token prediction alone. Raises what ``mtp_family`` does."""
    family, own = mtp_family(config), copy.deepcopy(config)
    for name, value in family.fields(family.layers(config)).items():
        setattr(own, name, value)
    return own.get_mtp_config()
