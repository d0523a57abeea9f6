"""The tokenizer beside a checkpoint's weights, and what an artifact gets of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hybridge.cache.errors import CheckpointError
from hybridge.export.source.reading import read_object
from hybridge.export.tokenizer.as_transformers import as_transformers, same_tokenizer
from hybridge.export.tokenizer.conversion import convert, source_of
from hybridge.export.tokenizer.special_tokens import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.artifacts.tokenizer import whole_texts

TOKENIZER = "tokenizer.json"
PLAIN_CLASS = "PreTrainedTokenizerFast"
"""transformers' class that changes nothing of a tokenizer.json."""
COPIED_FILES = (
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS_MAP,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
WITHOUT = "the artifact will have no tokenizer.json, so 'run' and 'chat' will refuse it and a Session takes token ids alone"


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """tokenizer: what encodes, if there is any; special: its named tokens; note: what people should be told of it."""

    folder: Path
    tokenizer: Tokenizer | None
    special: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def write(self, folder: Path) -> None:
        """Put the tokenizer, and what else a runtime may read, into the artifact ``folder``."""
        for name in COPIED_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)
        # An artifact has no folders inside.
        for path in sorted((self.folder / "additional_chat_templates").glob("*.jinja")):
            shutil.copyfile(path, folder / f"chat_template.{path.name}")
        if self.tokenizer is not None:
            (folder / TOKENIZER).write_text(self._content(self.tokenizer), encoding="utf-8")
        config = read_object(folder / TOKENIZER_CONFIG) or self.special
        if self.tokenizer is not None and config:
            config = _as_written(config)
        if config:
            (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    def _content(self, tokenizer: Tokenizer) -> str:
        """The checkpoint's own file where that is the tokenizer, and neither truncates nor pads."""
        path = self.folder / TOKENIZER
        if not path.is_file():
            return str(tokenizer.to_str())
        text = path.read_text(encoding="utf-8")
        own, limits = Tokenizer.from_str(text), json.loads(text)
        plain = limits.get("truncation") is None and limits.get("padding") is None
        return text if plain and same_tokenizer(own, tokenizer) else str(tokenizer.to_str())


def _as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tokenizer_config.json for which transformers takes the tokenizer.json beside it as it is."""
    return {name: value for name, value in config.items() if name != "auto_map"} | {"tokenizer_class": PLAIN_CLASS}


def read_tokenizer(folder: Path, *, verbatim: bool = False) -> TokenizerFiles:
    """The tokenizer of the checkpoint in ``folder``, as transformers has it, and converted where there is no tokenizer.json.

    verbatim: a tokenizer.json is the tokenizer, whatever transformers makes of it.
    Raises CheckpointError where a file of it is damaged.
    """
    named = special_tokens(read_object(folder / TOKENIZER_CONFIG), read_object(folder / SPECIAL_TOKENS_MAP))
    if (folder / TOKENIZER).is_file():
        own = _read(folder / TOKENIZER)
        tokenizer = own if verbatim else whole_texts(as_transformers(folder, own))
        return TokenizerFiles(folder=folder, tokenizer=tokenizer, special=named, note=_unfollowed(folder, tokenizer, named))
    source = source_of(folder)
    if source is None:
        return TokenizerFiles(folder=folder, tokenizer=None, special=named, note=f"{folder} has no tokenizer: {WITHOUT}.")
    try:
        made = convert(folder, source)
    except ValueError as error:
        note = f"{folder} has no tokenizer.json, and {source} cannot be converted ({error}): {WITHOUT}."
        return TokenizerFiles(folder=folder, tokenizer=None, special=named, note=note)
    note = f"{folder} has no tokenizer.json: one was made of {source}."
    return TokenizerFiles(folder=folder, tokenizer=whole_texts(made.tokenizer), special=made.special | named, note=note)


def _read(path: Path) -> Tokenizer:
    try:
        return whole_texts(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library has no error of its own
        raise CheckpointError(f"{path} cannot be read as a tokenizer ({error}); get the file again.") from None


def _unfollowed(folder: Path, tokenizer: Tokenizer, named: dict[str, str]) -> str:
    """Say where tokenizer_config.json asks for bos, and neither tokenizer.json nor transformers puts it before a text."""
    asked = read_object(folder / TOKENIZER_CONFIG).get("add_bos_token") is True
    bos = tokenizer.token_to_id(named.get("bos_token", ""))
    if not asked or bos is None or bos in tokenizer.encode("").ids:
        return ""
    return (
        f"{folder / TOKENIZER_CONFIG} says add_bos_token, but {TOKENIZER} adds no {named['bos_token']}, and so neither does "
        "transformers: the artifact's texts begin without it. If the model writes nonsense, begin them with it."
    )
