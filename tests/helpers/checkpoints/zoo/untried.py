"""Families of attention alone that are in no table of hybridge's; the sizes of one or two configs each."""

from typing import Any

from zoo.sizes import SIZES, Sizes

COMMON: Sizes = {**SIZES, "num_key_value_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, **ENDS}

UNTRIED: dict[str, tuple[Sizes, ...]] = {
    "gemma": (COMMON,), "glm4": ({**COMMON, **ENDS},),
    "granite": ({**COMMON, "attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5},),
    "granitemoe": ({**COMMON, **EXPERTS, "attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5},),
    "granitemoeshared": (
        {
            **COMMON, **EXPERTS, "attention_multiplier": 0.3, "logits_scaling": 2.0, "residual_multiplier": 0.5,
            "shared_intermediate_size": 40,
        },
    ),
    "helium": ({**COMMON, "head_dim": 12, **ENDS},), "minimax_m2": ({**COMMON, **EXPERTS},),
    "ministral3": ({**COMMON, **ENDS},), "mixtral": ({**COMMON, **EXPERTS}, {**COMMON, **EXPERTS, "sliding_window": 7}),
    "olmo2": ({**COMMON, **ENDS},), "phi": ({**COMMON, **ENDS},), "seed_oss": ({**COMMON, **ENDS},),
    "stablelm": ({**COMMON, "partial_rotary_factor": 0.5, "head_dim": 12},),
    "starcoder2": ({**COMMON, "sliding_window": 9, **ENDS},),
}  # fmt: skip
