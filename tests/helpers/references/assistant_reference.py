"""transformers' own assistant of Gemma 4 over random weights: what it has to propose."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tiny import lively
from torch import Tensor
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAssistantForCausalLM,
    Gemma4UnifiedTextConfig,
    GenerationConfig,
)
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator

SLIDING, FULL = "sliding_attention", "full_attention"
CLUSTERS = {"use_ordered_embeddings": True, "centroid_intermediate_top_k": 3}
"""Three clusters of the tokens have scores, as in the smaller of the published assistants."""


CLASSES = {
    "gemma4_text": (Gemma4TextConfig, Gemma4AssistantConfig, Gemma4AssistantForCausalLM),
    "gemma4_unified_text": (Gemma4UnifiedTextConfig, Gemma4UnifiedAssistantConfig, Gemma4UnifiedAssistantForCausalLM),
}
"""The classes of an assistant's text, config and model, by the model type of its target's text."""


def assistant_config(target: Any, **changes: Any) -> Any:
    """An assistant of ``target``, a text's config, with odd sizes of its own. changes: fields of the assistant's config."""
    text = {
        **{name: getattr(target, name) for name in SHARED},
        **shape_of(target, SLIDING),
        "hidden_size": 20,
        "intermediate_size": 28,
        "layer_types": [SLIDING, SLIDING, FULL],
        "num_hidden_layers": 3,
        "num_kv_shared_layers": 3,
        **({"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0} if target.model_type == "gemma4_text" else {}),
        "per_layer_config": {2: shape_of(target, FULL)},
    }
    if changes.get("use_ordered_embeddings"):
        changes.setdefault("num_centroids", next(n for n in range(7, 200) if target.vocab_size % n == 0))
    text |= changes.pop("text_config", {})
    text_class, config_class, _ = CLASSES[target.model_type]
    return config_class(text_config=text_class(**text), backbone_hidden_size=target.hidden_size, **changes)


SHARED = ("vocab_size", "num_attention_heads", "attention_k_eq_v", "sliding_window", "rope_parameters")


def shape_of(target: Any, kind: str) -> dict[str, int]:
    """The heads of the target's layers of that type."""
    sizes = target.per_layer_config[max(i for i, each in enumerate(target.layer_types) if each == kind)]
    return {"head_dim": sizes.head_dim, "num_key_value_heads": sizes.num_key_value_heads}


def sharing_modes(config: Any) -> list[str]:
    """The mode of each layer, all of which share: transformers 5.23 takes a config of such layers alone for a mistake."""
    return ["reuse"] * config.num_hidden_layers


class AssistantReference:
    """An assistant with random weights."""

    def __init__(self, config: Any, seed: int = 1) -> None:
        text_class, _, model_class = CLASSES[config.text_config.model_type]
        with mock.patch.object(text_class, "kv_sharing_modes", property(sharing_modes)):
            config._attn_implementation = config.text_config._attn_implementation = "eager"
            torch.manual_seed(seed)
            self.assistant = lively(model_class(config).eval(), seed)
        generator = torch.Generator().manual_seed(seed)
        for name, each in self.assistant.named_buffers():
            if name.endswith("layer_scalar"):
                each.uniform_(0.5, 1.5, generator=generator)
            if name.endswith("token_ordering"):
                each.copy_(torch.randperm(len(each), generator=generator))
        self.assistant.requires_grad_(False)

    def save(self, folder: Path) -> Path:
        """Write it as a checkpoint; returns its folder."""
        self.assistant.save_pretrained(folder)
        return folder

    def tensors(self) -> dict[str, Tensor]:
        """Its weights by the names of a checkpoint."""
        return {name: each.clone() for name, each in self.assistant.state_dict().items() if name != "lm_head.weight"}

    def definition(self, model: Any) -> Any:
        """Return what proposes for the target ``model`` after a text, whose last token is not committed."""

        def guess(text: list[int], count: int) -> list[int]:
            return self.proposals(model, text, count)

        return guess

    def proposals(self, model: Any, text: list[int], count: int, **pictures: Any) -> list[int]:
        """Return what it proposes after a text for the target ``model``. pictures: of the text, as that model takes them."""
        self.assistant.generation_config.num_assistant_tokens = count
        limits = GenerationConfig(max_length=len(text) + count + 1)
        generator = SinglePositionMultiTokenCandidateGenerator(self.assistant, model.get_input_embeddings(), limits)
        outputs = read(model, text[:-1], **pictures)
        found, _ = generator.get_candidates(torch.tensor([text]), {}, outputs, is_first_iteration=False, n_last_matches=0)
        return found[0, len(text) :].tolist()


@torch.no_grad()
def read(model: Any, text: list[int], **pictures: Any) -> Any:
    """Let the target read a text from its beginning; hidden states, and keys and values for an assistant."""
    config, decoder = model.config.get_text_config(), getattr(model.model, "language_model", model.model)
    for kind in (SLIDING, FULL):
        own = config.layer_types[: config.num_hidden_layers - config.num_kv_shared_layers]
        # Where no layer of the target shares them, transformers 5.23 hands none on.
        last = max(i for i, each in enumerate(own) if each == kind)
        decoder.layers[last].self_attn.store_full_length_kv = True
    wanted = {"output_hidden_states": True, "return_shared_kv_states": True}
    return model(torch.tensor([text]), use_cache=False, **wanted, **pictures)
