"""What an EAGLE-3 drafter's config.json says, in the form of its authors and SGLang, and in that of vLLM's speculators.

Sources: vLLM ``llama_eagle3.py``; SGLang ``llama_eagle3.py``; mlx-vlm ``speculative/drafters/eagle3/config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridge.cache.errors import UnsupportedModelError
from hybridge.export.drafters.fields import Fields

ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3DraftModel", "Eagle3Speculator")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, kw_only=True)
class EagleConfig:
    """An EAGLE-3 drafter: one llama layer over a token's embedding and the state before it.

    target_width: of the target's hidden states; taps: which of them, as transformers counts them, none for the default;
    draft_vocab: tokens of its own head; norm_before_residual: the residual is the normed state.
    """

    hidden_size: int
    target_width: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    bias: bool
    vocab_size: int
    draft_vocab: int
    rope: Mapping[str, Any]
    taps: tuple[int, ...]
    norm_before_residual: bool


def read_eagle_config(path: Path, content: Mapping[str, Any]) -> EagleConfig | None:
    """Return what the config.json in ``path`` says, or None where it is not of EAGLE-3.

    Raises CheckpointError for values that no drafter can have, UnsupportedModelError for parts that hybridge does not know.
    """
    layer, nested = content.get("transformer_layer_config"), content.get("eagle_config")
    fields = Fields(path, {**(layer if isinstance(layer, Mapping) else {}), **content})
    named = {*fields.names("architectures")} & {*ARCHITECTURES}
    if not named and fields.get("speculators_model_type") != "eagle3":
        return None
    _refuse_unknown_parts(fields)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    # vLLM names the layers that a state enters, SGLang those that it leaves: two names of one place differ by one.
    taps = fields.counts(LAYER_IDS) if fields.get(LAYER_IDS) is not None else []
    if not taps and isinstance(nested, Mapping) and nested.get(LAYER_IDS) is not None:
        taps = [index + 1 for index in Fields(path, nested).counts(LAYER_IDS)]
    vocab = fields.count("vocab_size")
    return EagleConfig(
        hidden_size=hidden,
        target_width=fields.count("target_hidden_size", hidden),
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", max(1, hidden // heads)),
        eps=fields.number("rms_norm_eps", 1e-6),
        bias=fields.truth("attention_bias", False),
        vocab_size=vocab,
        draft_vocab=fields.count("draft_vocab_size", vocab),
        rope=fields.rope(),
        taps=tuple(taps),
        norm_before_residual=fields.truth("norm_before_residual", False),
    )


def _refuse_unknown_parts(fields: Fields) -> None:
    known = {
        "hidden_act": ("silu",),
        "num_hidden_layers": (1,),
        "norm_before_fc": (False,),
        "model_type": ("llama", "qwen3", "eagle3"),
    }
    for name, values in known.items():
        if (value := fields.get(name)) is not None and value not in values:
            raise UnsupportedModelError(
                f"{fields.path} asks for {name} {value!r}, which hybridge knows no EAGLE-3 drafter with."
            )
