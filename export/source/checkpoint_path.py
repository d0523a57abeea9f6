"""From what a user names to the folder of a checkpoint: a folder, one below ``~``, a model in the hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

from hybridge.cache.errors import CheckpointError, UsageError
from hybridge.export.source.folder_kinds import EXPECTED, GGUF, check_file, check_folder, has_weights
from hybridge.export.source.hub_cache import MAIN, HubModel, cached_entry, cached_revision, hub_model, is_entry, snapshot_of
from hybridge.export.source.hub_download import download


def find_checkpoint(named: str | Path) -> Path:
    """Return the folder with config.json, or the GGUF file, that ``named`` means.

    Raises UsageError for an empty name, NotACheckpointError where something else than a checkpoint is there, CheckpointError
    where nothing is or it cannot be read.
    """
    if not str(named).strip():
        raise UsageError(f"the checkpoint's name is empty. {EXPECTED}")
    try:
        folder = _folder(str(named))
        if folder.is_file():
            return folder
        os.listdir(folder)  # glob takes a folder that may not be read for an empty one
        check_folder(folder)
    except PermissionError:
        raise CheckpointError(f"no permission to read {named}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{named} cannot be read ({error.strerror or error}). {EXPECTED}") from None
    return folder


def _folder(named: str) -> Path:
    path = _expanded(Path(named))
    if not path.exists() and (model := hub_model(named)):
        return _of_hub(model)
    if not path.exists() and (entry := cached_entry(named)):
        path = entry
    if is_entry(path):
        return snapshot_of(path)
    if path.is_dir():
        return path
    if path.suffix.lower() == GGUF and path.is_file():
        return path
    if path.exists():
        check_file(path)
    raise CheckpointError(f"{named} is not a folder. {EXPECTED}")


def _of_hub(model: HubModel) -> Path:
    """The snapshot in the hub's cache, or a file in it; downloaded first where it is not there."""
    entry = cached_entry(model.id)
    found = cached_revision(entry, model.revision) if entry else None
    if entry and found is None and model.revision == MAIN:
        found = snapshot_of(entry)
    if found is None or not ((found / model.file).exists() if model.file else has_weights(found)):
        found = download(model)
    return found / model.file if model.file else found


def _expanded(path: Path) -> Path:
    """``path`` with ``~`` and ``~user`` replaced, unless a file has that very name."""
    try:
        return path if path.exists() else path.expanduser()
    except RuntimeError:
        raise CheckpointError(f"{path} is not a folder: there is no user {path.parts[0]}. {EXPECTED}") from None
