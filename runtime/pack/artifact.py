"""Write an artifact of a GGUF file whose shape's program is kept, without PyTorch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hybridge.errors import CheckpointError
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.manifest import MANIFEST, PROGRAM, Manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.pack.gguf import GgufHeader, hub_origin, read_header
from hybridge.runtime.pack.programs import UnfitProgramError, exporting_code, find_program
from hybridge.runtime.pack.weights import GgufWeights

NOT_WEIGHTS = ("rope_freqs.weight",)
"""Tensors that the config has instead of the weights."""


def pack_artifact(checkpoint: Path, folder: Path, options: ExportOptions) -> Manifest | None:
    """Write the artifact of a GGUF file into the existing, empty ``folder`` and return its manifest.

    The folder has the same files, byte for byte, as after an export with these options and nothing else. Returns None, and
    leaves the folder empty, if no program of this file's shape is kept, or the file is not one that can be packed so.

    Args:
        checkpoint: the path of a file.
        options: as an export is asked for, with ``auto`` where it is.
    """
    try:
        header = read_header(checkpoint)
        program = find_program(packing_key(checkpoint, header, options))
    except (CheckpointError, OSError):
        return None  # an export says what is wrong
    if program is None or program.artifact is None:
        return None
    try:
        program.write(folder / PROGRAM, GgufWeights(checkpoint, header).fill)
        for name, content in program.artifact.files.items():
            (folder / name).write_bytes(content)
    except UnfitProgramError:
        for path in folder.iterdir():
            path.unlink()
        return None
    files = {path.name: file_entry(path) for path in sorted(folder.iterdir())}
    manifest = program.artifact.manifest.model_copy(update={"files": files, "source": hub_origin(checkpoint)})
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def packing_key(path: Path, header: GgufHeader, options: ExportOptions) -> str:
    """Return the name of all that decides the artifact of a GGUF file but the numbers of its weights. Raises OSError.

    That is its metadata, but for what describes the model to people, names, shapes and types of its tensors, and the options.
    """
    digest = hashlib.sha256(f"{exporting_code()} {options!r}".encode())

    def add(*parts: bytes) -> None:
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)

    with path.open("rb") as file:

        def content(begin: int, size: int) -> bytes:
            file.seek(begin)
            return file.read(size)

        for name, (begin, end) in sorted(header.spans.items()):
            if name == "general.architecture" or not name.startswith("general."):
                add(name.encode(), content(begin, end - begin))
        for tensor in sorted(header.tensors, key=lambda each: each.name):
            add(repr((tensor.name, tensor.shape, tensor.kind)).encode())
            if tensor.name in NOT_WEIGHTS:
                add(content(header.begin + tensor.offset, 4 * tensor.shape[-1]))
    return digest.hexdigest()[:32]
