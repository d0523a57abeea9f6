"""The named special tokens of a tokenizer: ``bos_token``, ``eos_token``, ``image_token`` and what else a model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"


def special_tokens(config: Mapping[str, Any], legacy: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens by name, as transformers gives them to a chat template.

    Args:
        config: tokenizer_config.json.
        legacy: special_tokens_map.json, which counts only beside a config that lists no added tokens.
    """
    found: dict[str, str] = {}
    for source in [config] if "added_tokens_decoder" in config else [config, legacy]:
        extra = source.get("extra_special_tokens")
        tokens = {name: token for name, token in source.items() if name.endswith("_token")}
        tokens |= extra if isinstance(extra, dict) else {}
        found |= {name: text for name, token in tokens.items() if (text := _text(token)) is not None}
    return found


def _text(token: Any) -> str | None:
    """Return a token's text, from a string or an object with ``content``; None for switches such as ``add_bos_token``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
