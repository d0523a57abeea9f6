"""Read a GGUF file as the transformers checkpoint that it was made from: its config.json, weights by name, and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridge.errors import CheckpointError, UnsupportedModelError
from hybridge.export.source.files import first_line
from hybridge.export.source.gguf import attention_tables, latent_tables, mamba_tables, rwkv_tables, transformer_tables
from hybridge.export.source.gguf.architecture import Architecture, layers, made
from hybridge.export.source.gguf.file import GgufFile
from hybridge.runtime.pack.tokenizer import write_tokenizer

if TYPE_CHECKING:  # PyTorch takes long to start
    from hybridge.export.source.quantization import LazyTensor

ARCHITECTURES: Mapping[str, Architecture] = {
    **attention_tables.TABLE,
    **transformer_tables.TABLE,
    **latent_tables.TABLE,
    **mamba_tables.TABLE,
    **rwkv_tables.TABLE,
}
NOT_WEIGHTS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """Return the config.json that the file stands for. Raises CheckpointError, UnsupportedModelError."""
    tokens, table = file.metadata.get("tokenizer.ggml.tokens"), file.tensors.get("token_embd.weight")
    if isinstance(tokens, int) and table is not None and tokens != table.shape[0]:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its tokenizer has {tokens:,} tokens, but token_embd.weight "
            f"{table.shape[0]:,} rows, one for each); download it again."
        )
    try:
        return _architecture(file).config(file)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise CheckpointError(
            f"{file.path} cannot be read as GGUF (its sizes make no sense: {first_line(error)}); download it again."
        ) from error


def gguf_weights(file: GgufFile) -> dict[str, LazyTensor]:
    """Return the weights by their names in a transformers checkpoint. Raises UnsupportedModelError for an unknown tensor."""
    architecture, config = _architecture(file), gguf_config(file)
    count = layers(file)
    places = [("", "", architecture.model)]
    places += [(f"blk.{i}.", f"{architecture.prefix}.{i}.", architecture.layer) for i in range(count)]
    found: dict[str, LazyTensor] = {}
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


def gguf_drafter(file: GgufFile) -> dict[str, LazyTensor]:
    """Return the weights of the layers of multi-token prediction by their names in a transformers checkpoint.

    Unknown tensors of these layers are among them, by the file's own names. Empty if hybridge knows no such layers.
    """
    architecture = _architecture(file)
    drafter = architecture.drafter
    if drafter is None:
        return {}
    config, first = gguf_config(file), layers(file)
    found: dict[str, LazyTensor] = {}
    for i in range(first, int(file["block_count"])):
        block = f"blk.{i}."
        place, prefix = (each.format(own=i - first, index=i) for each in (drafter.place, drafter.layer))
        used = set[str]()
        for start, weights in ((place, drafter.around), (prefix, architecture.layer)):
            for name, tensor, sources in made(weights, file.tensors, config, block=block):
                found.setdefault(start + name, tensor)
                used |= set(sources)
        others = {name for name in file.tensors if name.startswith(block)} - used
        found |= {prefix + name.removeprefix(block): file.tensors[name] for name in others}
    return found


def write_tokenizer_files(file: GgufFile, folder: Path) -> str:
    """Write the file's tokenizer and chat template into ``folder`` and return a warning, empty if nothing is amiss.

    The warning says what is missing; this raises nothing, because an artifact may do without a tokenizer.
    """
    if "tokenizer.ggml.tokens" not in file.metadata:
        return f"{file.path} has no tokenizer: give one with --tokenizer FOLDER."
    try:
        note = write_tokenizer(file.path, folder)
    except CheckpointError as error:
        return f"the tokenizer in {file.path} cannot be converted ({first_line(error)}): give one with --tokenizer FOLDER."
    return f"{file.path}: {note}" if note else ""


def _architecture(file: GgufFile) -> Architecture:
    if file.architecture == "clip":
        raise UnsupportedModelError(
            f"{file.path} is the encoder of a model's pictures (mmproj). Name the model's own file, beside which it is found."
        )
    if file.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} is of llama.cpp's architecture {file.architecture!r}, which hybridge does not read. "
            f"It reads {', '.join(sorted(ARCHITECTURES))}. Take the checkpoint that the file was made from."
        )
    return ARCHITECTURES[file.architecture]
