"""Recognize a checkpoint by the bytes of its files, wherever it lies and whatever it is called.

Sizes and times alone would be quicker, and wrong for a file that was copied over another with its times. So all bytes are
hashed, and a file's hash is remembered beside what the system says of the file: device, inode, size, and the times of the last
change of its content and of its inode. The system sets the last one at every change, and no program can set it back. A file
that is moved, copied or downloaded again is hashed again, and found to be the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hybridge.errors import CheckpointError
from hybridge.export.source.files import find_projectors, names_of_parts
from hybridge.runtime.files import open_regular, others_control, read_regular, replace_file

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times of the last change of the content and of the inode, in nanoseconds."""
TEMPLATES = "additional_chat_templates"
NEVER_READ = frozenset({".bin", ".ckpt", ".gguf", ".h5", ".md", ".msgpack", ".onnx", ".pdf", ".png", ".pt", ".pth"})
"""Kinds of files in a checkpoint's folder that no export reads."""
MOST_REMEMBERED = 4096
LARGEST_MEMORY = 4 << 20
SETTLED = 2_000_000_000
"""Nanoseconds after its last change from which a file is remembered: file systems count times in steps, the coarsest of 2 s."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a checkpoint is.

    digest: SHA-256 over its files' contents, and in a folder their names. size: of all files, in bytes.
    """

    digest: str
    size: int
    files: tuple[Path, ...]
    stamps: tuple[Stamp, ...]

    def check_unchanged(self) -> None:
        """Raise CheckpointError if a file was written to since."""
        for file, stamp in zip(self.files, self.stamps, strict=True):
            if _stamp(os.stat(file)) != stamp:
                raise CheckpointError(f"{file} was changed while it was being read; try again once it is complete.")


class Hashes:
    """Hashes of files, remembered in a file of the user's cache for as long as the files stay as they are."""

    def __init__(self, memory: Path, top: Path) -> None:
        """Read what is remembered in ``memory``, unless others could have written it."""
        self.memory = memory
        self._known: dict[str, tuple[Stamp, str]] = {}
        self._is_new = False
        with suppress(OSError, ValueError, TypeError, RecursionError):
            if others_control(memory, top) is None:
                content = json.loads(read_regular(memory, LARGEST_MEMORY))
                self._known = {path: (tuple(stamp), str(digest)) for path, (stamp, digest) in content.items()}

    def identify(self, checkpoint: Path) -> Identity:
        """Identify a checkpoint's folder or GGUF file. Raises CheckpointError if a file cannot be read or is being written."""
        whole, size, files, stamps = hashlib.sha256(), 0, [], []
        for name, file in files_of(checkpoint).items():
            try:
                stamp, digest = self._hash(file)
            except OSError as error:
                raise CheckpointError(f"{file} cannot be read: {error.strerror or error}.") from None
            whole.update(f"{digest} {name}\n".encode("utf-8", "surrogateescape"))
            size += stamp[2]
            files.append(file)
            stamps.append(stamp)
        return Identity(digest=whole.hexdigest(), size=size, files=tuple(files), stamps=tuple(stamps))

    def remember(self) -> None:
        """Write down what was hashed. Nothing happens if the cache cannot be written: it is hashed again the next time."""
        if self._is_new:
            last = dict(list(self._known.items())[-MOST_REMEMBERED:])
            with suppress(OSError):
                replace_file(self.memory, json.dumps(last).encode())
                self._is_new = False

    def _hash(self, file: Path) -> tuple[Stamp, str]:
        path = str(file.absolute())
        known = self._known.get(path)
        with open_regular(file) as content:
            stamp = _stamp(os.fstat(content.fileno()))
            if known is not None and known[0] == stamp:
                return known
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            if _stamp(os.fstat(content.fileno())) != stamp:
                raise CheckpointError(f"{file} is being written; try again once it is complete.")
        if time.time_ns() - max(stamp[3:]) > SETTLED:
            self._known.pop(path, None)  # the last one is kept longest
            self._known[path] = stamp, digest
            self._is_new = True
        return stamp, digest


def files_of(checkpoint: Path) -> dict[str, Path]:
    """Return all files that an export of a checkpoint may read, in order, by names that do not tell where it lies.

    A GGUF file brings its other parts, and the encoder of pictures that lies beside it.
    """
    if checkpoint.is_dir():
        places = [each for each in (checkpoint, checkpoint / TEMPLATES) if each.is_dir()]
        found = [path for place in places for path in sorted(place.iterdir())]
        return {
            str(path.relative_to(checkpoint)): path
            for path in found
            if path.is_file() and not path.name.startswith(".") and path.suffix.lower() not in NEVER_READ
        }
    parts = [checkpoint.with_name(name) for name in names_of_parts(checkpoint.name)]
    files = {f"part {i}": each for i, each in enumerate(parts) if each.exists()}
    return files | {f"pictures {i}": each for i, each in enumerate(find_projectors(checkpoint))}


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
