"""An artifact folder is untrusted until its sizes and hashes have been checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hybridge.cache.errors import ArtifactError, UsageError
from hybridge.runtime.artifacts.checked_file import CheckedFile
from hybridge.runtime.artifacts.manifest import FileEntry, Manifest, read_manifest

LARGEST_SIDE_FILE = 1 << 28
"""Bytes of a tokenizer file or another one that is not the program: the largest vocabularies take a tenth of it."""


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder whose files are what its manifest says.

    opened: those of the program, by name, which stay open for as long as the artifact is used.
    """

    folder: Path
    manifest: Manifest
    opened: Mapping[str, CheckedFile] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        """Return the file that the runtime loads: of onnxruntime's, the graph."""
        return self.folder / self.manifest.program_files[0]

    @property
    def tokenizer(self) -> Path | None:
        """Return ``tokenizer.json``, where the checkpoint had one."""
        return self.folder / "tokenizer.json" if "tokenizer.json" in self.manifest.files else None

    def read(self, name: str) -> bytes:
        """Return the bytes of a file that the manifest lists, checked once more. Raises ArtifactError."""
        return CheckedFile(self.folder / name, self.manifest.files[name]).read()

    def check_unchanged(self) -> None:
        """Raises ArtifactError where the program was written to since it was opened."""
        for file in self.opened.values():
            file.check_unchanged()


def open_artifact(folder: str | Path, *, private_copy: bool = False) -> Artifact:
    """Check every file of ``folder`` against its manifest.

    private_copy: keep the program in memory of this process's own, as much as the file has bytes, so that no change of the
    file can end the process or reach it; for a .pte on Linux. Raises ArtifactError, naming the file, where one is missing,
    truncated or altered.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder; give the one that 'hybridge export' wrote.")
    manifest = read_manifest(folder)
    if private_copy and manifest.onnx:
        raise UsageError("a private copy can be had of a .pte alone: onnxruntime finds its weights by their path.")
    if missing := [name for name in manifest.program_files if name not in manifest.files]:
        raise ArtifactError(f"the manifest of {folder} lists no {', '.join(missing)}; export the model again.")
    opened = {}
    for name, expected in manifest.files.items():
        _check_name(folder, name, expected, is_program=name in manifest.program_files)
        file = CheckedFile(folder / name, expected, private_copy=private_copy and name in manifest.program_files)
        if name in manifest.program_files:
            opened[name] = file
    return Artifact(folder=folder, manifest=manifest, opened=opened)


def file_entry(path: Path) -> FileEntry:
    """Return the size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _check_name(folder: Path, name: str, expected: FileEntry, *, is_program: bool) -> None:
    if Path(name).name != name or "\0" in name:
        raise ArtifactError(f"the manifest of {folder} lists {name[:100]!r}, which is not a plain file name.")
    if not is_program and expected.size > LARGEST_SIDE_FILE:
        raise ArtifactError(f"the manifest of {folder} gives {name} {expected.size} bytes; {LARGEST_SIDE_FILE} are the most.")
