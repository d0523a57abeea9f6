"""The tokenizer of an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hybridge.cache.errors import ArtifactError, DraftError
from hybridge.runtime.artifacts.artifact import LARGEST_SIDE_FILE, Artifact
from hybridge.runtime.files import read_regular


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``, without truncation and padding. Raises ArtifactError if it cannot be read."""
    try:
        return _parse(read_regular(path, LARGEST_SIDE_FILE), path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read as a tokenizer ({error.strerror}); export the model again.") from None


def tokenizer_of(artifact: Artifact) -> Tokenizer:
    """Return the tokenizer of an artifact that has one, from checked bytes. Raises ArtifactError."""
    return _parse(artifact.read("tokenizer.json"), artifact.folder / "tokenizer.json")


def _parse(data: bytes, path: Path) -> Tokenizer:
    try:
        return whole_texts(Tokenizer.from_buffer(data))
    except Exception as error:  # the library has no error of its own
        raise ArtifactError(f"{path} cannot be read as a tokenizer ({error}); export the model again.") from None


def whole_texts(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off what training left in the file: truncation would cut a prompt, padding would lengthen it."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def check_draft_tokenizer(draft: Artifact, target: Artifact) -> None:
    """Raise DraftError if the two artifacts' tokenizers give ids different meanings."""
    if draft.tokenizer is None or target.tokenizer is None:
        return  # the caller has token ids, and knows what they mean
    if draft.manifest.files["tokenizer.json"] == target.manifest.files["tokenizer.json"]:
        return
    mine, other = (tokenizer_of(artifact).get_vocab() for artifact in (draft, target))
    if mine == other:
        return
    differing = sorted(name for name in mine.keys() | other.keys() if mine.get(name) != other.get(name))
    raise DraftError(
        f"the draft model's tokenizer is another one: {len(differing)} tokens differ, such as {differing[0]!r} "
        f"({mine.get(differing[0])} there, {other.get(differing[0])} in the target); use a draft model that was trained with "
        "the target's tokenizer."
    )


# The named special tokens of a tokenizer: ``bos_token``, ``eos_token``, ``image_token`` and what else a model has.


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


def before_texts(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that a tokenizer puts before every text, such as bos; those after it, such as eos, are left out."""
    whole, text = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
    places = (at for at in range(len(whole) - len(text) + 1) if whole[at : at + len(text)] == text)
    return [int(token) for token in whole[: next(places, 0)]]
