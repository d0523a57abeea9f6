"""Exported models in the user's cache: ``models/KEY/`` has the artifact under the model's name, and ``entry.json`` beside it.

A key is a hash of the checkpoint's bytes, the options of the export, and the code that exports. A model appears whole or not at
all, and one process exports it while others wait. Models are opened only from folders that nobody else may write.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from hybridge.errors import ArtifactError, OutputError
from hybridge.runtime.files import (
    NOT_OTHERS,
    lock_path,
    locked,
    others_control,
    partial_folder,
    partial_path,
    private_folder,
    read_regular,
    remove,
    remove_leftovers,
    sync,
    undone_at_signals,
    user_cache,
)
from hybridge.runtime.version import code_version

ENTRY = "entry.json"
LARGEST_ENTRY = 1 << 20
KEY = re.compile(r"[0-9a-f]{16}")
NOT_OF_NAMES = re.compile(r"[^\w.+-]+", re.ASCII)
LONGEST_NAME = 100
MORE = "Free some space ('hybridge cache list' shows what is kept), or let XDG_CACHE_HOME name a folder on another disk"
ELSEWHERE = (
    "let XDG_CACHE_HOME name a folder that you may write, or export to a folder of your own: hybridge export MODEL -o OUT"
)

Seconds = tuple[str, float]
"""A step of an export, and how long it took."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a kept artifact was made of.

    Args:
        key: the whole hash, of which the folder's name is the beginning.
        name: of the model, which its folder has.
        source: where the checkpoint was.
        source_bytes: of its files.
        options: of the export, as far as they are not the usual ones.
        version: of hybridge. code: its ``code_version``.
        steps: how long they took.
    """

    key: str
    name: str
    source: str
    source_bytes: int
    options: Mapping[str, object]
    version: str
    code: str
    steps: Sequence[Seconds]


@dataclass(frozen=True, kw_only=True)
class KeptModel:
    """A model in the cache. entry: None if it is damaged. used: when it was opened last, in seconds since 1970."""

    folder: Path
    entry: Entry | None
    used: float

    @property
    def key(self) -> str:
        """Return the name of its folder."""
        return self.folder.name

    @property
    def artifact(self) -> Path:
        """Return the folder of the artifact."""
        assert self.entry is not None
        return self.folder / self.entry.name

    @cached_property
    def size(self) -> int:
        """Bytes on the disk."""
        return folder_size(self.folder)


class ModelCache:
    """The folder of exported models; nothing is made in it before the first one is."""

    def __init__(self) -> None:
        self.top = user_cache()
        self.folder = self.top / "models"
        self.programs = self.top / "programs"
        """Programs without weights, which exports of other models of the same shape share."""

    def key(self, checkpoint: str, options: Mapping[str, object]) -> str:
        """Return the key of a checkpoint, given by the hash of its bytes, under these options and the code of today."""
        parts = [code_version(), checkpoint, json.dumps(options, sort_keys=True)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def find(self, key: str) -> Path | None:
        """Return the artifact of a key; None if there is none, or one that is not whole.

        Raises ArtifactError for one that others could have written.
        """
        folder = self.folder / key[:16]
        entry = read_entry(folder)
        if entry is None or entry.key != key:
            return None
        artifact = folder / entry.name
        try:
            for path in (folder / ENTRY, artifact, *artifact.iterdir()):
                if reason := others_control(path, self.top):
                    raise ArtifactError(
                        f"{reason}, so the model that is kept there is not run. Remove {folder}, and let XDG_CACHE_HOME name a "
                        "folder that you alone may write."
                    )
        except OSError:
            return None
        if not _is_whole(artifact):
            return None
        with suppress(OSError):
            os.utime(folder / ENTRY)
        return artifact

    def make(self, key: str, name: str, needed: int, export: Callable[[Path], Entry], wait: Callable[[], None]) -> Path:
        """Return the artifact of ``key``, which ``export`` makes, or another process meanwhile.

        Args:
            key: of the model.
            name: what its folder is called.
            needed: bytes that must be free on the disk.
            export: writes the artifact to the folder that it is given, which is not there yet, and returns what it was made of.
            wait: is called before another process that makes the same is waited for.

        Raises:
            OutputError: the cache cannot be written, or the disk is too full. What ``export`` raises is raised too.
        """
        target = self.folder / key[:16]

        def undo() -> None:
            remove(partial_path(target))
            lock_path(target).unlink(missing_ok=True)

        with self._explained(name):
            private_folder(self.folder, self.top)
            if reason := others_control(self.folder, self.top):
                raise OutputError(f"{reason}, so no model is kept there: {ELSEWHERE}.")
            remove_leftovers(self.folder)
            with _locked(target, wait), undone_at_signals(undo):
                if (there := self.find(key)) is not None:
                    return there
                self._check_space(name, needed)
                with partial_folder(target) as staging:
                    entry = export(staging / name)
                    (staging / ENTRY).write_text(json.dumps(asdict(entry), indent=2) + "\n", encoding="utf-8")
                    for path in staging.rglob("*"):
                        path.chmod(path.stat().st_mode & ~NOT_OTHERS)  # whatever the umask lets others do
                    remove(target)
                    staging.rename(target)
                    sync(self.folder)
        return target / name

    def models(self) -> list[KeptModel]:
        """Return all models, the last used one first."""
        found = []
        with suppress(OSError):
            for folder in self.folder.iterdir():
                if KEY.fullmatch(folder.name):
                    with suppress(OSError):
                        place = folder / ENTRY if (folder / ENTRY).exists() else folder
                        found.append(KeptModel(folder=folder, entry=read_entry(folder), used=place.stat().st_mtime))
        return sorted(found, key=lambda model: -model.used)

    def remove(self, model: KeptModel) -> None:
        """Remove a model; a process that has it open keeps its files. Raises OutputError if that fails, or it is being made."""
        try:
            with locked(model.folder, wait=False):
                gone = partial_path(model.folder)
                remove(gone)
                model.folder.rename(gone)  # in one step: nobody opens half of it
                remove(gone)
        except BlockingIOError:
            raise OutputError(f"{model.folder} is being exported by another process; it was kept.") from None
        except OSError as error:
            raise OutputError(f"{model.folder} cannot be removed: {error.strerror or error}.") from None

    def remove_programs(self) -> None:
        """Remove the kept programs. Raises OutputError."""
        try:
            remove(self.programs)
        except OSError as error:
            raise OutputError(f"{self.programs} cannot be removed: {error.strerror or error}.") from None

    def _check_space(self, name: str, needed: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OutputError(
                f"{name} takes about {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are left on the disk of {self.folder}. "
                f"{MORE}."
            )

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, OutputError) as failed:
            error = failed if isinstance(failed, OSError) else failed.__cause__
            if not isinstance(error, OSError):
                raise
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutputError(f"the disk of {self.folder} became full, and nothing of {name} was kept. {MORE}.") from error
            raise OutputError(f"{self.folder} cannot be written ({error.strerror or error}): {ELSEWHERE}.") from error


def read_entry(folder: Path) -> Entry | None:
    """Return what the artifact in a folder of the cache was made of; None if that cannot be read."""
    try:
        content = json.loads(read_regular(folder / ENTRY, LARGEST_ENTRY))
        entry = Entry(**content)
        steps = [(str(name), float(seconds)) for name, seconds in entry.steps]
        sizes_fit = isinstance(entry.source_bytes, int) and isinstance(entry.options, dict)
        texts = (entry.key, entry.name, entry.source, entry.version, entry.code)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    if not sizes_fit or not all(isinstance(each, str) for each in texts) or entry.name != model_name(entry.name):
        return None
    return Entry(**{**content, "steps": steps})


def model_name(text: str) -> str:
    """Return the name of a model as a folder may have it."""
    return NOT_OF_NAMES.sub("-", text).strip(".-")[:LONGEST_NAME] or "model"


def _is_whole(artifact: Path) -> bool:
    """Return whether an artifact is of today's format and has all of its bytes; their hashes are checked where it is opened."""
    from hybridge.runtime.artifact.manifest import read_manifest  # pydantic takes long to start

    try:
        files = read_manifest(artifact).files
        return all((artifact / name).stat().st_size == expected.size for name, expected in files.items())
    except (ArtifactError, OSError):
        return False


@contextmanager
def _locked(target: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Lock ``target``; if another process has it, call ``wait`` first."""
    try:
        with locked(target, wait=False):
            pass
    except BlockingIOError:
        wait()
    with locked(target):
        yield


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    size = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                size += (Path(place) / name).lstat().st_size
    return size
