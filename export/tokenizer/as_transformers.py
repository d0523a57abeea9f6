"""What transformers makes of a folder with a tokenizer.json: its AutoTokenizer may build another tokenizer than the file has.

The class that tokenizer_config.json or config.json names puts its own pre-tokenizer and normalizer around the file's
vocabulary, because files on the hub are known to be wrong. Its users have those tokens, so an artifact gets them, too.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from hybridge.export.source.reading import read_object
from hybridge.export.tokenizer.special_tokens import TOKENIZER_CONFIG

PARTS = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder")
"""Of a tokenizer.json: what decides on the tokens of a text, and on its text. What goes around it is compared by its ids."""

SAMPLES = ("a", "\nThe quick brown fox,\n  12 of them: 'jumps' over x_y = f(3.5);\n", "x  \t漢字 é 👩\u200d🚀\r\n")
"""Composed letters alone, since some classes compose the others, which loses nothing."""


def as_transformers(folder: Path, own: Tokenizer) -> Tokenizer:
    """Return the tokenizer that AutoTokenizer has for ``folder``, or ``own``, its tokenizer.json, where that is the same.

    It is ``own`` as well where transformers cannot load it without code of the folder, or loses text that ``own`` keeps.
    """
    loaded = _load(folder)
    if loaded is not None:
        loaded = _without_made_up(loaded, folder, own)
    if loaded is None or same_tokenizer(loaded, own):
        return own
    return own if any(_keeps(own, text) and not _keeps(loaded, text) for text in SAMPLES) else loaded


def same_tokenizer(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers have the same parts and put the same tokens around a text."""
    around = (each.encode("a").ids for each in (one, other))
    first, second = (json.loads(each.to_str()) for each in (one, other))
    return next(around) == next(around) and all(first.get(part) == second.get(part) for part in PARTS)


def _without_made_up(loaded: Tokenizer, folder: Path, own: Tokenizer) -> Tokenizer:
    """Leave out tokens that only transformers' class names, such as <s>: the model has no row for them."""
    told = read_object(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
    entries = told.values() if isinstance(told, dict) else ()
    known = {*own.get_vocab(), *(entry.get("content") for entry in entries if isinstance(entry, dict))}
    content = json.loads(loaded.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in known]
    return Tokenizer.from_str(json.dumps(content))


def _load(folder: Path) -> Tokenizer | None:
    """Return transformers' tokenizer; None where neither the class that it chooses nor the plain one is of this library."""
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        return _loaded(AutoTokenizer, folder) or _loaded(PreTrainedTokenizerFast, folder)
    finally:
        logging.set_verbosity(before)


def _loaded(kind: Any, folder: Path) -> Tokenizer | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            return Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        except Exception:  # whatever a class that does not fit the file makes transformers run into
            return None


def _keeps(tokenizer: Tokenizer, text: str) -> bool:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return str(tokenizer.decode(ids, skip_special_tokens=False)).strip() == text.strip()
