"""An artifact folder is untrusted until its sizes and hashes have been checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hybridge.cache.errors import ArtifactError
from hybridge.runtime.artifacts.manifest import FileEntry, Manifest, read_manifest


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A folder whose files are what its manifest says."""

    folder: Path
    manifest: Manifest

    @property
    def program(self) -> Path:
        """Return the file that the runtime loads: of onnxruntime's, the graph."""
        return self.folder / self.manifest.program_files[0]

    @property
    def tokenizer(self) -> Path | None:
        """Return ``tokenizer.json``, where the checkpoint had one."""
        return self.folder / "tokenizer.json" if "tokenizer.json" in self.manifest.files else None


def open_artifact(folder: str | Path) -> Artifact:
    """Check every file of ``folder`` against its manifest.

    Raises ArtifactError, naming the file, where one is missing, truncated or altered.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtifactError(f"{folder} is not a folder; give the one that 'hybridge export' wrote.")
    manifest = read_manifest(folder)
    if missing := [name for name in manifest.program_files if name not in manifest.files]:
        raise ArtifactError(f"the manifest of {folder} lists no {', '.join(missing)}; export the model again.")
    for name, expected in manifest.files.items():
        _check_file(folder, name, expected)
    return Artifact(folder=folder, manifest=manifest)


def file_entry(path: Path) -> FileEntry:
    """Return the size and SHA-256 of a file."""
    with path.open("rb") as file:
        return FileEntry(sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size)


def _check_file(folder: Path, name: str, expected: FileEntry) -> None:
    path = folder / name
    if Path(name).name != name or "\0" in name:
        raise ArtifactError(f"the manifest of {folder} lists {name!r}, which is not a plain file name.")
    try:
        actual = file_entry(path)
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing; export the model again or copy the whole folder.") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}.") from None
    if actual.size != expected.size:
        raise ArtifactError(f"{path} has {actual.size} bytes, but the manifest says {expected.size}; copy it again.")
    if actual.sha256 != expected.sha256:
        raise ArtifactError(f"{path} was altered: its SHA-256 is not the manifest's. Copy it again.")
