"""The tokenizer beside a checkpoint's weights, and what an artifact gets of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from hybridge.cache.errors import CheckpointError
from hybridge.export.source.reading import read_object
from hybridge.export.tokenizer.conversion import convert, source_of
from hybridge.export.tokenizer.special_tokens import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG, special_tokens
from hybridge.runtime.artifacts.tokenizer import whole_texts

TOKENIZER = "tokenizer.json"
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
        if self.special and not (folder / TOKENIZER_CONFIG).exists():
            (folder / TOKENIZER_CONFIG).write_text(json.dumps(self.special, ensure_ascii=False) + "\n", encoding="utf-8")

    def _content(self, tokenizer: Tokenizer) -> str:
        """The checkpoint's own file where it has one that neither truncates nor pads."""
        path = self.folder / TOKENIZER
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        own = json.loads(text) if text else {}
        return text if own and own.get("truncation") is None and own.get("padding") is None else str(tokenizer.to_str())


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer of the checkpoint in ``folder``, converted where it has no tokenizer.json.

    Raises CheckpointError where a file of it is damaged.
    """
    named = special_tokens(read_object(folder / TOKENIZER_CONFIG), read_object(folder / SPECIAL_TOKENS_MAP))
    if (folder / TOKENIZER).is_file():
        return TokenizerFiles(folder=folder, tokenizer=_read(folder / TOKENIZER), special=named)
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
