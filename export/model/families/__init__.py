"""The adaptation of each model family: one entry a model type."""

from __future__ import annotations

from collections.abc import Mapping

from hybridge.export.model.families import attention, convolution, delta_rule, state_space
from hybridge.export.model.families.family import Adaptation

ADAPTATIONS: Mapping[str, Adaptation] = {
    **attention.FAMILIES,
    **convolution.FAMILIES,
    **delta_rule.FAMILIES,
    **state_space.FAMILIES,
}
"""For each ``model_type`` of a text config, what its model needs."""
