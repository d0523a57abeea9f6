"""The tokenizer of an artifact."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from hybridge.cache.errors import ArtifactError


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json`` that encodes every text whole. Raises ArtifactError where it cannot be read."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no error of its own
        raise ArtifactError(f"{path} cannot be read as a tokenizer ({error}); export the model again.") from None
    return whole_texts(tokenizer)


def whole_texts(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off what training left in the file: truncation would cut a prompt, padding would lengthen it."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
