"""From what a user names to the folder of a checkpoint: a folder, one below ``~``, a model in the hub's cache."""

from __future__ import annotations

import os
from pathlib import Path

from hybridge.cache.errors import CheckpointError, UsageError
from hybridge.export.source.folder_kinds import EXPECTED, check_file, check_folder
from hybridge.export.source.hub_cache import cached_entry, hub_cache, is_entry, model_id, snapshot_of


def find_checkpoint(named: str | Path) -> Path:
    """Return the folder with config.json that ``named`` means.

    Raises UsageError for an empty name, NotACheckpointError where something else than a checkpoint is there, CheckpointError
    where nothing is or it cannot be read.
    """
    if not str(named).strip():
        raise UsageError(f"the checkpoint's name is empty. {EXPECTED}")
    try:
        folder = _folder(str(named))
        os.listdir(folder)  # glob takes a folder that may not be read for an empty one
        check_folder(folder)
    except PermissionError:
        raise CheckpointError(f"no permission to read {named}; change it, or copy the checkpoint.") from None
    except OSError as error:
        raise CheckpointError(f"{named} cannot be read ({error.strerror or error}). {EXPECTED}") from None
    return folder


def _folder(named: str) -> Path:
    path = _expanded(Path(named))
    if not path.exists() and (entry := cached_entry(named)):
        path = entry
    if is_entry(path):
        return snapshot_of(path)
    if path.is_dir():
        return path
    if path.exists():
        check_file(path)
    raise _nothing_there(named)


def _expanded(path: Path) -> Path:
    """``path`` with ``~`` and ``~user`` replaced, unless a file has that very name."""
    try:
        return path if path.exists() else path.expanduser()
    except RuntimeError:
        raise CheckpointError(f"{path} is not a folder: there is no user {path.parts[0]}. {EXPECTED}") from None


def _nothing_there(named: str) -> CheckpointError:
    name = model_id(named)
    if name is None:
        return CheckpointError(f"{named} is not a folder. {EXPECTED}")
    return CheckpointError(
        f"{named} is not a folder, and the hub's cache {hub_cache()} has no model {name}. hybridge uses no network: "
        f"download it with 'hf download {name}' and try again, or give the folder that it is in."
    )
