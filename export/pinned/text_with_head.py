"""A text model under a plain output layer, for multimodal models whose text transformers has no causal language model for."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoModel, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class TextWithHead(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """Any text model of transformers, and an output layer without scales or caps of its own."""

    config_class = PreTrainedConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True

    def _can_set_experts_implementation(self) -> bool:
        """transformers looks for a call of its experts in the source of a class; in this one it would find none."""
        return bool(MODEL_MAPPING[type(self.config)]._can_set_experts_implementation())

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = AutoModel.from_config(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> CausalLMOutputWithPast:
        """Return logits [B, T, vocabulary] of input_ids [B, T], or of inputs_embeds [B, T, hidden]."""
        outputs = self.model(input_ids=input_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)
