"""The adaptation of each model family: one entry a model type."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.export.adaptation.families import (
    attention,
    gated_delta,
    glm5_next,
    inkling,
    kimi_delta,
    lightning,
    llama4,
    mamba,
    mamba2,
    qwen4_exp,
    recurrent_gemma,
    short_conv,
    zaya,
)
from hybridge.export.adaptation.families.family import Adaptation

ADAPTATIONS: Mapping[str, Adaptation] = {
    **attention.FAMILIES,
    **gated_delta.FAMILIES,
    **glm5_next.FAMILIES,
    **inkling.FAMILIES,
    **kimi_delta.FAMILIES,
    **lightning.FAMILIES,
    **llama4.FAMILIES,
    **mamba.FAMILIES,
    **mamba2.FAMILIES,
    **qwen4_exp.FAMILIES,
    **recurrent_gemma.FAMILIES,
    **short_conv.FAMILIES,
    **zaya.FAMILIES,
}
"""For each ``model_type`` of a text config, what its model needs."""
