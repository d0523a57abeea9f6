"""transformers 5.23: parts of two families' own files, which its documentation does not list."""

from __future__ import annotations

from transformers.models.glm5_next import configuration_glm5_next, modeling_glm5_next
from transformers.models.qwen4_exp import modeling_qwen4_exp

Glm5NextConfig = configuration_glm5_next.Glm5NextConfig
Glm5NextTextConfig = configuration_glm5_next.Glm5NextTextConfig
"""The config of the whole model, and the one of its text model in it."""

Glm5NextPreTrainedModel = modeling_glm5_next.Glm5NextPreTrainedModel
Glm5NextTextModel = modeling_glm5_next.Glm5NextTextModel
"""The text model without a head."""

rotate = modeling_qwen4_exp.apply_rotary_pos_emb
"""Turns queries and keys [B, T, H, D] together, or one of them alone, by cos and sin [B, T, R], with ``unsqueeze_dim=2``."""
