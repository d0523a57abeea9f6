"""transformers 5.23: parts of families' own files, which its documentation does not list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers.models.glm5_next import configuration_glm5_next, modeling_glm5_next
from transformers.models.qwen3 import configuration_qwen3, modeling_qwen3
from transformers.models.qwen4_exp import modeling_qwen4_exp

Glm5NextConfig = configuration_glm5_next.Glm5NextConfig
Glm5NextTextConfig = configuration_glm5_next.Glm5NextTextConfig
"""The config of the whole model, and the one of its text model in it."""

Glm5NextPreTrainedModel = modeling_glm5_next.Glm5NextPreTrainedModel
Glm5NextTextModel = modeling_glm5_next.Glm5NextTextModel
"""The text model without a head."""

rotate = modeling_qwen4_exp.apply_rotary_pos_emb
"""Turns queries and keys [B, T, H, D] together, or one of them alone, by cos and sin [B, T, R], with ``unsqueeze_dim=2``."""


def rope_frequencies(sizes: Mapping[str, Any]) -> tuple[Tensor, float]:
    """Return the frequencies [D / 2] of a rotary embedding of Qwen 3, and the factor of its cos and sin.

    sizes: ``head_dim``, ``hidden_size``, ``num_attention_heads``, ``max_position_embeddings`` and ``rope_parameters`` as in a
    config. Raises whatever transformers' checks of a config run into.
    """
    rope = modeling_qwen3.Qwen3RotaryEmbedding(configuration_qwen3.Qwen3Config(**sizes))
    return rope.inv_freq, float(rope.attention_scaling)
