"""Which tokens end a text: a checkpoint says so in up to four files, and a chat may end with another token than a document."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hybridge.export.source.reading import read_object


@dataclass(frozen=True, kw_only=True)
class EndOfText:
    """ids: each once, in the order in which the files name them. ignored: what they name that is no token of the model."""

    ids: list[int]
    ignored: list[str]


def end_of_text(named: Iterable[Any], tokenizer: Tokenizer | None, vocab_size: int) -> EndOfText:
    """The ends among ``named``: ids, texts of tokens, or lists of these."""
    ids: dict[int, None] = {}
    ignored: list[str] = []
    for each in _flat(named):
        token = tokenizer.token_to_id(each) if tokenizer and isinstance(each, str) else each
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < vocab_size:
            ids[token] = None
        elif not isinstance(each, str) or tokenizer:
            ignored.append(repr(each))
    return EndOfText(ids=list(ids), ignored=ignored)


def named_ends(folder: Path, special: dict[str, str]) -> list[Any]:
    """What a checkpoint's files name: the generation config, the config, its text config and the tokenizer's ``eos_token``.

    The files themselves are read, since a config class fills in an id of its own where a file has none.
    """
    config = read_object(folder / "config.json")
    text = config.get("text_config")
    sources = (read_object(folder / "generation_config.json"), config, text if isinstance(text, dict) else {})
    return [*(source.get("eos_token_id") for source in sources), special.get("eos_token")]


def _flat(named: Iterable[Any]) -> list[Any]:
    lists = (each if isinstance(each, list) else [each] for each in named)
    return [each for one in lists for each in one if each is not None]
