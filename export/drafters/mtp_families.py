"""The families whose checkpoints carry layers of multi-token prediction: one entry a model type.

An entry says what these layers are called in a checkpoint, and what transformers has to be told to make a config of them.
Sources: transformers 5.23 ``MtpModel`` and ``conversion_mapping``; vLLM ``qwen3_5_mtp.py``, ``bailing_moe_v3_mtp.py``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.export.drafters.checkpoint import MOST_LAYERS, fused_experts

Weights = dict[str, Tensor]
LAYER = re.compile(r"layers\.(\d{1,4})\.")


def unchanged(weights: Weights) -> Weights:
    """Return the weights as they are stored."""
    return weights


def of_config(config: Any) -> int:
    """Return how many layers ``config`` says."""
    return getattr(config, "num_mtp_layers", None) or 0


@dataclass(frozen=True, kw_only=True)
class MtpFamily:
    """What the layers' weights are called: ``prefix``, then our names (``MtpWeights``) with the parts of ``names`` replaced.

    behind: the layers are counted on behind the model's own. count: how many a config says. fields: what its config lacks for
    ``get_mtp_config``, by the number of layers. restored: the weights, by their names without the prefix, as transformers'
    modules have them. ignored: ends of names of what the target has too.
    """

    prefix: str
    names: tuple[tuple[str, str], ...]
    behind: bool = False
    count: Callable[[Any], int] = of_config
    fields: Callable[[int], Mapping[str, Any]] = lambda count: {}
    restored: Callable[[Weights], Weights] = unchanged
    ignored: tuple[str, ...] = ()

    def stored(self, name: str) -> str:
        """Return what a checkpoint calls our weight ``name``, without its prefix."""
        for own, theirs in self.names:
            name = name.replace(own, theirs, 1)
        return name

    def inside(self, name: str, config: Any) -> str | None:
        """Return a checkpoint's name without the prefix and with layers counted from 0; none for other weights."""
        rest, first = name.removeprefix(self.prefix), config.num_hidden_layers if self.behind else 0
        layer = LAYER.match(rest)
        foreign = not name.startswith(self.prefix) or (self.behind and (layer is None or int(layer[1]) < first))
        if foreign or name.endswith(self.ignored):
            return None
        return f"layers.{int(layer[1]) - first}.{rest[layer.end() :]}" if layer else rest

    def outside(self, name: str, config: Any) -> str:
        """Return a checkpoint's own name of what ``inside`` calls ``name``."""
        first = config.num_hidden_layers if self.behind else 0
        return self.prefix + LAYER.sub(lambda layer: f"layers.{int(layer[1]) + first}.", name, count=1)


def split_gates(weights: Weights) -> Weights:
    """Return the weights with gate and up projections apart: Inkling stores their rows by turns."""
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
    count=lambda config: 1,
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
    behind=True,
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

    Raises UnsupportedModelError where hybridge knows no such drafter of it, CheckpointError where the config says no layers.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"{config.model_type!r} models have no multi-token-prediction drafter that hybridge knows "
            f"(it knows those of {', '.join(FAMILIES)}); export without --mtp."
        )
    if not 1 <= family.count(config) <= MOST_LAYERS:
        raise CheckpointError(
            f"config.json says {family.count(config)} layers of multi-token prediction, expected 1 to {MOST_LAYERS}; "
            "export without --mtp."
        )
    return family


def mtp_config(config: Any) -> Any:
    """Return the config of the layers of multi-token prediction alone. Raises what ``mtp_family`` does."""
    family, own = mtp_family(config), copy.deepcopy(config)
    for name, value in family.fields(family.count(config)).items():
        setattr(own, name, value)
    return own.get_mtp_config()
