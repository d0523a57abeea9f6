"""Models in the local cache of the Hugging Face hub: ``models--ORG--NAME/snapshots/HASH`` holds links to ``blobs``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hybridge.cache.errors import CheckpointError, NotACheckpointError

PREFIX = "models--"
ID = re.compile(r"(?:https?:/+[^/]+/)?([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/tree/.*)?/?")


def hub_cache() -> Path:
    """The cache's folder, by the environment variables that the hub's own tools read."""
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{user}/huggingface"
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(given or f"{home}/hub")).expanduser()


def model_id(named: str) -> str | None:
    """``ORG/NAME`` where ``named`` may be a model on a hub, by its id or its web address; else None."""
    found = ID.fullmatch(named)
    return found[1] if found else None


def cached_entry(named: str) -> Path | None:
    """The cache's folder of the model ``named``, where it has been downloaded."""
    entry = hub_cache() / f"{PREFIX}{(model_id(named) or named).replace('/', '--')}"
    return entry if is_entry(entry) else None


def is_entry(folder: Path) -> bool:
    """Whether ``folder`` is one of the cache's, with snapshots below it."""
    return (folder / "snapshots").is_dir() and not (folder / "config.json").exists()


def snapshot_of(entry: Path) -> Path:
    """The snapshot that ``refs/main`` names, or the only one.

    Raises CheckpointError where there is none, NotACheckpointError where there are several to choose from.
    """
    snapshots = sorted(path for path in (entry / "snapshots").iterdir() if path.is_dir())
    ref = entry / "refs" / "main"
    named = ref.read_text(encoding="utf-8", errors="replace").strip() if ref.is_file() else None
    chosen = [path for path in snapshots if path.name == named] or snapshots
    if not chosen:
        raise CheckpointError(f"{entry} has no snapshot: {download_again(entry)}.")
    if len(chosen) > 1:
        raise NotACheckpointError(
            f"{entry} has {len(chosen)} snapshots, and refs/main names none of them. Give one:\n" + "\n".join(map(str, chosen))
        )
    return chosen[0]


def download_again(folder: Path) -> str:
    """How to get what is missing in ``folder``, by the model's id where the folder is one of the hub's cache."""
    entry = next((path for path in (folder, *folder.absolute().parents) if path.name.startswith(PREFIX)), None)
    command = f" with 'hf download {entry.name.removeprefix(PREFIX).replace('--', '/')}'" if entry else ""
    return f"download it again{command}"
