"""GLM-5.3-Flash's text model with its head: the class that transformers has for other multimodal models, but not for this one.

Importing this module lets ``AutoModelForCausalLM`` load it, from a checkpoint of the whole model too.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedConfig
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import PrefixChange
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextConfig, Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextPreTrainedModel, Glm5NextTextModel


class Glm5NextTextForCausalLM(Glm5NextPreTrainedModel, GenerationMixin):  # type: ignore[misc]  # untyped bases
    """Text model and head of transformers 5.23 ``Glm5NextForConditionalGeneration``, whose forward for text this is."""

    config: Glm5NextTextConfig
    config_class = Glm5NextTextConfig
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  transformers' own form
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012
        *Glm5NextPreTrainedModel._keys_to_ignore_on_load_unexpected,
        r"^model\.visual\.",
    ]

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = Glm5NextTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> MoeCausalLMOutputWithPast:
        """input_ids [B, T], or inputs_embeds [B, T, hidden], to logits [B, T, vocabulary]."""
        outputs = self.model(input_ids=input_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        return MoeCausalLMOutputWithPast(logits=logits, past_key_values=outputs.past_key_values)


def register() -> None:
    """The class for the text config, for the whole model's config, and the names of the weights in a checkpoint of that."""
    names = get_checkpoint_conversion_mapping("glm5_next")
    prefix = PrefixChange(prefix_to_remove="language_model", model_prefix="model")
    register_checkpoint_conversion_mapping("Glm5NextTextForCausalLM", [*names, prefix], overwrite=True)
    for config in (Glm5NextConfig, Glm5NextTextConfig):
        # Not AutoModelForCausalLM.register, which refuses a text class for the config of the whole model.
        AutoModelForCausalLM._model_mapping.register(config, Glm5NextTextForCausalLM, exist_ok=True)


register()
