"""A GGUF file as the checkpoint that it was made from: a folder with config.json and the tokenizer, and weights by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridge.cache.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.files import first_line
from hybridge.export.source.forms.form import Unread
from hybridge.export.source.gguf import hybrid_tables, mamba_tables, transformer_tables
from hybridge.export.source.gguf.file import GgufFile, open_gguf, read_header
from hybridge.export.source.gguf.sizes import Architecture, layers
from hybridge.export.source.gguf.tokenizer import read_gguf_tokenizer
from hybridge.export.source.gguf.weights import made

ARCHITECTURES: Mapping[str, Architecture] = {**hybrid_tables.TABLE, **mamba_tables.TABLE, **transformer_tables.TABLE}
NOT_WEIGHTS = ("rope_freqs.weight",)


def is_gguf(path: Path) -> bool:
    """Whether ``path`` names a GGUF file."""
    return path.suffix.lower() == ".gguf"


def architecture_of(file: GgufFile) -> Architecture:
    """Raises UnsupportedModelError, naming it, for an architecture without an entry."""
    if file.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} is of llama.cpp's architecture {file.architecture!r}, which hybridge does not read. "
            f"It reads {', '.join(sorted(ARCHITECTURES))}. Take the checkpoint that the file was made from."
        )
    return ARCHITECTURES[file.architecture]


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the entries of the config.json that the file stands for. Raises CheckpointError, UnsupportedModelError."""
    _check_vocabulary(file)
    try:
        return architecture_of(file).config(file)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its sizes make no sense: {first_line(error)}); download it again."
        ) from error


def _check_vocabulary(file: GgufFile) -> None:
    tokens, table = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if isinstance(tokens, int) and table is not None and tokens != table.shape[0]:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its tokenizer has {tokens:,} tokens, but token_embd.weight "
            f"{table.shape[0]:,} rows, one for each); download it again."
        )


def weights_of(file: GgufFile) -> dict[str, Unread]:
    """Return the weights by their names in a checkpoint. Raises UnsupportedModelError where a tensor is part of none."""
    architecture, config = architecture_of(file), config_of(file)
    count = layers(file)
    places = [("", "", architecture.model)]
    places += [(f"blk.{i}.", f"{architecture.prefix}.{i}.", architecture.layer) for i in range(count)]
    found: dict[str, Unread] = {}
    used = set(NOT_WEIGHTS)
    for block, prefix, weights in places:
        for name, tensor, sources in made(weights, file.tensors, config, block=block):
            found.setdefault(prefix + name, tensor)
            used |= set(sources)
    drafting = tuple(f"blk.{i}." for i in range(count, int(file["block_count"])))
    if unknown := [name for name in file.tensors if name not in used and not name.startswith(drafting or ("\0",))]:
        raise UnsupportedModelError(
            f"{file.path} has tensors that hybridge knows no place for, such as {unknown[0]} ({len(unknown)} in all). "
            "Take the checkpoint that the file was made from."
        )
    return found


def write_folder(path: Path, folder: Path, *, tokenizer: bool) -> str:
    """Put config.json, and the tokenizer where asked for, of the file at ``path`` into ``folder``.

    Return a sentence on what is missing of the tokenizer, or nothing. Raises what ``open_gguf`` and ``config_of`` do.
    """
    file = open_gguf(path)
    (folder / "config.json").write_text(json.dumps(config_of(file)), encoding="utf-8")
    return _write_tokenizer(file, folder) if tokenizer else ""


def _write_tokenizer(file: GgufFile, folder: Path) -> str:
    if "tokenizer.ggml.tokens" not in file.metadata:
        return f"{file.path} has no tokenizer: give one with --tokenizer FOLDER."
    try:
        metadata = read_header(file.path, strings=("tokenizer.ggml.tokens", "tokenizer.ggml.merges")).metadata
        made = read_gguf_tokenizer(metadata)
    except Exception as error:  # the tokenizers library has no error of its own for a vocabulary that makes no sense
        return f"the tokenizer in {file.path} cannot be converted ({first_line(error)}): give one with --tokenizer FOLDER."
    made.tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(made.config, ensure_ascii=False), encoding="utf-8")
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        (folder / "chat_template.jinja").write_text(_with_bos(template, made.config), encoding="utf-8")
    return f"{file.path}: {made.note}" if made.note else ""


def _with_bos(template: str, config: dict[str, Any]) -> str:
    """Return a chat template that writes bos where the file adds it to every text: llama.cpp adds it to a chat, too."""
    bos = config.get("bos_token")
    written = bos is None or bos in template or "bos_token" in template
    return template if written or not config["add_bos_token"] else "{{ bos_token }}" + template
