"""GLM-5.3-Flash's text model with its head: the class that transformers has for other multimodal models, but not for this one.

Importing this module lets ``AutoModelForCausalLM`` load it, from a checkpoint of the whole model too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from hybridge.export.pinned.transformers import register_text_model, tie_head
from hybridge.export.pinned.transformers_models import (
    Glm5NextConfig,
    Glm5NextPreTrainedModel,
    Glm5NextTextConfig,
    Glm5NextTextModel,
)


class Glm5NextTextForCausalLM(Glm5NextPreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """Text model and head of transformers 5.23 ``Glm5NextForConditionalGeneration``, whose forward for text this is."""

    config: Glm5NextTextConfig
    config_class = Glm5NextTextConfig

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = Glm5NextTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> MoeCausalLMOutputWithPast:
        """Return logits [B, T, vocabulary] of input_ids [B, T], or of inputs_embeds [B, T, hidden]."""
        outputs = self.model(input_ids=input_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        return MoeCausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)


def register() -> None:
    """Register the class for the text config, the whole model's config, and the weights' names in a checkpoint of that."""
    tie_head(Glm5NextTextForCausalLM, {"lm_head.weight": "model.embed_tokens.weight"}, ignored=[r"^model\.visual\."])
    configs = (Glm5NextConfig, Glm5NextTextConfig)
    register_text_model(Glm5NextTextForCausalLM, configs, like="glm5_next", prefix="language_model")


register()
